"""Images that take as long to decode as to classify: decoding goes on while the model computes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy
import torch
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.ml.inference.pytorch_inference import PytorchModelHandlerTensor as BeamHandler
from elsewhere.glance import SIDE, Glance
from measure import BEAM, HEADRACE, Case

from headrace import BatchingConfig
from headrace.beam import RunInference
from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor

TITLE = (
    f"2,048 deflated images of {SIDE} x {SIDE} pixels through a small convolutional network (PyTorch, random weights)"
)

_CHUNKS = 16
_DIFFERENT = 4
"""In each chunk."""

_SIZE = 32
_INLINE = "Headrace without overlap"


def cases(folder: Path, *, quick: bool) -> Iterator[Case]:
    """Beside Beam, and beside itself with everything on one thread; always in batches of 32."""
    rows = 32 if quick else 2_048
    torch.manual_seed(12345)
    state = folder / "glance.pt"
    torch.save(Glance().state_dict(), state)
    model = {"state_dict_path": str(state), "model_class": Glance, "min_batch_size": _SIZE, "max_batch_size": _SIZE}
    fixed = BatchingConfig(min_batch_size=_SIZE, max_batch_size=_SIZE, overlap=False)

    def headrace(**more: Any) -> RunInference:
        return RunInference(PytorchModelHandlerTensor(**model).with_preprocess_fn(decode), **more)

    others = {
        "beside Beam": (BEAM, lambda: BeamRunInference(BeamHandler(**model).with_preprocess_fn(decode))),
        "beside one thread": (_INLINE, partial(headrace, batching=fixed)),
    }
    for name, (side, other) in others.items():
        yield Case(
            name=name,
            rows=rows,
            source=lambda: beam.Create(range(_CHUNKS)) | beam.FlatMap(make_rows, rows // _CHUNKS),
            sides={HEADRACE: headrace, side: other},
            tolerance=1e-4,
        )


def make_rows(chunk: int, count: int) -> Iterator[bytes]:
    """The images of one chunk, the same in every run; few different ones, since to deflate one takes long."""
    generator = numpy.random.default_rng(chunk)
    pixels = generator.integers(0, 64, (_DIFFERENT, 3, SIDE, SIDE), dtype=numpy.uint8)
    return islice(cycle([zlib.compress(image.tobytes(), level=1) for image in pixels]), count)


def decode(image: bytes) -> torch.Tensor:
    """Pixels from 0 to 1."""
    pixels = numpy.frombuffer(zlib.decompress(image), dtype=numpy.uint8).reshape(3, SIDE, SIDE)
    return torch.from_numpy(pixels.astype(numpy.float32) / 63)

"""A small transformer encoder: the model's arithmetic is nearly all there is to measure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import torch
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from apache_beam.ml.inference.pytorch_inference import PytorchModelHandlerTensor as BeamHandler
from elsewhere.encoder import Encoder, make_rows
from measure import BEAM, HEADRACE, Case

from headrace.beam import RunInference
from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor

TITLE = "4,096 sequences of 64 tokens through a transformer encoder of 2 layers, width 128 (PyTorch, random weights)"

_CHUNKS = 16

_BATCHING: dict[str, dict[str, Any]] = {
    "adaptive batches": {},
    "batches of 64": {"min_batch_size": 64, "max_batch_size": 64},
}


def cases(folder: Path, *, quick: bool) -> Iterator[Case]:
    """One for each way of batching; floats are rounded differently in batches of different sizes."""
    rows = 64 if quick else 4_096
    torch.manual_seed(12345)
    state = folder / "encoder.pt"
    torch.save(Encoder().state_dict(), state)
    for name, batching in _BATCHING.items():
        model = {"state_dict_path": str(state), "model_class": Encoder, **batching}
        yield Case(
            name=name,
            rows=rows,
            source=lambda: beam.Create(range(_CHUNKS)) | beam.FlatMap(make_rows, rows // _CHUNKS),
            sides={
                HEADRACE: lambda model=model, **more: RunInference(PytorchModelHandlerTensor(**model), **more),
                BEAM: lambda model=model: BeamRunInference(BeamHandler(**model)),
            },
            tolerance=1e-4,
        )

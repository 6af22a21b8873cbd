"""Whether the size that adapts finds the model's best throughput, and how soon."""

from __future__ import annotations

import gc
import pickle
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from elsewhere.encoder import LENGTH, VOCABULARY, Encoder
from sklearn.linear_model import LogisticRegression

from headrace import predict
from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

TITLE = "The size that adapts, against the best fixed size"

ABOUT = """\
Each model runs once with every fixed size that is a power of two, for its best throughput within `run_inference`, and
once with the default `BatchingConfig`, which starts at 1. *share of best*: the throughput of the adaptive batches
number 51 to 80, by the best fixed one's; the goal is 0.95. *reached after*: the first batch from which on five in a row
together reach 0.95. The fixed sizes are timed before and after, and the better of the two counts.

- Intervals are from the least to the greatest of the rounds."""

_BATCHES = 80
_SETTLED = 50
_GOAL = 0.95
_LARGEST = {"logistic regression": 4096, "convolutional network": 64, "transformer": 128}
_log: list[tuple[int, float]] = []
"""Size and seconds of each batch."""


class Network(torch.nn.Sequential):
    """A small convolutional network for images of 3 x 32 x 32."""

    def __init__(self) -> None:
        layers: list[torch.nn.Module] = []
        for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
            layers += [torch.nn.Conv2d(inputs, outputs, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
        super().__init__(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 16, 10))


class LoggingNumpy(SklearnModelHandlerNumpy):
    """Notes sizes and times."""

    def run_inference(self, batch: Any, model: Any, inference_args: Any = None) -> Any:
        """As its base."""
        return _timed(super().run_inference, batch, model)


class LoggingTensor(PytorchModelHandlerTensor):
    """Notes sizes and times."""

    def run_inference(self, batch: Any, model: Any, inference_args: Any = None) -> Any:
        """As its base."""
        return _timed(super().run_inference, batch, model)


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each model."""
    gc.collect()
    gc.freeze()  # as in a pipeline: what was imported is not looked at by collections, which would count as the model's
    for name, (handler, rows) in _models(folder).items():
        sizes = [2**power for power in range(13) if 2**power <= _LARGEST[name]][: 3 if quick else None]
        rounds = [
            _round(handler, rows, sizes, 12 if quick else _BATCHES) for _ in range(1 if quick else min(repeats, 3))
        ]
        yield {
            "model": name,
            "best fixed size": "/".join(str(best) for best, _, _, _ in rounds),
            "rows/s": f"{statistics.median(rate for _, rate, _, _ in rounds):.0f}",
            "share of best": _interval([share for _, _, share, _ in rounds]),
            "reached after": "/".join(str(after) for _, _, _, after in rounds),
            "runs": rounds,
        }


def _models(folder: Path) -> dict[str, tuple[Any, Sequence[Any]]]:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(4096, 20))
    model = LogisticRegression().fit(features, features.sum(axis=1) > 0)
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    torch.manual_seed(3)
    for name, cls in (("network", Network), ("encoder", Encoder)):
        torch.save(cls().state_dict(), folder / f"{name}.pt")
    return {
        "logistic regression": (LoggingNumpy(folder / "model.pkl"), list(features)),
        "convolutional network": (LoggingTensor(folder / "network.pt", Network), list(torch.randn(256, 3, 32, 32))),
        "transformer": (
            LoggingTensor(folder / "encoder.pt", Encoder),
            list(torch.randint(VOCABULARY, (256, LENGTH))),
        ),
    }


def _round(handler: Any, rows: Sequence[Any], sizes: Sequence[int], batches: int) -> tuple[int, float, float, int]:
    """The best fixed size, its rows a second, the adaptive share of it, and after how many batches that was good."""
    model = handler.load_model()
    before = _rates(handler, model, rows, sizes)
    sequence = _adaptive(handler, rows, batches)
    after = _rates(handler, model, rows, sizes)
    rates = {size: max(before[size], after[size]) for size in sizes}
    best = max(rates, key=rates.__getitem__)
    settled = sequence[min(_SETTLED, batches // 2) :]
    return best, rates[best], _rate(settled) / rates[best], _reached(sequence, _GOAL * rates[best])


def _rates(handler: Any, model: Any, rows: Sequence[Any], sizes: Sequence[int]) -> dict[int, float]:
    rates = {}
    for size in sizes:
        _log.clear()
        batch = list(islice(cycle(rows), size))
        for _ in range(7):
            handler.run_inference(batch, model)
        rates[size] = size / statistics.median(seconds for _, seconds in _log)
    return rates


def _adaptive(handler: Any, rows: Sequence[Any], batches: int) -> list[tuple[int, float]]:
    _log.clear()
    predictions = predict(handler, cycle(rows))
    while len(_log) < batches:
        next(predictions)
    predictions.close()
    return _log[:batches]


def _rate(batches: Sequence[tuple[int, float]]) -> float:
    return sum(size for size, _ in batches) / sum(seconds for _, seconds in batches)


def _reached(batches: Sequence[tuple[int, float]], rate: float) -> int:
    return next((at for at in range(len(batches) - 4) if _rate(batches[at : at + 5]) >= rate), len(batches))


def _timed(run: Callable[..., Any], batch: Sequence[Any], model: Any) -> list[Any]:
    started = time.perf_counter()
    predictions = list(run(batch, model))
    _log.append((len(batch), time.perf_counter() - started))
    return predictions


def _interval(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"

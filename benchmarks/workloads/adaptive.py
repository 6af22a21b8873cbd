"""Whether the size that adapts finds the model's best throughput, and how soon."""

from __future__ import annotations

import gc
import pickle
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from elsewhere.encoder import LENGTH, VOCABULARY, Encoder
from goals import INTERVALS, Goal, find, interval
from sklearn.linear_model import LogisticRegression

from headrace import BatchingConfig, predict
from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

TITLE = "The size that adapts, against the best fixed size"

ABOUT = f"""\
The default `BatchingConfig`, which starts at 1, against every fixed size that is a power of two, all through `predict`.
In a round, the adaptive size has its first 50 batches for itself; then all take turns, some batches each. *share of
best*: the throughput of the adaptive batches from number 51 on, by that of the best fixed size in the same round.
Which fixed size is the best is told by the other rounds: in a round of its own it would be the luckiest.
*reached after*: the first batch from which on five in a row together reach 0.95 of that.

- Throughput is that of `run_inference` alone; of several turns, the median. Nobody has a second thread, on which a
  batch would go on into the next one's turn.

{INTERVALS}"""

_SETTLED = 50
_TURNS = 7
_TURN = 6
"""Batches of each."""
_GOAL = 0.95
_LARGEST = {"logistic regression": 4096, "convolutional network": 64, "transformer": 128}
GOALS = [
    Goal(
        f"Adaptive size, {model}: rows/s / of the best fixed size",
        lambda results, model=model: find(results, model, "shares"),
        at_least=_GOAL,
    )
    for model in _LARGEST
]

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


class _Round(NamedTuple):
    rates: dict[int | None, float]
    """Rows a second of each fixed size, and of the adaptive one (None)."""
    sequence: list[tuple[int, float]]
    """Size and seconds of each adaptive batch."""


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each model."""
    gc.collect()
    gc.freeze()  # as in a pipeline: what was imported is not looked at by collections, which would count as the model's
    for name, (handler, rows) in _models(folder).items():
        sizes = [2**power for power in range(13) if 2**power <= _LARGEST[name]][: 3 if quick else None]
        rounds = [_round(handler, rows, sizes, quick=quick) for _ in range(2 if quick else max(repeats, 2))]
        shares = [_share(rounds, number) for number in range(len(rounds))]
        yield {
            "model": name,
            "best fixed size": "/".join(str(best) for best, _, _ in shares),
            "rows/s": f"{statistics.median(one.rates[None] for one in rounds):.0f}",
            "share of best": str(interval([share for _, share, _ in shares])),
            "shares": [share for _, share, _ in shares],
            "reached after": "/".join(str(after) for _, _, after in shares),
            "runs": [one._asdict() for one in rounds],
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


def _round(handler: Any, rows: Sequence[Any], sizes: Sequence[int], *, quick: bool) -> _Round:
    """All sizes once, in turns."""
    contestants = {None: predict(handler, cycle(rows), batching=BatchingConfig(overlap=False))}
    contestants |= {size: predict(handler, cycle(rows), batching=_fixed(size)) for size in sizes}
    sequence = _run(contestants[None], 12 if quick else _SETTLED)
    for size in sizes:
        _run(contestants[size], 3)  # loads the model and warms it
    rates: dict[int | None, list[float]] = {size: [] for size in contestants}
    for turn in range(2 if quick else _TURNS):
        order = list(contestants)
        for size in order[turn % len(order) :] + order[: turn % len(order)]:
            batches = _run(contestants[size], _TURN)
            rates[size].append(_rate(batches))
            sequence += batches if size is None else []
    for predictions in contestants.values():
        predictions.close()
    return _Round({size: statistics.median(several) for size, several in rates.items()}, sequence)


def _fixed(size: int) -> BatchingConfig:
    return BatchingConfig(min_batch_size=size, max_batch_size=size, overlap=False)


def _run(predictions: Iterator[Any], batches: int) -> list[tuple[int, float]]:
    """Sizes and seconds of the next batches."""
    _log.clear()
    while len(_log) < batches:
        next(predictions)
    return list(_log)


def _share(rounds: Sequence[_Round], number: int) -> tuple[int, float, int]:
    """The best fixed size by the other rounds, the adaptive share of it in this one, and after how many batches."""
    others = [one.rates for at, one in enumerate(rounds) if at != number]
    sizes = [size for size in others[0] if size is not None]
    best = max(sizes, key=lambda size: statistics.median(rates[size] for rates in others))
    rates, sequence = rounds[number]
    return best, rates[None] / rates[best], _reached(sequence, _GOAL * rates[best])


def _rate(batches: Sequence[tuple[int, float]]) -> float:
    return sum(size for size, _ in batches) / sum(seconds for _, seconds in batches)


def _reached(batches: Sequence[tuple[int, float]], rate: float) -> int:
    return next((at for at in range(len(batches) - 4) if _rate(batches[at : at + 5]) >= rate), len(batches))


def _timed(run: Callable[..., Any], batch: Sequence[Any], model: Any) -> list[Any]:
    started = time.perf_counter()
    predictions = list(run(batch, model))
    _log.append((len(batch), time.perf_counter() - started))
    return predictions

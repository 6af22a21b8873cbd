"""How long a batch takes to a model in another process and back, when the model computes nothing."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from elsewhere.last_number import LastNumberHandler, LastNumberRequestHandler
from elsewhere.shared_model import shared_model
from goals import Goal, find
from outputs import Outputs

from headrace.hosts.client import ModelHosts
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.ipc.serialization import pickle_or_explain
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, prepare

TITLE = "A batch's way to a model in another process and back"

ABOUT = """\
Milliseconds from handing over a batch to having its predictions, each an example (of the caller's own) with a number;
the model itself does next to nothing. All ways gave equal predictions.

- *bare host*: Headrace's `ModelHosts` with a request handler that only calls the handler.
- *bundle*: Headrace with `isolate=True`, all but the engine: batching, metrics, the handling of failures. The handler
  counts a batch's bytes as Headrace's handlers of arrays do (by default it is pickled for that, in process, too).
- *Beam*: the handler's call of a model that Beam shares (`large_model=True`), from another process than the one that
  has it; without batching and metrics.

The ways take turns. A turn is several batches, one after the other; its time is the median of theirs. Given are the
medians of the turns, and the spread (longest less shortest turn, by the median)."""

_BARE, _BUNDLE, _BEAM = "bare host", "bundle", "Beam"

_BATCHES = {"4 KB": (2**12, 50), "1 MB": (2**20, 20), "16 MB": (2**24, 5)}
"""Bytes of a batch, and how many of them make a turn."""

_ARRAYS = {32: "32 arrays", 1: "1 array"}


def _goal(batch: str, what: str, measure: Callable[[float, float, float], float], **limit: Any) -> Goal:
    """Measured from a turn's milliseconds: bare host, bundle, Beam."""
    return Goal(
        f"Round trip, {batch}: {what}",
        lambda results: [measure(*turn) for turn in zip(*find(results, batch).values(), strict=True)],
        **limit,
    )


GOALS = [
    _goal("4 KB, 32 arrays", "bare host / Beam", lambda bare, _, beam: bare / beam, at_most=1.0),
    *(
        _goal(f"{size}, 1 array", "bare host", lambda bare, *_: bare, at_most=limit, unit=" ms")
        for size, limit in {"4 KB": 0.05, "1 MB": 0.15, "16 MB": 1.6}.items()
    ),
    *(
        _goal(f"4 KB, {arrays}", "a bundle adds", lambda bare, bundle, _: bundle - bare, at_most=0.1, unit=" ms")
        for arrays in _ARRAYS.values()
    ),
    *(
        _goal(f"{size}, {arrays}", "bundle / bare host", lambda bare, bundle, _: bundle / bare, at_most=1.3)
        for size in ("1 MB", "16 MB")
        for arrays in _ARRAYS.values()
    ),
]

Way = Callable[[list[np.ndarray]], list[Any]]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each kind of batch."""
    with _bare_host() as bare, _beams_model(folder) as beams, _frozen_heap():
        for count, arrays in _ARRAYS.items():
            with _bundles(count) as bundles:
                for size, (nbytes, calls) in _BATCHES.items():
                    ways = {_BARE: bare, _BUNDLE: bundles, _BEAM: beams}
                    turns = take_turns(ways, make_batch(nbytes, count), repeats, 1 if quick else calls)
                    yield {"batch": f"{size}, {arrays}", **_row(turns), "runs": turns}


def make_batch(nbytes: int, count: int) -> list[np.ndarray]:
    """So many equal float32 arrays, with so many bytes together."""
    return list(np.random.default_rng(nbytes).standard_normal((count, nbytes // count // 4), dtype=np.float32))


def take_turns(ways: Mapping[str, Way], batch: list[np.ndarray], turns: int, calls: int) -> dict[str, list[float]]:
    """The milliseconds that a batch takes each way, for each turn of so many calls.

    Raises:
        OutputsDifferError: not all ways give the same predictions.
    """
    first, *others = [Outputs(way(batch)) for way in ways.values()]
    for other in others:
        first.check_same(other)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        for name in list(ways)[:: 1 if turn % 2 == 0 else -1]:
            taken[name].append(statistics.median(_milliseconds(ways[name], batch) for _ in range(calls)))
    return taken


def _milliseconds(way: Way, batch: list[np.ndarray]) -> float:
    started = time.perf_counter()
    way(batch)
    return (time.perf_counter() - started) * 1e3


def _row(turns: Mapping[str, list[float]]) -> dict[str, str]:
    medians = {name: statistics.median(times) for name, times in turns.items()}
    spreads = {name: (max(times) - min(times)) / medians[name] for name, times in turns.items()}
    return {
        **{f"{name} ms (spread)": f"{median:.3f} ({spreads[name]:.0%})" for name, median in medians.items()},
        **{f"{name} / {_BEAM}": f"{medians[name] / medians[_BEAM]:.3f}" for name in (_BARE, _BUNDLE)},
    }


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """Spares the garbage collector what imports made; it would take longer than the batches."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _bare_host() -> Iterator[Way]:
    host = ModelHosts(
        ForkServerClient(pickle_or_explain(LastNumberRequestHandler(), "LastNumber"), "LastNumber"), "LastNumber", None
    )
    try:
        yield lambda batch: host.result(host.submit(None, batch)).rows
    finally:
        host.close()


@contextmanager
def _bundles(count: int) -> Iterator[Way]:
    """Bundles of one batch, which has ``count`` elements."""
    handler = LastNumberHandler(min_batch_size=count, max_batch_size=count)
    worker = open_worker(prepare(handler, InferenceRequest(isolate=True)))

    def run(batch: list[np.ndarray]) -> list[Any]:
        bundle = worker.bundle(FanOut())
        outcomes = [outcome for element in batch for outcome in bundle.add(element, None)]
        return [value for outcome in (*outcomes, *bundle.finish()) for value in outcome.values]

    try:
        yield run
    finally:
        worker.close()


@contextmanager
def _beams_model(folder: Path) -> Iterator[Way]:
    """In a process of its own, as for all workers but the first one on a machine."""
    place = (str(folder), "roundtrip")
    command = [sys.executable, "-m", "elsewhere.shared_model", *place]
    directory = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        shared, handler = shared_model(*place), LastNumberHandler()
        model = shared.acquire()
        try:
            yield lambda batch: list(handler.run_inference(batch, model))
        finally:
            shared.release(model)
            owner.stdin.close()

"""How long it takes from the death of a model's host in the middle of a batch to the batch's next try."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from elsewhere.mortal import MOMENTS, NO_BATCH, MortalHandler
from outputs import OutputsDifferError

from headrace import predict

TITLE = "From the SIGKILL of a model's host, in the middle of a batch, to the next inference on that batch"

ABOUT = """\
Every fourth batch kills its host, once. *Next try* is when another host begins `run_inference` on it: by then the death
has been noticed, a host forked and the model loaded; the loading is also given apart. *First start* is from asking for
predictions to the first `run_inference`, with the start of Python and the handler's imports.

Beam has nothing to set beside it. There the model runs in the worker process, which dies with it. A distributed runner
starts another one, which imports everything, loads the model and repeats the whole bundle, as often as the runner lets
it fail. The FnApiRunner is the user's own process and dies, too. With `use_subprocess=True` the batch is not repeated:
all its elements become dead letters, and the next batch gets a new process (see the workload `casualties`)."""

_BATCH = 32
_PERIOD = 4 * _BATCH
"""In examples."""

_HANDLERS = {
    "small": ("elsewhere.mortal", "MortalHandler"),
    "imports PyTorch": ("elsewhere.mortal_torch", "MortalTorchHandler"),
}


class Moment(NamedTuple):
    """A line that a mortal handler has written."""

    what: str
    batch: int
    ns: int


class Recovery(NamedTuple):
    """From a host's death to the next try, in milliseconds."""

    total: float
    loading: float


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - it is small
    """One row for each handler."""
    for name, (module, handler) in _HANDLERS.items():
        notes = folder / handler
        notes.mkdir()
        started, moments = run(getattr(import_module(module), handler), notes, repeats)
        recoveries = find_recoveries(moments)
        totals = [one.total for one in recoveries]
        first = next(moment.ns for moment in moments if moment.what == "begun")
        yield {
            "handler": name,
            "hosts killed": str(len(recoveries)),
            "next try after ms, median": f"{statistics.median(totals):.1f}",
            "min": f"{min(totals):.1f}",
            "max": f"{max(totals):.1f}",
            "of which loading, median": f"{statistics.median(one.loading for one in recoveries):.1f}",
            "first start ms": f"{(first - started) / 1e6:.0f}",
            "runs": [one._asdict() for one in recoveries],
        }


def run(handler: type[MortalHandler], folder: Path, deaths: int) -> tuple[int, list[Moment]]:
    """Predicts until so many hosts have been killed; when that began, and what the handler has noted.

    Raises:
        OutputsDifferError: a batch that has killed its host has no or wrong predictions.
    """
    examples = range(deaths * _PERIOD)
    made = handler(folder, _PERIOD, min_batch_size=_BATCH, max_batch_size=_BATCH)
    started = time.monotonic_ns()
    predictions = [result.inference for result in predict(made, examples, isolate=True)]
    if predictions != [2 * example for example in examples]:
        raise OutputsDifferError("not every example was doubled")
    lines = [line.split() for line in (folder / MOMENTS).read_text().splitlines()]
    return started, [Moment(what, int(batch), int(ns)) for what, batch, ns in lines]


def find_recoveries(moments: Sequence[Moment]) -> list[Recovery]:
    """One for each death; another batch may come before the next try.

    Raises:
        ValueError: there was no next try, or the model was not loaded.
    """
    recoveries = []
    for place, killed in enumerate(moments):
        if killed.what == "killed":
            firsts = {(later.what, later.batch): later.ns for later in reversed(moments[place + 1 :])}
            steps = [("loading", NO_BATCH), ("loaded", NO_BATCH), ("begun", killed.batch)]
            times = [firsts[step] for step in steps if step in firsts]
            if len(times) < len(steps) or times != sorted(times):
                raise ValueError(f"no recovery: {moments[place:]}")
            loading, loaded, again = times
            recoveries.append(Recovery((again - killed.ns) / 1e6, (loaded - loading) / 1e6))
    return recoveries

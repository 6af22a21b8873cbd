"""How long it takes from the death of a host over mapped weights to the answer of the batch that it had."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from elsewhere.mortal_large import LAYER_BYTES, MortalLargeHandler
from goals import Goal, interval, of

from workloads.recovery import Moment, run

TITLE = "From the SIGKILL of a host with a model of 3 GB to the answer of the batch that it had"

ABOUT = """\
Every fourth batch kills its host, once. *Next try* is when another host begins `run_inference` on it, *answer* when it
ends there; *a batch* is what an undisturbed one takes. *Mapped* is `large_model=True`: a host attaches weights that are
there. *Private* is the same without it: each host loads the model anew, which here means to fill memory with numbers;
from a disk it would take longer.

Beam has nothing to set beside it (see the workload `recovery`): the process that has the shared model is the first
worker, and when it dies the pipeline fails."""

MAPPED, PRIVATE = "mapped", "private"

GOALS = [
    Goal(f"Weights of 3 GB, mapped: from a host's death to {what}", of(MAPPED, field), at_most=100, unit=" ms")
    for what, field in (("the next try", "next_try"), ("the answer", "answer"))
]
_PRIVATE_DEATHS = 2


class Recovery(NamedTuple):
    """From a host's death, in milliseconds."""

    next_try: float
    answer: float


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each placement."""
    layers = 1 if quick else 44
    for name, deaths in ((MAPPED, repeats), (PRIVATE, min(repeats, _PRIVATE_DEATHS))):
        notes = folder / name
        notes.mkdir()
        handler = partial(MortalLargeHandler, layers=layers, large_model=name == MAPPED)
        started, moments = run(handler, notes, deaths)
        recoveries = find_recoveries(moments)
        yield {
            "placement": name,
            "model MB": f"{layers * LAYER_BYTES / 1e6:,.0f}",
            "hosts killed": str(len(recoveries)),
            "next try after ms": str(interval([one.next_try for one in recoveries])),
            "answer after ms": str(interval([one.answer for one in recoveries])),
            "a batch ms": f"{_undisturbed(moments):.1f}",
            "loads": str(sum(moment.what == "loaded" for moment in moments)),
            "first start ms": f"{(_first(moments, 'begun') - started) / 1e6:.0f}",
            "runs": [one._asdict() for one in recoveries],
        }


def find_recoveries(moments: Sequence[Moment]) -> list[Recovery]:
    """One for each death.

    Raises:
        ValueError: a batch was not tried again, or not answered.
    """
    recoveries = []
    for place, killed in enumerate(moments):
        if killed.what == "killed":
            later = [moment for moment in moments[place + 1 :] if moment.batch == killed.batch]
            if [moment.what for moment in later] != ["begun", "ended"]:
                raise ValueError(f"no recovery: {later}")
            recoveries.append(Recovery(*((moment.ns - killed.ns) / 1e6 for moment in later)))
    return recoveries


def _undisturbed(moments: Sequence[Moment]) -> float:
    """Median milliseconds of the batches that were answered by the host that they were first given to."""
    killed = {moment.batch for moment in moments if moment.what == "killed"}
    begins = {moment.batch: moment.ns for moment in moments if moment.what == "begun"}
    ends = [moment for moment in moments if moment.what == "ended" and moment.batch not in killed]
    return statistics.median((moment.ns - begins[moment.batch]) / 1e6 for moment in ends)


def _first(moments: Sequence[Moment], what: str) -> int:
    return next(moment.ns for moment in moments if moment.what == what)

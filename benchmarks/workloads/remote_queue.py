"""An endpoint that queues instead of refusing, and two machines that share a quota without knowing of each other."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from elsewhere.quota_server import LATENCY_SECS
from goals import Goal, of

from workloads import by_hand
from workloads.remote import counted, run_processes, serving

_AT_ONCE = 20
_CAPACITY = _AT_ONCE / LATENCY_SECS
_PROCESSES = (1, 2, 4)
_QUOTAS = (1000, 200)
_SECS = 30

TITLE = "An endpoint that queues, and two machines at one quota"

ABOUT = f"""\
The server of [remote](remote.md), with a latency of {LATENCY_SECS * 1e3:.0f} ms. First it refuses nothing, but works on
{_AT_ONCE} requests at once ({_CAPACITY:.0f} a second), and the others wait in its queue. *Slower* is the mean time
that a request spends in the server, divided by its latency: 1 without a queue. All {_SECS * _CAPACITY:.0f} requests at
once would make it {_SECS / LATENCY_SECS / 2:.0f}. Then it has a quota, and processes of two machines (two runtime
directories) ask it side by side. {by_hand.ABOUT}, has the same client."""


def _queueing(processes: int) -> str:
    return f"{_AT_ONCE} at once, {processes} process{'es' * (processes > 1)}"


def _machines(quota: int) -> str:
    return f"{quota}/s, 2 machines with 2 processes each"


GOALS = [
    *(
        goal
        for processes in _PROCESSES
        for goal in (
            Goal(f"{_queueing(processes)}: of the ideal", of(_queueing(processes), "share"), at_least=0.95),
            Goal(f"{_queueing(processes)}: slower", of(_queueing(processes), "slower"), at_most=2),
        )
    ),
    *(
        goal
        for quota in _QUOTAS
        for goal in (
            Goal(f"{_machines(quota)}: of the ideal", of(_machines(quota), "share"), at_least=0.95),
            Goal(f"{_machines(quota)}: refused", of(_machines(quota), "refused"), at_most=0.02),
        )
    ),
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - needs no files
    """One row for each number of processes, and each quota."""
    seconds = 1 if quick else _SECS
    for processes in _PROCESSES[1:2] if quick else _PROCESSES:
        runs = [_queue(processes, seconds) for _ in range(repeats)]
        yield _fact(_queueing(processes), runs)
    by_hands = [by_hand.best(partial(_queue, 1, seconds), "share", quick=quick) for _ in range(repeats)]
    yield _fact(by_hand.case(f"{_AT_ONCE} at once", by_hand.BY_HAND), by_hands)
    for quota in _QUOTAS[1:] if quick else _QUOTAS:
        runs = [_share(quota, seconds) for _ in range(repeats)]
        yield _fact(_machines(quota), runs)


def _fact(requests: str, runs: list[dict[str, float]]) -> dict[str, Any]:
    if "slower" in runs[0]:
        price = f"{statistics.median(run['slower'] for run in runs):.2f} times slower"
    else:
        price = f"{statistics.median(run['refused'] for run in runs):.2%} refused"
    share = statistics.median(run["share"] for run in runs)
    return {"requests": requests, "of the ideal": f"{share:.3f}", "slower, or refused": price, "runs": runs}


def _queue(processes: int, seconds: int, at_once: int | None = None) -> dict[str, float]:
    unlimited = 1_000_000
    counts = _run(int(seconds * _CAPACITY), processes, 1, unlimited, _AT_ONCE, at_once=at_once)
    return {"share": _rate(counts) / _CAPACITY, "slower": counts["inside"] / counts["accepted"] / LATENCY_SECS}


def _share(quota: int, seconds: int) -> dict[str, float]:
    counts = _run(seconds * quota, 4, 2, quota)
    return {"share": _rate(counts) / quota, "refused": counts["refused"] / (counts["accepted"] + counts["refused"])}


def _run(count: int, processes: int, machines: int, *server: int, at_once: int | None = None) -> dict[str, Any]:
    with serving(*server) as port:
        if run_processes(port, count, processes, machines=machines, at_once=at_once) != count:
            raise AssertionError("predictions are wrong or missing")
        return counted(port)


def _rate(counts: dict[str, Any]) -> float:
    rate: float = counts["accepted"] / (counts["last"] - counts["first"])
    return rate

"""How a quota that moves is followed, and what an outage costs, from several processes of a machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elsewhere.quota_server import LATENCY_SECS
from goals import Goal, of

from workloads import by_hand
from workloads.remote import counted, run_processes, serving

TITLE = "An endpoint whose quota moves, and one that fails, on this machine"

ABOUT = f"""\
The server of [remote](remote.md), with a latency of {LATENCY_SECS * 1e3:.0f} ms. First its quota is 1,000 requests a
second, from the tenth second on 200, and from the twentieth on 1,000 again. *Followed* are the rates of accepted
requests from the fifth second after each change on, divided by the quota. Then the quota is 1,000, and from the fifth
second until the 35th all requests get 503 at once. *Probes* is the largest number of requests in any second of the
outage but its first, by all processes together; it is over for a process when the server accepts requests again.
{by_hand.ABOUT} for what is followed; it has the same client, and tries again 0.1 s after 429 or 503."""

_MOVES = [(0, 1000), (10, 200), (20, 1000)]
_OUTAGE = 5, 35
_PROCESSES = (1, 2, 4)
_MOVING = "1,000, 200, 1,000 a second"


def _counted(processes: int) -> str:
    return f"{processes} process{'es' * (processes > 1)}"


def _moving(processes: int) -> str:
    return f"{_MOVING}, {_counted(processes)}"


def _failing(processes: int) -> str:
    return f"outage of {_OUTAGE[1] - _OUTAGE[0]} s, {_counted(processes)}"


def _goals(processes: int) -> list[Goal]:
    moving, failing = _moving(processes), _failing(processes)
    moves, outage = f"Quota that moves, {_counted(processes)}", f"Outage, {_counted(processes)}"
    return [
        Goal(f"{moves}: of the new one, 5 s later", of(moving, "least_followed"), at_least=0.9),
        Goal(f"{moves}: refused", of(moving, "refused"), at_most=0.02),
        Goal(f"{outage}: probes a second", of(failing, "probes"), at_most=processes),
        Goal(f"{outage}: seconds until it is over", of(failing, "over"), at_most=2),
    ]


GOALS = [goal for processes in _PROCESSES for goal in _goals(processes)]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - needs no files
    """One row for each number of processes and kind of change."""
    for processes in _PROCESSES[1:2] if quick else _PROCESSES:
        runs = [move(processes, 10 if quick else 1) for _ in range(repeats)]
        yield _followed(_moving(processes), runs)
    yield _followed(
        by_hand.case(_MOVING, by_hand.BY_HAND),
        [
            by_hand.best(lambda at_once: move(1, 10 if quick else 1, at_once), "least_followed", quick=quick)
            for _ in range(repeats)
        ],
    )
    for processes in () if quick else _PROCESSES:
        runs = [fail(processes) for _ in range(repeats)]
        yield {
            "change": _failing(processes),
            "followed, or over": f"over after {statistics.median(run['over'] for run in runs)} s",
            "refused, or probes": f"{max(run['probes'] for run in runs)} probes a second",
            "runs": runs,
        }


def _followed(change: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    followed = [f"{statistics.median(rates):.2f}" for rates in zip(*(run["followed"] for run in runs), strict=True)]
    refused = statistics.median(run["refused"] for run in runs)
    return {
        "change": change,
        "followed, or over": ", ".join(followed) + " of the quota",
        "refused, or probes": f"{refused:.2%} refused",
        "runs": runs,
    }


def move(processes: int, haste: int = 1, at_once: int | None = None) -> dict[str, Any]:
    """A run with a quota that moves, ``haste`` times as fast; seconds and rates are those of the server."""
    steps = ",".join(f"{since / haste}:{quota}" for since, quota in _MOVES)
    count = sum(quota * 10 for _, quota in _MOVES) // haste // 4 * 4
    counts = _run(steps, count, processes, at_once)
    accepted, refused = (_by_second(counts, status) for status in (200, 429))
    followed = [
        statistics.mean(accepted[int(begin / haste) : max(int((begin + 5) / haste), int(begin / haste) + 1)]) / quota
        for begin, (_, quota) in zip((5, 15, 25), _MOVES, strict=True)
    ]
    return {
        "followed": followed,
        "least_followed": min(followed),
        "refused": sum(refused) / (sum(refused) + sum(accepted)),
    }


def fail(processes: int) -> dict[str, Any]:
    """A run with an outage."""
    begin, end = _OUTAGE
    counts = _run(f"1000,{begin}:0,{end}:1000", 10_000, processes)
    accepted, unheard = (_by_second(counts, status) for status in (200, 503))
    over = next(second for second in range(end, len(accepted)) if accepted[second])
    return {"probes": max(unheard[begin + 1 : end]), "over": over + 1 - end}


def _run(steps: str, count: int, processes: int, at_once: int | None = None) -> dict[str, Any]:
    with serving(steps) as port:
        if run_processes(port, count, processes, at_once=at_once) != count:
            raise AssertionError("predictions are wrong or missing")
        return counted(port)


def _by_second(counts: dict[str, Any], status: int) -> list[int]:
    found = counts["seconds"][str(status)]
    return [found.get(str(second), 0) for second in range(int(counts["last"] - counts["first"]) + 1)]

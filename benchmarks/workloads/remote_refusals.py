"""An endpoint that also refuses at random, as shared services do: Headrace, and a loop by hand with the same client."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elsewhere.quota_server import LATENCY_SECS
from goals import Goal, of, ratios

from workloads.remote import counted, serving

TITLE = "An endpoint that refuses some requests at random"

_QUOTA = 400
_SECS = 20
_CHANCES = (0.0, 0.01, 0.02, 0.05)
_SEMAPHORES = (8, 32, 128)
_OURS, _BY_HAND = "Headrace", "by hand"
_NO_LIMIT = 1_000_000

ABOUT = f"""\
The server of [remote](remote.md), with a latency of {LATENCY_SECS * 1e3:.0f} ms and a quota of {_QUOTA}/s that nobody
is told, refuses a share of all requests at random, too. Both sides are processes of their own and ask with
`httpx2.AsyncClient`, one element a request. The loop by hand has a semaphore of {", ".join(map(str, _SEMAPHORES))}, of
which the best counts, and tries again 0.1 s after a refusal. *Of the quota* is the rate of the answers from the first
request to the last answer; *refused* is what was refused beyond the random share. The sides take turns."""


def _case(chance: float, side: str) -> str:
    return f"{chance:.0%} at random, {side}"


def _beside_hand(chance: float) -> Any:
    ours, by_hand = (of(_case(chance, side), "share") for side in (_OURS, _BY_HAND))
    return lambda results: ratios(ours(results), by_hand(results))


GOALS = [
    goal
    for chance in _CHANCES
    for goal in (
        Goal(f"{chance:.0%} refused at random: rate, Headrace / by hand", _beside_hand(chance), at_least=0.95),
        Goal(f"{chance:.0%} refused at random: refused beyond", of(_case(chance, _OURS), "beyond"), at_most=0.02),
    )
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - needs no files
    """One row for each share and side."""
    count = _QUOTA * (1 if quick else _SECS)
    for chance in _CHANCES[2:3] if quick else _CHANCES:
        runs: dict[str, list[dict[str, float]]] = {_OURS: [], _BY_HAND: []}
        for _ in range(repeats):
            runs[_OURS].append(_run(chance, count))
            by_hand = [_run(chance, count, at_once) for at_once in (_SEMAPHORES[1:2] if quick else _SEMAPHORES)]
            runs[_BY_HAND].append(max(by_hand, key=lambda run: run["share"]))
        for side, some in runs.items():
            yield {
                "requests": _case(chance, side),
                "of the quota": f"{statistics.median(run['share'] for run in some):.3f}",
                "refused": f"{statistics.median(run['beyond'] for run in some):.2%}",
                "runs": some,
            }


def _run(chance: float, count: int, at_once: int | None = None) -> dict[str, float]:
    with serving(_QUOTA, _NO_LIMIT, chance) as port:
        words = map(str, (port, count) if at_once is None else (port, count, at_once))
        command = [sys.executable, "-m", "elsewhere.refused", *words]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
        counts = counted(port)
    assert int(done.stdout) == count, "answers are wrong or missing"
    asked = counts["accepted"] + counts["refused"]
    return {
        "share": count / (counts["last"] - counts["first"]) / _QUOTA,
        "beyond": (counts["refused"] - counts["by_chance"]) / asked,
        "at_once": float(at_once or 0),
    }

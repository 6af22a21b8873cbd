"""An endpoint that also refuses at random, as shared services do: Headrace, and a loop by hand with the same client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from elsewhere.quota_server import LATENCY_SECS
from goals import Goal, of
from measure import HEADRACE

from workloads import by_hand
from workloads.remote import counted, serving

TITLE = "An endpoint that refuses some requests at random"

_QUOTA = 400
_SECS = 20
_CHANCES = (0.0, 0.01, 0.02, 0.05)
_NO_LIMIT = 1_000_000

ABOUT = f"""\
The server of [remote](remote.md), with a latency of {LATENCY_SECS * 1e3:.0f} ms and a quota of {_QUOTA}/s that nobody
is told, refuses a share of all requests at random, too. Both sides are processes of their own and ask with
`httpx2.AsyncClient`, one element a request. {by_hand.ABOUT}, and tries again 0.1 s after a refusal.
*Of the quota* is the rate of the answers from the first request to the last answer; *refused* is what was refused
beyond the random share. The sides take turns."""


def _what(chance: float) -> str:
    return f"{chance:.0%} at random"


def _goals(chance: float) -> list[Goal]:
    refused, what = f"{chance:.0%} refused at random", _what(chance)
    return [
        Goal(f"{refused}: rate, Headrace / by hand", by_hand.beside_hand(what, "share"), at_least=0.95),
        Goal(f"{refused}: refused beyond", of(by_hand.case(what, HEADRACE), "beyond"), at_most=0.02),
    ]


GOALS = [goal for chance in _CHANCES for goal in _goals(chance)]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - needs no files
    """One row for each share and side."""
    count = _QUOTA * (1 if quick else _SECS)
    for chance in _CHANCES[2:3] if quick else _CHANCES:
        run = partial(_run, chance, count)
        for side, runs in by_hand.in_turn(_what(chance), run, "share", repeats, quick=quick):
            yield {
                "requests": side,
                "of the quota": f"{by_hand.middle(runs, 'share'):.3f}",
                "refused": f"{by_hand.middle(runs, 'beyond'):.2%}",
                "runs": runs,
            }


def _run(chance: float, count: int, at_once: int | None) -> by_hand.Run:
    with serving(_QUOTA, _NO_LIMIT, chance) as port:
        right = by_hand.asked("refused", port, count, at_once=at_once)
        counts = counted(port)
    assert right == [str(count)], "answers are wrong or missing"
    asked = counts["accepted"] + counts["refused"]
    return {
        "share": count / (counts["last"] - counts["first"]) / _QUOTA,
        "beyond": (counts["refused"] - counts["by_chance"]) / asked,
        "at_once": float(at_once or 0),
    }

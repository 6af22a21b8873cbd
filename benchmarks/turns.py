"""Whole processes that take turns: their seconds, from start to end, and those of the processes that they start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from goals import Goal, interval, ratio

ELSEWHERE = Path(__file__).parent / "elsewhere"
"""Where the processes run."""
ROUNDS_OF_PEERS = 3
_TRIES_OF_PEERS = 3
"""Daft at times dies of a signal, in the midst or once it has written all."""
_HEADRACE = "import sys; from headrace.cli.main import main; sys.exit(main())"

Command = Sequence[str | Path]


def headrace(*words: str | Path) -> Command:
    """The command ``headrace`` with these arguments."""
    return [sys.executable, "-c", _HEADRACE, *words]


def program(name: str, *words: str | Path) -> Command:
    """A program of the folder elsewhere."""
    return [sys.executable, f"{name}.py", *words]


def way(table: str, side: str) -> str:
    """The name of what a side does with a table."""
    return f"{table}, {side}"


def seconds_beside(what: str, table: str, ours: str, other: str, most: float) -> Goal:
    """How many times another side's seconds ours are at most."""
    figures = ratio(way(table, ours), way(table, other), "seconds")
    return Goal(f"{what}, {table}: seconds, {ours} / {other}", figures, at_most=most)


def take_turns(
    ways: Mapping[str, Command], rounds: int, peers: Collection[str] = ()
) -> dict[str, list[dict[str, float]]]:
    """The seconds and the CPU seconds of each run; peers take part in the first rounds only, and run again if they die.

    Raises:
        RuntimeError: a process failed; has the end of what it said.
    """
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in list(ways)[:: 1 if turn % 2 == 0 else -1]:
            if way not in peers or turn < ROUNDS_OF_PEERS:
                runs[way].append(_run(ways[way], tries=_TRIES_OF_PEERS if way in peers else 1))
                print(f"round {turn + 1}: {way} {runs[way][-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    return runs


def facts(runs: Mapping[str, Sequence[Mapping[str, float]]], rows: int) -> Iterator[dict[str, Any]]:
    """One row for each way, with the ratio of its seconds to those of the first way, round by round."""
    first = next(iter(runs.values()))
    for way, some in runs.items():
        pairs = zip(some, first, strict=False)
        yield {
            "way": way,
            "rows": f"{rows:,}",
            "seconds": str(interval([run["seconds"] for run in some])),
            "CPU seconds": str(interval([run["cpu"] for run in some])),
            "of the first": str(interval([one["seconds"] / other["seconds"] for one, other in pairs])),
            "runs": some,
        }


def _run(command: Command, tries: int) -> dict[str, float]:
    os.sync()  # what another way has written is not written to the disk during this one
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(list(map(str, command)), cwd=ELSEWHERE, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - started, os.times()
    if done.returncode < 0 and tries > 1:
        print(f"died of signal {-done.returncode}, runs again: {command[1]}", file=sys.stderr, flush=True)
        return _run(command, tries - 1)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed: {done.stderr[-2000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "cpu": cpu}

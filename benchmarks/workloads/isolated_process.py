"""What isolation costs a whole Python process: the transformer's pipeline, fresh, for more than a minute."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from elsewhere.encoder import Encoder
from goals import Goal, Results, interval, of, ratio
from outputs import OutputsDifferError

TITLE = "What isolation costs a whole process"

ABOUT = """\
Each run is a Python process of its own: it imports Beam, PyTorch and Headrace, and runs a pipeline of sequences of 64
tokens through the encoder of `transformer`, in batches of 64, on the FnApiRunner. In process and isolated take turns,
and the first one alternates. PyTorch has one thread for each core.

- *wall s*: from the process's start to its end.
- *start s*: to the first prediction, so with all imports, the host's too, and the loading of the model.
- *work s*: from there to the process's end.
- *CPU s*: of the process, its fork server and its host.
- The sum of what is predicted is the same in all runs."""

IN_PROCESS, ISOLATED = "in process", "isolated"

_ROWS, _QUICK_ROWS = 163_840, 256
_MOST_ROUNDS = 3
"""Each takes minutes."""


def _later_start(results: Results) -> list[float]:
    """Seconds by which the first prediction comes later."""
    starts = (of(where, "start")(results) for where in (ISOLATED, IN_PROCESS))
    return [isolated - in_process for isolated, in_process in zip(*starts, strict=True)]


GOALS = [
    Goal("Whole process, wall time: isolated / in process", ratio(ISOLATED, IN_PROCESS, "wall"), at_most=1.1),
    Goal("Work, wall time: isolated / in process", ratio(ISOLATED, IN_PROCESS, "work")),
    Goal("Whole process, CPU time: isolated / in process", ratio(ISOLATED, IN_PROCESS, "cpu")),
    Goal("Start: isolated - in process", _later_start, unit=" s"),
]


@dataclass(frozen=True)
class Run:
    """A process: seconds, and the sum of what it predicted."""

    wall: float
    start: float
    cpu: float
    work: float
    total: float


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each of the two."""
    torch.manual_seed(12345)
    state = folder / "encoder.pt"
    torch.save(Encoder().state_dict(), state)
    rows = _QUICK_ROWS if quick else _ROWS
    runs: dict[str, list[Run]] = {IN_PROCESS: [], ISOLATED: []}
    for number in range(min(repeats, _MOST_ROUNDS)):
        for where in list(runs)[:: 1 if number % 2 == 0 else -1]:
            runs[where].append(run_process(state, rows, where))
            print(f"round {number + 1}: {where} {runs[where][-1].wall:.1f} s", file=sys.stderr)
    check_equal([run.total for some in runs.values() for run in some])
    for where, some in runs.items():
        measured = {"wall s": "wall", "start s": "start", "work s": "work", "CPU s": "cpu"}
        columns = {column: str(interval([getattr(run, name) for run in some])) for column, name in measured.items()}
        every = list(map(asdict, some))
        yield {"model": where, "rows": f"{rows:,}", "processes": str(len(some)), **columns, "runs": every}


def run_process(state: Path, rows: int, where: str) -> Run:
    """Runs a process and measures it.

    Raises:
        OutputsDifferError: not every row has a prediction.
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "elsewhere.whole", str(state), str(rows), where]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_FOLDER, os.environ.get("PYTHONPATH"))))}
    started = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as printed:
        said = printed.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    found = json.loads(said)
    if found["count"] != rows:
        raise OutputsDifferError(f"{rows} rows went in, {found['count']} came out")
    start, cpu = found["first"] - started, usage.ru_utime + usage.ru_stime
    return Run(wall, start, cpu, wall - start, found["total"])


_FOLDER = str(Path(__file__).parents[1])


def check_equal(totals: Sequence[float]) -> None:
    """Compares the sums of predictions.

    Raises:
        OutputsDifferError: they differ by more than floats do that are multiplied in another order.
    """
    if not all(math.isclose(total, totals[0], rel_tol=1e-4, abs_tol=1e-2) for total in totals):
        raise OutputsDifferError(f"predictions add up to {totals}")

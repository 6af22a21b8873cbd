"""What a second worker of ``headrace run`` gains: one file, and a model that computes on one thread for 90 seconds."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from goals import INTERVALS, Goal, interval, ratio
from outputs import OutputsDifferError
from sklearn.ensemble import RandomForestClassifier

TITLE = "headrace run with one worker, with two, and on Beam's runner with two processes"

ABOUT = f"""\
A CSV file of 8 columns goes through a random forest, which computes on one thread. Each run is a process of its own,
from its start to its end (`wall s`), with all of its processes (`CPU s`). The outputs are equal: with two workers byte
by byte, of Beam's runner, which does not keep the order, line by line. The ways take turns, forwards and backwards.

{INTERVALS}"""

ONE, TWO, BEAM = "one worker", "--workers 2", "FnApiRunner, multi_processing, 2"
_OPTIONS = {
    ONE: [],
    TWO: ["--workers", "2"],
    BEAM: ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
}
_ROWS, _TREES, _QUICK_ROWS, _QUICK_TREES = 2_500_000, 1000, 2_000, 10
_MOST_ROUNDS = 5
"""Each takes four minutes."""

GOALS = [
    Goal("One file, a model of one thread: wall time, one worker / two", ratio(ONE, TWO, "wall"), at_least=1.8),
    Goal("One file, a model of one thread: wall time, one worker / Beam's two", ratio(ONE, BEAM, "wall")),
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each way."""
    rows, trees = (_QUICK_ROWS, _QUICK_TREES) if quick else (_ROWS, _TREES)
    rng = np.random.default_rng(7)
    table = rng.normal(size=(rows, 8))
    names = ",".join(f"x{number}" for number in range(8))
    np.savetxt(folder / "rows.csv", table, fmt="%.6f", delimiter=",", header=names, comments="")
    forest = RandomForestClassifier(trees, max_depth=8, random_state=7).fit(table[:2000], table[:2000, 0] > 0)
    (folder / "forest.pkl").write_bytes(pickle.dumps(forest))
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in _OPTIONS}
    for turn in range(min(repeats, _MOST_ROUNDS)):
        for way in list(_OPTIONS)[:: 1 if turn % 2 == 0 else -1]:
            runs[way].append(_run(folder, way))
            print(f"round {turn + 1}: {way} {runs[way][-1]['wall']:.1f} s", file=sys.stderr)
    _compare(folder)
    for way, some in runs.items():
        walls, cpus = (interval([run[name] for run in some]) for name in ("wall", "cpu"))
        yield {"way": way, "rows": f"{rows:,}", "wall s": str(walls), "CPU s": str(cpus), "runs": some}


def _output_of(folder: Path, way: str) -> Path:
    return folder / f"{list(_OPTIONS).index(way)}.jsonl"


def _run(folder: Path, way: str) -> dict[str, float]:
    words = ["run", str(folder / "rows.csv"), "--handler", "sklearn-numpy", "--model", str(folder / "forest.pkl")]
    words += ["--output", str(_output_of(folder, way)), "--no-progress", *_OPTIONS[way]]
    command = [sys.executable, "-c", "from headrace.cli.main import main; import sys; sys.exit(main())", *words]
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - started, os.times()
    if done.returncode:
        raise RuntimeError(f"{way} failed: {done.stderr[-2000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall": wall, "cpu": cpu}


def _compare(folder: Path) -> None:
    one, two, beam = (_output_of(folder, way).read_bytes() for way in _OPTIONS)
    if one != two or sorted(one.splitlines()) != sorted(beam.splitlines()):
        raise OutputsDifferError("the outputs differ")

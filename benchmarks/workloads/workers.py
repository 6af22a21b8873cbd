"""What a second worker of ``headrace run`` gains: one file, and a model that computes on one thread for minutes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.json
import turns
from goals import INTERVALS, Goal, ratio
from outputs import OutputsDifferError
from sklearn.ensemble import RandomForestClassifier

TITLE = "headrace run with one worker, with two, on Beam's runner with two processes, and by hand"

ABOUT = f"""\
A CSV file of 8 columns goes through a random forest, which computes on one thread. Each run is a process of its own,
from its start to its end, with all of its processes. The outputs are equal: with two workers byte by byte, of Beam's
runner, which does not keep the order, line by line. The ways take turns, forwards and backwards.

By hand each process reads its piece of the file with pandas, and the outputs are joined: that shows what this machine
gives a second process. One worker already uses more than a core, since it reads beside the model: at best two take half
of its CPU seconds, and the time to start and to write the output. The lighter the model, the less is left to gain: with
a third of the trees two workers were 1.73 times as fast in a run of 93 seconds.

{INTERVALS}"""

ONE, TWO, BEAM = "one worker", "--workers 2", "FnApiRunner, multi_processing, 2"
HAND, HAND_TWO = "by hand", "by hand, two processes"
_OPTIONS = {
    ONE: [],
    TWO: ["--workers", "2"],
    BEAM: ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
}
_HANDS = HAND, HAND_TWO
_ROWS, _TREES, _QUICK_ROWS, _QUICK_TREES = 3_000_000, 3000, 2_000, 10
_MOST_ROUNDS = 5
"""Each takes five minutes, eleven with the peers."""

GOALS = [
    Goal("One file, a model of one thread: wall time, one worker / two", ratio(ONE, TWO, "seconds"), at_least=1.8),
    Goal("One file, a model of one thread: wall time, one worker / Beam's two", ratio(ONE, BEAM, "seconds")),
    Goal("One file, a model of one thread: wall time, by hand, one process / two", ratio(HAND, HAND_TWO, "seconds")),
    Goal("One file, a model of one thread: wall time, --workers 2 / two by hand", ratio(TWO, HAND_TWO, "seconds")),
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
    ways = {way: _headrace(folder, way) for way in _OPTIONS}
    for processes, way in enumerate(_HANDS, 1):
        words = [folder / "rows.csv", folder / "forest.pkl", _output_of(folder, way), str(processes)]
        ways[way] = turns.program("forest_by_hand", *words)
    runs = turns.take_turns(ways, min(repeats, _MOST_ROUNDS), _HANDS)
    _compare(folder)
    yield from turns.facts(runs, rows)


def _output_of(folder: Path, way: str) -> Path:
    return folder / f"{[*_OPTIONS, *_HANDS].index(way)}.jsonl"


def _headrace(folder: Path, way: str) -> turns.Command:
    words = ["run", folder / "rows.csv", "--handler", "sklearn-numpy", "--model", folder / "forest.pkl"]
    return turns.headrace(*words, "--output", _output_of(folder, way), "--no-progress", *_OPTIONS[way])


def _compare(folder: Path) -> None:
    one, two, beam = (_output_of(folder, way).read_bytes() for way in _OPTIONS)
    if one != two or sorted(one.splitlines()) != sorted(beam.splitlines()):
        raise OutputsDifferError("the outputs differ")
    found = pyarrow.json.read_json(_output_of(folder, ONE))
    if any(not pyarrow.json.read_json(_output_of(folder, way)).equals(found) for way in _HANDS):
        raise OutputsDifferError("the outputs by hand differ")

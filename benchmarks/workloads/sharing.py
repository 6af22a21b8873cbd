"""What the workloads about sharing have in common: pipelines with worker processes, run in turn and measured."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from elsewhere.noting import NOTES
from elsewhere.sharing import OUTPUTS, Plan
from goals import INTERVALS, Figures, Goal, interval, ratio
from measure import BEAM, HEADRACE
from outputs import OutputsDifferError

MB = 10**6

PRIVATE, SHARED = "private", "shared"
"""Variants: a copy for each process, and one for all."""

LIMIT_SECS = float(os.environ.get("HEADRACE_BENCHMARK_LIMIT", "900"))
"""After so long no further round is begun, however many are asked for."""

_LEAST_ROUNDS = 2
_RUN_LIMIT_SECS = 600
"""A run that takes longer is killed."""
_SAMPLING_SECS = 0.5
"""Between two looks at the memory, in runs that are watched."""

PROCEDURE = f"""\
Each run is a pipeline on the FnApiRunner with worker processes, all of it (the user's process, too) in processes of its
own. The variants take turns, forwards and backwards, in rounds; no round is begun after {LIMIT_SECS:.0f} s. Before
that, all run with their memory watched, which takes time, so that nothing else of those runs counts. PyTorch has one
thread in each process. All variants gave equal predictions.

- *rows/s*: while all processes that compute do so, from the last one's first batch to the first one's last.
- *wall s*: from submission to the end, with the start of the workers, their imports, and loading.
- *CPU s*: of all processes, with Python's start and all imports.
- *PSS*: proportional set size of all processes together, of the runs that are watched: the median while all compute,
  and the greatest at any time, of two samples a second.
- *loads*: how often the model was loaded in a run, and how many seconds a load took.
- Ratios are of neighbours in one round.

{INTERVALS}"""


@dataclass(frozen=True)
class Variant:
    """One way to run a workload's pipeline."""

    name: str
    plan: Plan
    """Its folder is filled in for each run."""


class Note(NamedTuple):
    """A line of a run's notes."""

    what: str
    process: int
    count: int
    ns: int


@dataclass(frozen=True)
class Run:
    """What was measured in one run; seconds and bytes."""

    wall: float
    cpu_seconds: float
    rate: float
    """Rows in a second while all processes compute; 0 if they never do so at the same time."""
    whole_rate: float
    """Rows in a second from the first batch's begin to the last one's end."""
    pss: float
    """0 if the memory was not watched; the next one, too."""
    peak_pss: float
    loads: int
    load_seconds: float
    """Of the longest load; 0 where there is none."""
    last_start: float
    """From when the last process asked for its model to the begin of its first batch."""
    left_behind: int


class Runs(NamedTuple):
    """Of a variant; those of two variants at one place are of one round."""

    timed: list[Run]
    watched: list[Run]


def start_goals(model: str, wall: float) -> list[Goal]:
    """What sharing may cost from submission to end: wall time, in units of private copies', and CPU time."""
    return [
        *ratio_goals(f"{model}: wall time, shared / private", (SHARED, PRIVATE), "wall", at_most=wall),
        *ratio_goals(f"{model}: CPU seconds, shared / private", (SHARED, PRIVATE), "cpu_seconds", at_most=1.05),
    ]


def ratio_goals(what: str, variants: tuple[str, str], field: str, **limit: float) -> list[Goal]:
    """About two variants, by a field of their runs."""
    return beside_beam(what, lambda side: ratio(*(f"{side}, {name}" for name in variants), field), **limit)


def beside_beam(what: str, figures: Callable[[str], Figures], unit: str = "", **limit: float) -> list[Goal]:
    """Headrace's goal and, for comparison, the same figures of Beam; ``figures`` takes a side."""
    return [Goal(what, figures(HEADRACE), unit=unit, **limit), Goal(f"{what}, Beam's", figures(BEAM), unit=unit)]


def take_turns(
    variants: Iterable[Variant], folder: Path, rounds: int, tolerance: float = 0.0, watched: int = 1
) -> dict[str, Runs]:
    """Runs all variants that are wanted so many times, or fewer when time is up; before that, some times watched.

    Raises:
        OutputsDifferError: two runs did not predict the same.
        RuntimeError: a run failed.
    """
    started, expected = time.monotonic(), None
    variants = [variant for variant in variants if _is_wanted(variant.name)]
    runs = {variant.name: Runs([], []) for variant in variants}
    for number in range(-watched, rounds):
        if number >= _LEAST_ROUNDS and time.monotonic() - started > LIMIT_SECS:
            break
        for variant in variants[:: 1 if number % 2 == 0 else -1]:
            place = folder / f"{number}-{variants.index(variant)}"
            run, outputs = run_pipeline(variant.plan, place, watch=number < 0)
            expected = expected or outputs
            check_equal(outputs, expected, variant.name, tolerance)
            (runs[variant.name].watched if number < 0 else runs[variant.name].timed).append(run)
            turn = "watched" if number < 0 else f"round {number + 1}"
            print(f"{turn}: {variant.name} {run.wall:.1f} s, {run.rate:.0f} rows/s", file=sys.stderr)
    return runs


def _is_wanted(name: str) -> bool:
    """By the option ``--variants``; a name without a side is Headrace's."""
    wanted = os.environ.get("HEADRACE_BENCHMARK_VARIANTS", "").splitlines()
    return not wanted or name in wanted or name in [f"{HEADRACE}, {one}" for one in wanted]


def run_pipeline(plan: Plan, folder: Path, *, watch: bool = False) -> tuple[Run, dict[int, float]]:
    """What was measured and what was predicted, by row.

    Raises:
        RuntimeError: the pipeline failed; its last words are in the message.
    """
    (folder / "tmp").mkdir(parents=True)
    plan = replace(plan, folder=str(folder))
    (folder / "plan").write_text(json.dumps(asdict(plan)), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "elsewhere.accounting",
        folder / "account",
        str(_RUN_LIMIT_SECS),
        str(_SAMPLING_SECS * watch),
    ]
    command += [sys.executable, "-m", "elsewhere.sharing", folder / "plan"]
    with (folder / "log").open("wb") as log, tempfile.TemporaryDirectory() as runtime:
        environment = _environment(str(folder / "tmp"), runtime)
        subprocess.run(command, env=environment, stdout=log, stderr=log, check=True, stdin=subprocess.DEVNULL)
    account = json.loads((folder / "account").read_text())
    if account["code"] != 0:
        words = (folder / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{plan} ended with {account['code']}: {words}")
    outputs = dict(json.loads(line) for line in (folder / OUTPUTS).read_text().splitlines())
    if len(outputs) != plan.rows:
        raise OutputsDifferError(f"{plan.rows} rows went in, {len(outputs)} came out")
    return evaluate(read_notes(folder), account), outputs


def _environment(temporary: str, runtime: str) -> dict[str, str]:
    """Keeps runs apart: nobody finds a model, or the address of one, that another run has left.

    Args:
        temporary: where Beam keeps addresses.
        runtime: where Headrace does; private, and with a short path.
    """
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])),
        "TMPDIR": temporary,
        "HEADRACE_RUNTIME_DIR": runtime,
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }


def read_notes(folder: Path) -> list[Note]:
    """In the order of their times."""
    lines = [line.split() for line in (folder / NOTES).read_text().splitlines()]
    notes = [Note(what, int(process), int(count), int(ns)) for what, process, count, ns in lines]
    return sorted(notes, key=lambda one: one.ns)


def evaluate(notes: Sequence[Note], account: Mapping[str, Any]) -> Run:
    """A run's figures from what it has noted."""
    at = {what: [one for one in notes if one.what == what] for what in _WHAT}
    batches = find_batches(notes)
    together, whole = find_overlap(batches), (batches[0][1], max(end for *_, end, _ in batches))
    samples = account["samples"] or [(0, 0)]
    computing = [size for ns, size in samples if together[0] <= ns <= together[1]]
    nearest = min(samples, key=lambda sample: abs(sample[0] - sum(together) / 2))[1]
    loads = [(end.ns - start.ns) / 1e9 for start, end in zip(at["loading"], at["loaded"], strict=True)]
    return Run(
        wall=(at["finished"][-1].ns - at["submitted"][0].ns) / 1e9,
        cpu_seconds=account["cpu_seconds"],
        rate=find_rate(batches, *together),
        whole_rate=find_rate(batches, *whole),
        pss=statistics.median(computing or [nearest]),
        peak_pss=max(size for _, size in samples),
        loads=len(loads),
        load_seconds=max(loads, default=0.0),
        last_start=_last_start(notes),
        left_behind=account["left_behind"],
    )


_WHAT = ("submitted", "request", "loading", "loaded", "begun", "ended", "finished")


def find_batches(notes: Sequence[Note]) -> list[tuple[int, int, int, int]]:
    """Process, begin, end and rows of each batch, in order of their begins."""
    ends: dict[int, list[Note]] = {}
    for one in notes:
        if one.what == "ended":
            ends.setdefault(one.process, []).append(one)
    begins = [one for one in notes if one.what == "begun"]
    return [(one.process, one.ns, ends[one.process].pop(0).ns, one.count) for one in begins]


def find_overlap(batches: Sequence[tuple[int, int, int, int]]) -> tuple[int, int]:
    """When all processes compute; its end is before its begin if they never do so at the same time."""
    processes = {process for process, *_ in batches}
    begins = [min(begin for one, begin, *_ in batches if one == process) for process in processes]
    ends = [max(end for one, _, end, _ in batches if one == process) for process in processes]
    return max(begins), min(ends)


def find_rate(batches: Sequence[tuple[int, int, int, int]], since: int, until: int) -> float:
    """Rows in a second; of a batch that was partly in the time given, its part counts. 0 if there is no such time."""
    if since >= until:
        return 0.0
    rows = sum(count * max(0, min(end, until) - max(begin, since)) / (end - begin) for _, begin, end, count in batches)
    return rows / (until - since) * 1e9


def _last_start(notes: Sequence[Note]) -> float:
    """From the last request to its process's first batch; or to anybody's next one, where hosts compute."""
    requests: dict[int, int] = {}
    for one in notes:
        if one.what == "request":
            requests.setdefault(one.process, one.ns)
    process, asked = max(requests.items(), key=lambda pair: pair[1])
    begins = [one for one in notes if one.what == "begun" and one.ns > asked]
    own = [one.ns for one in begins if one.process == process]
    return (min(own or [one.ns for one in begins]) - asked) / 1e9


def check_equal(ours: Mapping[int, float], theirs: Mapping[int, float], name: str, tolerance: float) -> None:
    """Compares predictions.

    Raises:
        OutputsDifferError: they differ by more than the tolerance, absolute or relative to the larger one.
    """
    gaps = [abs(ours[row] - theirs[row]) / max(1.0, abs(theirs[row])) for row in theirs]
    if ours.keys() != theirs.keys() or max(gaps) > tolerance:
        raise OutputsDifferError(f"{name}: predictions differ by up to {max(gaps):g}")


def row(name: str, runs: Runs) -> dict[str, Any]:
    """A line of the workload's table, with every single run for the programs."""
    timed, watched = runs
    return {
        "variant": name,
        "runs": [asdict(run) for run in timed],
        "watched": [asdict(run) for run in watched],
        "rounds": str(len(timed)),
        "rows/s": str(interval([run.rate for run in timed])),
        "wall s": str(interval([run.wall for run in timed])),
        "CPU s": str(interval([run.cpu_seconds for run in timed])),
        "PSS MB": f"{statistics.median(run.pss for run in watched) / MB:,.0f}" if watched else "",
        "greatest PSS MB": f"{max(run.peak_pss for run in watched) / MB:,.0f}" if watched else "",
        "loads": f"{statistics.median(run.loads for run in timed):g}",
        "load s": f"{statistics.median(run.load_seconds for run in timed):.2f}",
        "left behind": str(max(run.left_behind for run in (*timed, *watched))),
    }


def both_sides(variants: Mapping[str, Plan]) -> Iterator[Variant]:
    """Each variant with either ``RunInference``."""
    for side in (HEADRACE, BEAM):
        for name, plan in variants.items():
            yield Variant(f"{side}, {name}", replace(plan, side=side))

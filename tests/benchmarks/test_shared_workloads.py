"""The workloads about sharing measure what they claim, on real pipelines with worker processes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

pytestmark = pytest.mark.large


@pytest.fixture
def sharing(benchmark_module):
    return benchmark_module("workloads.sharing")


def make_run(sharing, **figures):
    zeros = dict.fromkeys(sharing.Run.__dataclass_fields__, 1.0)
    return sharing.Run(**{**zeros, "loads": 1, "left_behind": 0, **figures})


def test_pipelines_run_in_processes_of_their_own(sharing, tmp_path):
    """On both sides, of a model in plain Python; the second process asks once the first one has begun."""
    plan = sharing.Plan("Headrace", "elsewhere.counter:CounterHandler", "", 128, 16, 2, {"steps": 2000})
    meeting = replace(plan, one_after_another=True)
    ours, theirs = replace(meeting, options={"large_model": True}), replace(meeting, side="Beam")
    with ThreadPoolExecutor() as pool:
        run = partial(sharing.run_pipeline, watch=True)
        done = list(pool.map(run, [ours, theirs], [tmp_path / "0", tmp_path / "1"]))

    for run, outputs in done:
        assert outputs == done[0][1]
        assert run.rate > 0
        assert 0 < run.last_start < run.wall
        assert run.cpu_seconds > 1
        assert run.pss > 50 * sharing.MB
        assert run.left_behind == 0
    assert [run.loads for run, _ in done] == [1, 2]
    for folder in ("0", "1"):
        first, second = find_starts(sharing.read_notes(tmp_path / folder))
        assert first["begun"] < second["request"] < second["begun"]


def find_starts(notes):
    """When each worker process asked and when it began, in the order of their starts."""
    starts = {}
    for one in notes:
        if one.what in ("request", "begun"):
            starts.setdefault(one.process, {}).setdefault(one.what, one.ns)
    return sorted(starts.values(), key=lambda start: start["begun"])


def notes(sharing, *lines):
    return [sharing.Note(what, process, count, int(seconds * 1e9)) for what, process, count, seconds in lines]


def test_rates_cover_the_time_when_all_processes_compute(sharing):
    found = sharing.find_batches(
        notes(
            sharing,
            *[("begun", 1, 10, 0), ("ended", 1, 10, 2), ("begun", 2, 10, 1), ("begun", 1, 10, 2)],
            *[("ended", 1, 10, 4), ("ended", 2, 10, 6)],
        )
    )
    assert sharing.find_overlap(found) == (1e9, 4e9)
    assert sharing.find_rate(found, int(1e9), int(4e9)) == pytest.approx((5 + 10 + 6) / 3)
    assert sharing.find_rate(found, 0, int(6e9)) == pytest.approx(5)
    apart = [(1, 0, 1, 10), (2, 2, 3, 10)]
    assert sharing.find_rate(apart, *sharing.find_overlap(apart)) == 0


def test_a_run_is_evaluated(sharing):
    lines = [
        ("submitted", 9, 0, 0),
        ("request", 1, 0, 1),
        ("loading", 1, 0, 1),
        ("loaded", 1, 0, 3),
        ("begun", 1, 8, 3),
    ]
    lines += [("request", 2, 0, 4), ("begun", 2, 8, 4.5), ("ended", 1, 8, 7), ("ended", 2, 8, 8), ("finished", 9, 0, 9)]
    samples = [(int(5e9), 100), (int(6e9), 300), (int(8e9), 900)]
    run = sharing.evaluate(notes(sharing, *lines), {"samples": samples, "cpu_seconds": 7.5, "left_behind": 0})
    assert (run.wall, run.cpu_seconds, run.loads, run.load_seconds) == (9, 7.5, 1, 2)
    assert (run.pss, run.peak_pss) == (200, 900)
    assert run.last_start == 0.5


@pytest.fixture
def judged(sharing, benchmark_module):
    """The lines about the goals of a workload, from runs of its variants, on either side alike."""

    def judge(name, **runs):
        module = benchmark_module(f"workloads.sharing_{name}")
        found = {
            f"{side}, {getattr(module, name)}": sharing.Runs([run], [run])
            for side in ("Headrace", "Beam")
            for name, run in runs.items()
        }
        found["no model"] = sharing.Runs([make_run(sharing)], [make_run(sharing, pss=1e9)])
        facts = [{**sharing.row(name, one), "model_bytes": 2e9} for name, one in found.items()]
        return benchmark_module("goals").render(module.GOALS, {"facts": facts})

    return judge


def test_goals_compare_sharing_with_copies(sharing, judged):
    """And two copies with one."""
    fast, slow = (
        make_run(sharing, **dict.fromkeys(("rate", "whole_rate", "wall", "cpu_seconds"), n)) for n in (200.0, 100.0)
    )

    lines = judged("classifier", PRIVATE=fast, SHARED=slow)
    assert "wall time, shared / private: 0.5 (0.5 to 0.5), rounds: 1; the goal is at most 1.05: reached." in lines
    assert "rows/s, shared / private: 0.5 (0.5 to 0.5), rounds: 1; the goal is at least 0.98: **missed**." in lines
    assert "rows/s, shared / private, Beam's: 0.5 (0.5 to 0.5), rounds: 1." in lines
    assert "wall time, shared / private: 2 (2 to 2), rounds: 1; the goal is at most 1: **missed**." in judged(
        "loading", PRIVATE=slow, SHARED=fast
    )
    assert "two copies / one: 2 (2 to 2), rounds: 1; the goal is at least 1.8: reached." in judged(
        "copies", ONE=slow, TWO=fast
    )


def test_goals_about_memory_leave_out_what_processes_take_without_a_model(sharing, judged):
    """One copy is 2 GB; without a model two processes take 1 GB."""
    shared = make_run(sharing, pss=3.2e9, peak_pss=5e9)
    lines = judged("transformer", PRIVATE=shared, SHARED=shared, ONE_BY_ONE=make_run(sharing, last_start=0.1))
    assert "start: 0.1 (0.1 to 0.1) s, rounds: 1; the goal is at most 0.15 s: reached." in lines
    assert "beside one copy: 100 (100 to 100) MB, rounds: 1; the goal is at most 50 MB: **missed**." in lines
    assert "in copies: 2 (2 to 2), rounds: 1; the goal is at most 1.15: **missed**." in lines

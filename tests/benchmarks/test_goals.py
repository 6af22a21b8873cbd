"""Goals are judged by the interval of what was measured, and the table of them says exactly that."""

import json
import logging
import random
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def goals(benchmark_module):
    return benchmark_module("goals")


@pytest.fixture
def run(benchmark_module):
    return benchmark_module("run")


@pytest.mark.parametrize(
    ("figures", "least", "greatest"),
    [([3.0], 3, 3), ([1, 2, 3, 4, 5, 6], 1, 6), ([7, 1, 6, 2, 5, 3, 4], 2, 6), (range(1, 16), 5, 11)],
)
def test_intervals_leave_out_outliers_from_seven_figures_on(goals, figures, least, greatest):
    assert goals.interval(figures)[1:3] == (least, greatest)


@pytest.mark.parametrize("count", [4, 5, 7, 10, 15])
def test_an_interval_has_the_true_median_in_it_seven_times_of_eight(goals, count):
    rng = random.Random(count)
    found = [goals.interval([rng.gauss(0, 1) for _ in range(count)]) for _ in range(2000)]
    assert sum(one.least <= 0 <= one.greatest for one in found) / len(found) > 7 / 8 - 0.02


@pytest.mark.parametrize(
    ("values", "verdict"), [((0.99, 1.0), "reached"), ((0.9, 0.97), "**missed**"), ((0.9, 1.0), "undecided")]
)
def test_a_goal_within_the_interval_is_undecided(goals, values, verdict):
    found = goals.interval(values)
    assert goals.Goal("rows/s", None, at_least=0.98).verdict(found) == verdict
    opposite = {"reached": "**missed**", "**missed**": "reached"}.get(verdict, verdict)
    assert goals.Goal("ms", None, at_most=0.98).verdict(found) == opposite


CASES = {
    "cases": [
        {"name": "small", "runs": {"Headrace": [{"seconds": 1.0}, {"seconds": 3.0}], "Beam": [{"seconds": 2.0}] * 2}}
    ],
    "machine": {"date": "2026-01-02 03:04 UTC", "CPU": "Abacus", "cores": "2", "memory": "1.0 GiB"},
}
FACTS = {
    "facts": [
        {"way": "one", "runs": [{"ms": 20.0, "rate": 0.0}] * 2},
        {"way": "two", "runs": [{"ms": 10.0}, {"ms": 40.0}]},
    ],
    "machine": {**CASES["machine"], "cores": "4"},
}


@pytest.fixture
def stated(goals):
    """Goals of three workloads."""
    return {
        "timed": [goals.Goal("time beside Beam", goals.ratio_of_sides("small"), at_most=0.4)],
        "found": [
            goals.Goal("a way", goals.of("one", "ms"), at_most=20, unit=" ms"),
            goals.Goal("its ratio", goals.ratio("one", "two", "ms"), at_least=0.5),
            goals.Goal("for comparison", goals.of("two", "ms"), unit=" ms"),
            goals.Goal("a new field", goals.of("two", "s"), at_most=1),
            goals.Goal("nothing", goals.ratio("one", "one", "rate"), at_most=1),
        ],
        "new": [goals.Goal("not run yet", goals.of("one", "ms"), at_least=2, at_most=3)],
    }


def test_the_table_says_what_the_results_say(goals, stated, tmp_path):
    for name, results in (("timed", CASES), ("found", FACTS)):
        (tmp_path / f"{name}.json").write_text(json.dumps(results))

    assert goals.table(stated, tmp_path).splitlines() == [
        "| what | goal | figure | interval | rounds | verdict | measured | workload |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| time beside Beam | at most 0.4 | 1 | 0.5 to 1.5 | 2 | **missed** "
        "| 2026-01-02 03:04 UTC, Abacus, 2 cores, 1.0 GiB | [timed](results/timed.md) |",
        "| a way | at most 20 ms | 20 ms | 20 ms to 20 ms | 2 | reached "
        "| 2026-01-02 03:04 UTC, Abacus, 4 cores, 1.0 GiB | [found](results/found.md) |",
        "| its ratio | at least 0.5 | 1.25 | 0.5 to 2 | 2 | reached "
        "| 2026-01-02 03:04 UTC, Abacus, 4 cores, 1.0 GiB | [found](results/found.md) |",
        "| a new field | at most 1 |  |  |  | not measured |  | [found](results/found.md) |",
        "| nothing | at most 1 |  |  |  | not measured |  | [found](results/found.md) |",
        "| not run yet | at most 3 and at least 2 |  |  |  | not measured |  | new |",
    ]


@pytest.fixture
def commands(run, goals, stated, monkeypatch, tmp_path):
    """Runs the command in a folder of its own, on a workload whose results are given; returns what files there are."""
    (tmp_path / "README.md").write_text(f"{goals.BEGIN}\n{goals.END}\n")
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(run, "README", tmp_path / "README.md")
    monkeypatch.setattr(run, "WORKLOADS", ["timed"])
    monkeypatch.setattr(run, "collect", lambda: stated)
    monkeypatch.setattr(run, "_run", lambda *_: ("a page", CASES))
    monkeypatch.setattr(logging.getLogger(), "level", logging.getLogger().level)
    monkeypatch.setenv("HEADRACE_BENCHMARK_VARIANTS", "")  # set by the command; what it was comes back

    def command(*arguments):
        run.main(arguments)
        return {file.name: file.read_text() for file in tmp_path.rglob("*.*")}

    return command


@pytest.mark.parametrize("option", [["--quick"], ["--variants", "private"]])
def test_what_measures_only_a_part_writes_nothing(commands, option):
    before = commands("--quick", "--only", "timed")
    assert commands("--only", "timed", *option) == before
    assert list(before) == ["README.md"]


def test_what_measures_everything_writes_the_table(commands, goals, stated, tmp_path, capsys):
    written = commands("--only", "timed")
    assert written["timed.md"] == "a page\n"
    assert json.loads(written["timed.json"]) == CASES
    table = goals.table(stated, tmp_path / "results")
    assert "0.5 to 1.5" in table
    assert written["README.md"] == f"{goals.BEGIN}\n{table}\n{goals.END}\n"
    assert capsys.readouterr().out == f"a page\n\n{table}\n"


@pytest.mark.large
def test_the_readmes_table_is_that_of_the_results(goals, run):
    collected = run.collect()
    assert sum(map(len, collected.values())) > 20
    text = (BENCHMARKS / "README.md").read_text()
    assert goals.with_table(text, goals.table(collected, BENCHMARKS / "results")) == text

"""The rules that say what held a run back, and what to do about it."""

from typing import Any

import pytest

from headrace.metrics.verdict import advice, verdict


def figures(**changes: Any) -> dict[str, Any]:
    usual = {
        "wall": {"sampled_seconds": 10.0, "busy_seconds": {"model": 8.0, "reading": 1.0}},
        "timeline": {"cpu_seconds": [10.0], "throttled_seconds": [0.0]},
        "batch_sizes": [],
        "failures": 0,
        "causes": [],
        "usage": {},
        "cores": 1,
        "workers": 1,
        "keeps_one_worker": False,
        "formats": ["csv"],
        "columnar": False,
        "seconds": 12.0,
        "phases": {"imports": 1.0, "loading": 0.5, "rows": 10.0, "writing": 0.5},
    }
    return usual | changes


def size(size: int, batches: int, rate: float) -> dict[str, Any]:
    return {"size": size, "batches": batches, "rows": size * batches, "seconds": size * batches / rate}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "Model-bound 80%; no dead letters."),
        ({"failures": 14, "causes": [{"count": 12}]}, "Model-bound 80%; 14 dead letters, 12 of one cause."),
        ({"failures": 1, "causes": [{"count": 1}]}, "Model-bound 80%; 1 dead letter."),
        ({"failures": None}, "Model-bound 80%."),
        (
            {"wall": {"sampled_seconds": 10.0, "busy_seconds": {"waiting for a batch": 9.0, "reading": 8.9}}},
            "Bound by reading 89%; no dead letters.",
        ),
        (
            {"wall": {"sampled_seconds": 10.0, "busy_seconds": {"waiting for the quota": 9.0}}},
            "Waiting for the quota 90%; no dead letters.",
        ),
        (
            {"phases": {"imports": 3.0, "loading": 4.0, "rows": 2.5, "writing": 0.5}},
            "Start and loading took 70%; no dead letters.",
        ),
        ({"usage": {"m": {}}, "batch_sizes": [size(8, 10, 50.0)]}, "Model-bound 80%; no dead letters."),
        (
            {"wall": {"sampled_seconds": 10.0, "busy_seconds": {"waiting for answers": 9.0}}},
            "Waiting for answers 90%; no dead letters.",
        ),
        (
            {"wall": {"sampled_seconds": 10.0, "busy_seconds": {"model": 3.0}}},
            "No phase took half of the time; no dead letters.",
        ),
        ({"wall": {"sampled_seconds": 0.0, "busy_seconds": {}}}, "No dead letters."),
        (
            {"batch_sizes": [size(8, 10, 50.0), size(64, 10, 100.0)]},
            "Model-bound 80%; batches of 36 on average were 90% of the best; no dead letters.",
        ),
        ({"batch_sizes": [size(1, 10, 50.0)]}, "Model-bound 80%; no dead letters."),
    ],
)
def test_one_sentence_says_what_held_it_back(changes: dict[str, Any], sentence: str) -> None:
    assert verdict(figures(**changes)) == sentence


def test_larger_batches_are_advised_by_what_they_took() -> None:
    sizes = [size(8, 50, 50.0), size(64, 10, 400.0), size(128, 1, 9000.0)]
    (one,) = advice(figures(batch_sizes=sizes))
    assert one.option == "--min-batch-size 64 --max-batch-size 64"
    assert one.basis == "measured"
    seconds = sum(each["seconds"] for each in sizes)
    assert one.gain_seconds == pytest.approx(seconds - sum(each["rows"] for each in sizes) / 400.0)


def test_idle_cores_ask_for_workers() -> None:
    (one,) = advice(figures(cores=4))
    assert one.option == "--workers 4"
    assert one.gain_seconds == pytest.approx(10 * 0.75 - 1.5)
    assert advice(figures(cores=4, workers=4)) == []
    assert advice(figures(cores=4, keeps_one_worker=True)) == []
    assert advice(figures(cores=4, usage={"m": {}})) == []


def test_the_greatest_gain_comes_first_and_small_ones_are_left_out() -> None:
    wall = {"sampled_seconds": 10.0, "busy_seconds": {"reading": 9.0}}
    line = {"cpu_seconds": [10.0], "throttled_seconds": [0.1]}
    found = advice(figures(wall=wall, cores=2, timeline=line))
    assert ["Parquet" in one.text for one in found] == [True, False]
    assert "quota" not in " ".join(one.text for one in found)
    line = {"cpu_seconds": [10.0], "throttled_seconds": [6.0]}
    assert "quota" in advice(figures(timeline=line, usage={"m": {}}))[0].text


def test_a_run_that_was_interrupted_gets_no_advice_without_gain() -> None:
    assert advice(figures(cores=2, seconds=None, phases=None)) == []

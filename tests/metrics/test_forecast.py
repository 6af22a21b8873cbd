"""Forecasts from the figures of pilots: rates, seconds, and intervals of money that hold."""

import math
import random
from typing import Any

import pytest

from headrace.core.events import BatchCompleted, ElementFailed, UsageReported, WorkSampled
from headrace.core.result import Stage
from headrace.metrics.forecast import QUOTA, evened, forecast, machines, mean_interval, steady_rate
from headrace.metrics.report import report_figures
from headrace.metrics.timeline import Timeline

SEEDS = 20


class Pilot:
    """A timeline under a clock that stands still, and the figures of its report."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timeline = Timeline(lambda: self.now, began=0.0)

    def work(self, seconds: float, rate: float) -> None:
        """Batches of a tenth of a second."""
        for _ in range(round(10 * seconds)):
            self.timeline.on_event(BatchCompleted("", round(rate / 10), 0, 0.1))
            self.now += 0.1

    def figures(self, **facts: Any) -> dict[str, Any]:
        return report_figures({"command": "run", "exit_code": 0, "exit_reason": "done", **facts}, self.timeline)


@pytest.mark.parametrize(
    ("seen", "stopped", "rate"),
    [
        ([0, 0, 3, 20, 40, 60, 100, *[200, 190, 210] * 8, 50], math.inf, 400),
        ([0, *[300, 310, 290] * 3, *[50, 49, 51] * 10], math.inf, 100),
        ([*[0] * 15, 1, 6, 24, 32, 64, 128, 0, 256, 0, 0, 512, *[0, 0, 0, 1024] * 2, 19], math.inf, 512),
        ([0, *[50] * 20, 30, 20, 10, 5, 1], 10.5, 100),
    ],
    ids=["after a warm-up", "behind the burst of a bucket", "of batches that double", "until the last row was read"],
)
def test_the_rate_is_that_of_the_steady_part(seen: list[float], stopped: float, rate: float) -> None:
    assert steady_rate(seen, 0.5, stopped).rate.middle == pytest.approx(rate, rel=0.02)


def test_rows_before_the_steady_part_are_counted() -> None:
    steady = steady_rate([0, 0, 3, 20, 40, 60, 100, *[200, 190, 210] * 8, 50], 0.5)
    assert steady.rate.low < 400 < steady.rate.high < 480
    assert (steady.until, steady.rows) == (15.5, 223 + 4800)
    steady = steady_rate([0, *[300, 310, 290] * 3, *[50, 49, 51] * 10], 0.5)
    left = steady.until + (100_000 - steady.rows) / steady.rate.middle
    assert left == pytest.approx(20 + (100_000 - 4200) / 100, rel=0.01)


def test_few_large_batches_have_a_wide_interval() -> None:
    steady = steady_rate([0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 100], 1.0)
    assert steady.rate.low < 100 / 7 < steady.rate.high
    assert steady_rate([0, 7], 1.0).rate == (7, 3.5, 14)


def test_the_interval_is_as_wide_as_the_halves_of_the_steady_part_differ() -> None:
    steady = steady_rate([0, 1, *[20, 180, 20, 180, 20, 180], *[80, 240, 80, 240, 80, 240], 50], 1.0)
    assert steady.rate.middle - steady.rate.low >= 60 <= steady.rate.high - steady.rate.middle


def test_a_run_takes_its_start_and_its_rows() -> None:
    pilot = Pilot()
    pilot.now = 4.0
    pilot.work(20.0, 1000)
    pilot.timeline.on_event(WorkSampled(1, 20.0, {"model": 15.0}, 20.0, {"memory": 123}))
    found = forecast(pilot.figures(rows=20_000, failures=0, phases={"loading": 1.5, "writing": 0.2}), 1_000_000)
    assert found["seconds"] == pytest.approx(4 + 1000 + 10, rel=0.01)
    assert found["seconds_low"] < found["seconds"] < found["seconds_high"] < 1.1 * found["seconds"]
    assert (found["rows"], found["load_seconds"], found["memory_bytes"]) == (1_000_000, 1.5, 123)
    assert found["start_seconds"] == pytest.approx(4, abs=0.2)
    assert found["binds"] == "model-bound 75%"
    assert found["money"] is found["tokens_in_high"] is None
    assert machines(found, 100.0) == 11
    assert (machines(found, 2000.0), machines(found, 3.0)) == (1, None)


def test_more_machines_do_not_help_against_a_quota() -> None:
    pilot = Pilot()
    pilot.work(10.0, 100)
    pilot.timeline.on_event(WorkSampled(1, 10.0, {}, 1.0, {"memory": 1}))
    found = forecast(pilot.figures(), 10_000)
    assert found["binds"] != QUOTA
    assert machines(found, 20.0) == 5
    assert machines({**found, "binds": QUOTA}, 20.0) is None


def test_a_pilot_without_rows_says_nothing_about_time() -> None:
    found = forecast(Pilot().figures(), 100)
    assert found["seconds"] is found["seconds_low"] is found["money"] is None


def test_dead_letters_take_time_too() -> None:
    pilot = Pilot()
    for _ in range(100):
        pilot.timeline.on_event(ElementFailed(Stage.INFERENCE, ValueError()))
        pilot.now += 0.1
    found = forecast(pilot.figures(rows=100, failures=100), 1000)
    assert found["dead_letters"] == 1
    assert found["seconds"] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("requests", [100, 2000])
def test_the_interval_of_money_holds_what_came_in_nine_of_ten_runs(requests: int) -> None:
    """Answers have lognormal lengths with sigma 1; the run is ten times as long as its pilot."""
    held, widths = 0, []
    for seed in range(SEEDS):
        drawn = random.Random(seed)
        pilot = Pilot()
        pilot.work(1.0, requests)
        for length in answers(drawn, requests):
            pilot.timeline.on_event(UsageReported("m", 50, length, cost=length * 1e-3))
        cost = pilot.timeline.figures()["timeline"]["cost"]
        tokens = {"input_tokens": 50 * requests, "output_tokens": round(1e3 * sum(cost))}
        usage = {"m": {"requests": requests, **tokens, "cost": sum(cost)}}
        found = forecast(pilot.figures(rows=requests, usage=usage, cost=sum(cost)), 10 * requests)
        came = sum(answers(drawn, 10 * requests)) * 1e-3
        held += found["money_low"] <= came <= found["money_high"]
        widths.append(found["money_high"] / found["money_low"])
        assert found["tokens_in"] == found["tokens_in_low"] == found["tokens_in_high"] == 500 * requests
        assert found["tokens_out_high"] == pytest.approx(1e3 * found["money_high"], rel=0.01)
    assert held >= 0.9 * SEEDS
    assert sorted(widths)[SEEDS // 2] < (2 if requests == 100 else 1.2)


def test_rows_that_are_sorted_together_count_together() -> None:
    falling = [8, 8, 16, 32, 64, 128, 256]
    assert evened([0, *falling, *falling, 8, 0], 512) == [0, *[512 / 7] * 14]
    assert evened([3, 4], 0) == evened([3, 4], 8) == [3, 4]
    assert evened([0, 1000, 24, 0, 512], 512) == [0, 1000, 24, 256, 256]
    pilot = Pilot()
    for size in falling * 2:
        pilot.timeline.on_event(BatchCompleted("", size, 0, 1.0))
        pilot.now += 1.0
    found = [forecast(pilot.figures(rows=1024, sorted_rows=together), 10_240)["seconds"] for together in (512, 0)]
    assert found[0] == pytest.approx(140, rel=0.05)
    part = forecast(pilot.figures(rows=1024, sorted_rows=2000), 10_240)
    assert part["seconds_low"] < 0.6 * part["seconds"] < 1.2 * part["seconds"] < part["seconds_high"]
    assert abs(found[0] - 140) < abs(found[1] - 140)


def answers(drawn: random.Random, count: int) -> list[int]:
    return [round(drawn.lognormvariate(5, 1)) for _ in range(count)]


def test_the_mean_of_equal_values_is_sure_and_that_of_one_is_not() -> None:
    assert mean_interval([3.0] * 9) == (1, 1)
    assert mean_interval([0.0, 0.0]) == (1, 1)
    low, high = mean_interval([5.0])
    assert low == 0
    assert high >= 10

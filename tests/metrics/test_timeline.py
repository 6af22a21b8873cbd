"""A timeline keeps what happened when, in a table of bounded size."""

import json

import pytest

from headrace.core.events import BatchCompleted, CacheUsed, ElementFailed, UsageReported, WorkSampled
from headrace.core.result import Stage
from headrace.metrics.timeline import Timeline


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rows_stand_where_they_came(clock: Clock) -> None:
    timeline = Timeline(clock)
    timeline.on_event(BatchCompleted("", 8, 64, 0.25))
    clock.now = 1.2
    timeline.on_event(BatchCompleted("", 4, 64, 0.25, useful=6, padded=8))
    timeline.on_event(CacheUsed("", 3, 0))
    timeline.on_event(ElementFailed(Stage.INFERENCE, ValueError()))
    timeline.on_event(UsageReported("m", 5, 2, cost=0.5))
    figures = timeline.figures()
    line = figures["timeline"]
    assert (line["bin_seconds"], line["rows"], line["batches"]) == (0.5, [8, 0, 7], [1, 0, 1])
    assert (line["failed"], line["tokens"], line["cost"]) == ([0, 0, 1], [0, 0, 7], [0, 0, 0.5])
    assert figures["padding"] == {"useful": 6, "padded": 8}
    assert json.loads(json.dumps(figures)) == figures


def test_a_long_run_has_wider_bins_and_the_same_sums(clock: Clock) -> None:
    timeline = Timeline(clock)
    for second in range(10_000):
        clock.now = float(second)
        timeline.on_event(BatchCompleted("", 1, 1, 0.5))
    line = timeline.figures()["timeline"]
    assert sum(line["rows"]) == 10_000
    assert len(line["rows"]) <= 240
    assert line["bin_seconds"] * len(line["rows"]) == pytest.approx(10_000, rel=0.02)


def test_samples_of_processes_add_up(clock: Clock) -> None:
    timeline = Timeline(clock)
    clock.now = 1.0
    timeline.on_event(WorkSampled(3, 1.0, {}, 0.0, {}))  # of a process that only hands out work
    timeline.on_event(WorkSampled(1, 1.0, {"model": 0.8, "reading": 0.5}, 0.9, {"memory": 100, "quota": 5.0}))
    timeline.on_event(WorkSampled(2, 1.0, {"model": 0.4}, 0.6, {"memory": 50, "quota": 4.0, "in_flight": 3}))
    figures = timeline.figures()
    assert figures["wall"] == {"sampled_seconds": 2.0, "busy_seconds": {"model": 1.2, "reading": 0.5}}
    assert sum(figures["timeline"]["cpu_seconds"]) == pytest.approx(1.5, abs=1e-3)
    line = figures["timeline"]
    assert [max(line[name]) for name in ("memory", "quota", "in_flight")] == [150, 5.0, 3]
    assert timeline.recent() == pytest.approx({"model": 0.6, "reading": 0.25})


def test_a_host_of_several_processes_counts_once(clock: Clock) -> None:
    timeline = Timeline(clock)
    for second in range(1, 4):
        clock.now = float(second)
        for process in (1, 2):
            hosts = {7: (100 + 0.5 * second, 1000), 8 + process: (0.25 * second, 10)}
            timeline.on_event(WorkSampled(process, 1.0, {"model": 1.0}, 0.125, {"memory": 100}, hosts))
    line = timeline.figures()["timeline"]
    assert sum(line["cpu_seconds"]) == pytest.approx(6 * 0.125 + 2 * 0.5 + 4 * 0.25, abs=1e-2)
    assert line["memory"][-1] == 200 + 1000 + 20


def test_batches_are_grouped_by_size_and_latencies_have_quantiles(clock: Clock) -> None:
    timeline = Timeline(clock)
    for size in (1, 1, 30, 1000, 1010):
        timeline.on_event(BatchCompleted("", size, 0, size / 1000))
    sizes = timeline.figures()["batch_sizes"]
    assert [(one["size"], one["batches"], one["rows"]) for one in sizes] == [(1, 2, 2), (30, 1, 30), (1024, 2, 2010)]
    latency = timeline.figures()["latency"]
    assert latency["p50"] == pytest.approx(0.03, rel=0.03)
    assert latency["longest"] == 1.01
    assert latency["p99"] == pytest.approx(1.01, rel=0.03)

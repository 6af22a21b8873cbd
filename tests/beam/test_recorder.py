"""Metric updates that are recorded outside a bundle, and replayed in one, give the same as updates in the bundle."""

from __future__ import annotations

import contextlib
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import apache_beam as beam
import cloudpickle
import pytest
from apache_beam.internal.metrics.metric import Metrics as InternalMetrics
from apache_beam.metrics import Metrics
from apache_beam.metrics.cells import DistributionCell
from apache_beam.metrics.execution import MetricsEnvironment
from apache_beam.metrics.metric import MetricResults
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from hypothesis import given
from hypothesis import strategies as st

from headrace.beam.recorder import BeamRecorder, MetricReplay, values_of_summary
from headrace.core.events import HandlerMetric
from headrace.runtime.observers import EngineMetrics

AT_IMPORT = Metrics.counter("made", "at_import")


class Handler:
    """Has metrics as attributes, as handlers do."""

    def __init__(self):
        self.seen = Metrics.counter("handler", "seen")
        self.lengths = Metrics.distribution("handler", "lengths")

    def work(self):
        self.seen.inc(2)
        self.lengths.update(9)


def counters():
    Metrics.counter("n", "up").inc()
    Metrics.counter("n", "up").inc(6)
    Metrics.counter("n", "down").dec(3)
    Metrics.counter("n", "up and down").inc(0)
    AT_IMPORT.inc()


def distributions():
    values = Metrics.distribution("n", "values")
    for value in (7, -12, 0, 5, 5, 2.9):
        values.update(value)
    Metrics.distribution("n", "one").update(-4)
    for time in (10**18, 3 * 10**18, 9 * 10**18, 4 * 10**18):  # nanoseconds since 1970: their sum overflows
        Metrics.distribution("n", "times").update(time)


def gauges_and_strings():
    for value in (3, 8, -2):
        Metrics.gauge("n", "level").set(value)
    for value in ("b", "a", "b"):
        Metrics.string_set("n", "labels").add(value)


def pickled():
    cloudpickle.loads(cloudpickle.dumps(Handler())).work()


def refused():
    Metrics.counter("n", "up").inc()
    Metrics.distribution("n", "refused").update("many")


def refused_gauge():
    Metrics.gauge("n", "level").set("low")


WORK = [counters, gauges_and_strings, pickled, refused, refused_gauge, distributions, lambda: None, gauges_and_strings]
"""Pieces, each of which is recorded on its own."""


def recorded(call):
    """Its records, without a bundle."""
    with contextlib.suppress(TypeError, ValueError), BeamRecorder().recording() as records:
        call()
    return records


@pytest.fixture
def recorder():
    """A recorder in this process; before and after the test the metrics of the process are emptied."""
    recorder = BeamRecorder()
    with recorder.recording():
        pass
    yield recorder
    with recorder.recording():
        pass


def called(_, calls):
    for call in calls:
        with contextlib.suppress(TypeError, ValueError):
            call()


def replaying(pieces):
    return [partial(MetricReplay().on_event, record) for records in pieces for record in records]


def metrics_of(calls):
    """Those of a bundle in which functions are called."""
    pipeline = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | beam.Create([1], reshuffle=False) | beam.Map(called, calls)
    result = pipeline.run()
    result.wait_until_finish()
    found = {}
    for kind, metrics in result.metrics().query().items():
        for metric in metrics:
            value = metric.committed.value if kind == MetricResults.GAUGES else metric.committed
            found[kind, metric.key.metric.namespace, metric.key.metric.name] = value
    return found


@pytest.mark.large
def test_replay_gives_the_metrics_of_a_bundle():
    expected = metrics_of(WORK)
    assert expected.pop(("distributions", "n", "refused")).count == 0  # an empty one is not replayed
    pieces = list(map(recorded, WORK))
    assert b"apache_beam" not in pickle.dumps(pieces)
    assert metrics_of(replaying(pieces)) == expected


def counter_of_the_process():
    InternalMetrics.counter("urn:calls", {"status": "ok"}, process_wide=True).inc(2)


def metrics_of_the_process():
    counter_of_the_process()
    Metrics.gauge("process", "level", process_wide=True).set(5)
    for value in (3, -1, 10):
        Metrics.distribution("process", "sizes", process_wide=True).update(value)


def counted_for_the_process():
    """The values that tests counted for this process, without other metrics and times."""
    cells = MetricsEnvironment.process_wide_container().metrics
    counted = {str(key.metric_name): cell.get_cumulative() for key, cell in cells.items()}
    return {
        name: getattr(value, "value", value) for name, value in counted.items() if "process" in name or "urn:" in name
    }


@pytest.mark.parametrize(
    ("count", "metrics"),
    [
        (counter_of_the_process, 1),
        pytest.param(
            metrics_of_the_process,
            3,
            marks=pytest.mark.since_beam("2.73", reason="only counters can count for the process before"),
        ),
    ],
)
def test_metrics_of_the_process_are_recorded_from_all_threads(recorder, count, metrics):
    """Runners report them for the process, not for the step."""
    count()
    expected = counted_for_the_process()
    assert len(expected) == metrics
    with recorder.recording() as earlier:
        pass
    with recorder.recording() as records, ThreadPoolExecutor(1) as pool:
        pool.submit(count).result()
    assert records == earlier
    assert len(records) == metrics
    assert counted_for_the_process() == {}
    assert metrics_of(replaying([records])) == {}
    assert counted_for_the_process() == expected


def test_recordings_within_a_bundle_and_within_each_other_are_separate():
    """As when a model loads during a batch; and neither the thread nor the bundle keeps a trace."""

    def calls():
        Metrics.counter("n", "before").inc()
        with BeamRecorder().recording() as outer:
            Metrics.counter("n", "outer").inc()
            with BeamRecorder().recording() as inner:
                Metrics.counter("n", "inner").inc()
            Metrics.counter("n", "outer").inc()
        assert [(record.name, record.value) for record in (*outer, *inner)] == [("outer", 2), ("inner", 1)]
        Metrics.counter("n", "after").inc()

    assert metrics_of([calls]) == {("counters", "n", "before"): 1, ("counters", "n", "after"): 1}


def test_threads_record_separately_with_the_recorder_of_the_entry_point():
    both = threading.Barrier(2)

    def work(name):
        with EngineMetrics().recording() as records:
            both.wait()
            Metrics.counter("n", name).inc(3)
            both.wait()
        return records

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, "ab")) == [[HandlerMetric("counter", "n", name, 3)] for name in "ab"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_values_of_a_summary_have_the_same_summary(values):
    given, made = DistributionCell(), DistributionCell()
    for value in values:
        given.update(value)
    data = given.get_cumulative()
    for value in values_of_summary(data.count, data.sum, data.min, data.max):
        made.update(value)
    assert made.get_cumulative() == data

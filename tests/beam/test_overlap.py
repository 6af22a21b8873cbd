"""Batches on a second thread: the handler's own metrics, timestamps and windows are the same."""

from __future__ import annotations

import threading

from apache_beam.metrics import Metrics
from apache_beam.transforms.window import SlidingWindows

from headrace import BatchingConfig
from headrace.beam import RunInference
from headrace.runtime import background
from pipelines import by_second
from toys import Acting, Always


def count(batch):
    """Counts calls and their sizes; fails for 5."""
    assert threading.current_thread().name.startswith("headrace-model")
    Metrics.counter("own", "calls").inc()
    Metrics.distribution("own", "sizes").update(len(batch))
    if 5 in batch:
        raise ValueError("5")
    return [example * 10 for example in batch]


def test_metrics_timestamps_and_windows_are_the_same_on_a_second_thread(run, monkeypatch):
    monkeypatch.setattr(background, "AdaptiveOverlap", Always)
    rows = by_second(run, "Rows", [(n, n) for n in range(20)], SlidingWindows(10, 5))
    handler = Acting(count).with_postprocess_fn(lambda value: value + 1)
    good, failed = rows | RunInference(handler, batching=BatchingConfig(4, 4)).with_exception_handling()
    found, dead = run.collect(good=good, dead=failed.failed_inferences)
    starts = range(-5, 20, 5)
    expected = [(n * 10 + 1, n, (s, s + 10)) for n in range(20) if n != 5 for s in starts if s <= n < s + 10]
    assert sorted(found) == expected
    assert [record[0] for record, *_ in dead] == [[5], [5]]
    sizes = run.metrics()["own", "sizes"]
    assert sizes.count == run.metrics()["own", "calls"]
    assert (sizes.min, sizes.max) == (1, 4)
    assert sizes.sum > 20

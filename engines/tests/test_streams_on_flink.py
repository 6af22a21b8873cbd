"""Streams on a Flink cluster: windows, newer models without a pause, and restarts from a checkpoint."""

from __future__ import annotations

import pytest
from play import run
from streams_on_flink import act, engine


@pytest.mark.parametrize("kind", ["windows", "refresh", "restart"])
def test_a_stream_comes_out_right(cluster, kind):
    report = run(kind, engine(cluster), act(kind, cluster))
    assert report.problems == [], str(report)

"""Streams on a Flink cluster: each element in its window, what comes late, and a restart from a checkpoint."""

from __future__ import annotations

import pytest
from play import run
from streams_on_flink import act, engine


@pytest.mark.parametrize("kind", ["windows", "restart"])
def test_a_stream_comes_out_right(cluster, kind):
    report = run(kind, engine(cluster), act(kind, cluster))
    assert report.problems == [], str(report)

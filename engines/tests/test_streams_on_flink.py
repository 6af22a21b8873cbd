"""Streams on a Flink cluster: one goes on from its last checkpoint, and nothing is lost."""

from __future__ import annotations

import pytest
from play import run
from streams_on_flink import act, engine


@pytest.mark.parametrize("kind", ["restart", "refresh", "watched"])
def test_a_stream_comes_out_right(cluster, kind):
    report = run(kind, engine(cluster, kind), act(kind, cluster))
    assert report.problems == [], str(report)

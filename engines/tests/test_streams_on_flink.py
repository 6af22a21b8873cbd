"""Streams on a Flink cluster: windows, late elements, model updates without a pause, restart from a checkpoint."""

from __future__ import annotations

import pytest
from play import run
from streams_on_flink import KINDS, act, engine


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_predicted_right_on_flink(cluster, kind):
    report = run(kind, engine(cluster, kind), act(kind, cluster))
    assert report.problems == [], str(report)

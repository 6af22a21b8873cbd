"""Streams on Prism: each element in its window, however it waits, and what comes late. Needs Go, no Java."""

from __future__ import annotations

import play
import prism
from play import Engine

PRISM = Engine("Prism", prism.pipeline_options, lambda result: result.cancel())


def test_a_stream_comes_out_right():
    report = play.run("windows", PRISM, play.windows)
    assert report.problems == [], str(report)

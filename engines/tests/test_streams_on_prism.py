"""Streams on Prism: each element in its window, what comes late, and newer models without a pause. Needs no Java."""

from __future__ import annotations

import play
import prism
import pytest
import stream
from play import Engine

PRISM = Engine("Prism", prism.pipeline_options, lambda result: result.cancel(), news=stream.news_in_windows)
KINDS = sorted(play.ACTS.keys() - {"arguments"})
"""Prism shows a side input in windows only to what comes after their end."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_comes_out_right(kind):
    report = play.run(kind, PRISM, play.ACTS[kind])
    assert report.problems == [], str(report)

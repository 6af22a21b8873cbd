"""Streams on Prism: each element in its window, late elements, model updates without a pause. Needs no Java."""

from __future__ import annotations

import play
import prism
import pytest
import stream
from play import Engine

pytestmark = pytest.mark.usefixtures("on_prism")

PRISM = Engine("Prism", prism.pipeline_options, lambda result: result.cancel(), news=stream.news_in_windows)
KINDS = sorted(play.ACTS.keys() - {"arguments"})
"""Prism shows a side input in windows only to what comes after their end."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_predicted_right_on_prism(kind):
    report = play.run(kind, PRISM, play.ACTS[kind])
    assert report.problems == [], str(report)

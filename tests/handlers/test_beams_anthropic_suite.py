"""Beam's own suite for its handler of Anthropic's models, on Headrace's handler and transform."""

from __future__ import annotations

import pytest

from beam_compat import beams_suites

pytestmark = [pytest.mark.large, pytest.mark.filterwarnings("ignore")]

MOVED = {
    "apache_beam.ml.inference.anthropic_inference": "headrace.handlers.anthropic_inference",
    "from apache_beam.ml.inference.base import PredictionResult": "from headrace import PredictionResult",
    "from apache_beam.ml.inference.base import RunInference": "from headrace.beam import RunInference",
}
globals().update(beams_suites("anthropic_inference", MOVED))

"""Beam's own unit tests of its handlers for Gemini and Vertex AI, on Headrace's handlers."""

from __future__ import annotations

import pytest

from beam_compat import beams_suites

pytestmark = pytest.mark.filterwarnings("ignore")

for _name in ("gemini_inference", "vertex_ai_inference"):
    globals().update(beams_suites(_name, {f"apache_beam.ml.inference.{_name}": f"headrace.handlers.{_name}"}))


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)

"""Every handler says what it predicts."""

from __future__ import annotations

import importlib

import pytest

from headrace import PredictionResult
from headrace.core.declared_type import declared_prediction_type
from headrace.handlers.cards import CARDS

pytestmark = pytest.mark.large  # imports every framework


ELSEWHERE = ("kserve_inference", "vertex_ai_inference")
"""Their clients are in an environment of their own, as are their tests."""


@pytest.mark.parametrize("name", [name for name in CARDS if name.partition(".")[0] not in ELSEWHERE])
def test_handler_declares_results(name):
    module, _, cls = name.rpartition(".")
    handler = object.__new__(getattr(importlib.import_module(f"headrace.handlers.{module}"), cls))
    assert declared_prediction_type(handler) is PredictionResult

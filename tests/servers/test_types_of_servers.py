"""Handlers that need an environment of their own say what they predict, as all others do."""

from __future__ import annotations

import pytest

from headrace import PredictionResult
from headrace.core.declared_type import declared_prediction_type
from headrace.handlers.kserve_inference import KServeModelHandler
from headrace.handlers.vertex_ai_inference import VertexAIModelHandlerJSON


@pytest.mark.parametrize("handler_class", [KServeModelHandler, VertexAIModelHandlerJSON])
def test_handler_declares_results(handler_class):
    assert declared_prediction_type(object.__new__(handler_class)) is PredictionResult

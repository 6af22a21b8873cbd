"""TensorRT's handler, as far as it goes without a GPU: its arguments, its errors, and what fits an engine."""

from __future__ import annotations

import numpy
import pytest
from apache_beam.ml.inference import tensorrt_inference as incumbent

from headrace import ConfigurationError, MissingExtraError, PredictionCountError, PredictionResult
from headrace.handlers.tensorrt_inference import TensorRTEngine, TensorRTEngineHandlerNumPy, to_feed, to_rows
from headrace.testing import nearly_equal

FIXED = {"name": "x", "dtype": numpy.float32, "shape": [4, 3]}, (4, 3)
VARYING = {"name": "x", "dtype": numpy.float32, "shape": [8, 3]}, (-1, 3)
ROWS = [numpy.full(3, n, dtype=numpy.float64) for n in range(1, 4)]


def test_handler_takes_beams_arguments(accepts_all_of):
    theirs = incumbent.TensorRTEngineHandlerNumPy
    accepts_all_of(TensorRTEngineHandlerNumPy, theirs, "min_batch_size", "max_batch_size")


def test_batch_too_small_for_a_fixed_engine_is_padded():
    fed = to_feed(ROWS, *FIXED)
    assert fed.dtype == numpy.float32
    assert nearly_equal(fed, numpy.stack([*ROWS, numpy.zeros(3)]).astype(numpy.float32))


def test_dynamic_engine_gets_the_batch_unpadded():
    assert nearly_equal(to_feed(ROWS, *VARYING), numpy.stack(ROWS).astype(numpy.float32))


@pytest.mark.parametrize(("batch", "tensor"), [(ROWS * 2, FIXED), (ROWS * 3, VARYING), ([numpy.ones(2)], VARYING)])
def test_examples_of_another_shape_are_named(batch, tensor):
    with pytest.raises(ValueError, match=r"input 'x' has the shape .* examples of shape \(\d,\) do not fit"):
        to_feed(batch, *tensor)


def test_predictions_are_rows_in_memory_of_their_own():
    outputs = [numpy.arange(4.0), numpy.arange(8.0).reshape(4, 2)]
    rows = to_rows(outputs, 2)
    assert nearly_equal(rows, [[0.0, numpy.array([0.0, 1.0])], [1.0, numpy.array([2.0, 3.0])]])
    assert not numpy.shares_memory(rows[1][1], outputs[1])


def test_an_output_without_rows_is_an_error():
    with pytest.raises(PredictionCountError, match=r"shape \(1,\) has no row for each of 2 examples"):
        to_rows([numpy.ones(1)], 2)


@pytest.mark.parametrize("paths", [{}, {"engine_path": "a", "onnx_path": "b"}], ids=["none", "both"])
def test_exactly_one_path_is_needed(paths):
    with pytest.raises(ConfigurationError, match="either an engine_path or an onnx_path"):
        TensorRTEngineHandlerNumPy(1, 2, **paths)


def test_missing_tensorrt_is_named_with_the_extra():
    for path in ("engine_path", "onnx_path"):
        with pytest.raises(MissingExtraError, match=r'tensorrt is not installed; .*pip install .*"tensorrt>='):
            TensorRTEngineHandlerNumPy(1, 2, **{path: "model"}).load_model()
    with pytest.raises(MissingExtraError, match="tensorrt is not installed"):
        TensorRTEngine(None)


def test_inference_args_are_refused():
    handler = TensorRTEngineHandlerNumPy(1, 2, engine_path="model.plan")
    handler.validate_inference_args(None)
    with pytest.raises(ValueError, match=r"leave \['x'\] out"):
        handler.validate_inference_args({"x": 1})


def test_model_path_update_loads_another_file():
    for path in ("engine_path", "onnx_path"):
        handler = TensorRTEngineHandlerNumPy(1, 2, **{path: "first"})
        handler.update_model_path("second")
        handler.update_model_path(None)
        assert getattr(handler, path) == "second"


def test_results_name_the_file_that_answered():
    for paths in ({"engine_path": "model.plan"}, {"onnx_path": "model.onnx"}):
        handler = TensorRTEngineHandlerNumPy(1, 2, inference_fn=answering_one, **paths)
        assert [result.model_id for result in handler.run_inference(ROWS, None)] == list(paths.values()) * len(ROWS)


def answering_one(batch, engine, inference_args=None):
    return [PredictionResult(example, 1) for example in batch]

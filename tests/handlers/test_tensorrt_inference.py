"""TensorRT's handler, as far as it goes without a GPU: its arguments, its errors, and what fits an engine."""

from __future__ import annotations

import numpy
import pytest
from apache_beam.ml.inference import tensorrt_inference as incumbent

from beam_compat import assert_accepts
from headrace import ConfigurationError, MissingExtraError, PredictionCountError, PredictionResult
from headrace.handlers.tensorrt_inference import TensorRTEngine, TensorRTEngineHandlerNumPy, to_feed, to_rows
from headrace.testing import nearly_equal

FIXED = {"name": "x", "dtype": numpy.float32, "shape": [4, 3]}, (4, 3)
VARYING = {"name": "x", "dtype": numpy.float32, "shape": [8, 3]}, (-1, 3)
ROWS = [numpy.full(3, n, dtype=numpy.float64) for n in range(1, 4)]


def test_handler_takes_beams_arguments():
    assert_accepts(TensorRTEngineHandlerNumPy, incumbent.TensorRTEngineHandlerNumPy, "min_batch_size", "max_batch_size")


def test_batch_is_padded_for_a_fixed_engine_only():
    stacked = numpy.stack(ROWS).astype(numpy.float32)
    assert nearly_equal(to_feed(ROWS, *FIXED), numpy.concatenate([stacked, numpy.zeros((1, 3), numpy.float32)]))
    assert nearly_equal(to_feed(ROWS, *VARYING), stacked)


@pytest.mark.parametrize(("batch", "tensor"), [(ROWS * 2, FIXED), (ROWS * 3, VARYING), ([numpy.ones(2)], VARYING)])
def test_examples_of_another_shape_are_named(batch, tensor):
    with pytest.raises(ValueError, match=r"input 'x' has the shape .* examples of shape \(\d,\) do not fit"):
        to_feed(batch, *tensor)


def test_predictions_are_rows_in_memory_of_their_own():
    outputs = [numpy.arange(4.0), numpy.arange(8.0).reshape(4, 2)]
    rows = to_rows(outputs, 2)
    assert nearly_equal(rows, [[0.0, numpy.array([0.0, 1.0])], [1.0, numpy.array([2.0, 3.0])]])
    assert not numpy.shares_memory(rows[1][1], outputs[1])
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


@pytest.mark.parametrize("path", ["engine_path", "onnx_path"])
def test_results_name_the_file_that_answered(path):
    handler = TensorRTEngineHandlerNumPy(
        1, 2, inference_fn=lambda batch, engine, args: [PredictionResult(one, 1) for one in batch], **{path: "first"}
    )
    for given, found in ((None, "first"), ("second", "second"), (None, "second")):
        handler.update_model_path(given)
        assert getattr(handler, path) == found
        assert [result.model_id for result in handler.run_inference(ROWS, None)] == [found] * len(ROWS)

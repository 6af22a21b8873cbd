"""ONNX models, made from scikit-learn or by hand, predict as a session does and as with Beam's handler."""

from __future__ import annotations

from pathlib import Path

import numpy
import onnx
import onnxruntime
import pandas
import pytest
from apache_beam.ml.inference import onnx_inference as incumbent
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_tensor_value_info as value_info
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from beam_compat import BeamCompatContract, ColumnsContract
from headrace import ConfigurationError, Failure, predict
from headrace.handlers.onnx_inference import OnnxModelHandlerNumpy
from headrace.testing import HandlerContract, nearly_equal
from toys import ODD_ARRAYS, infer, inferences

RNG = numpy.random.default_rng(7)
FEATURES = RNG.normal(size=(40, 3)).astype(numpy.float32)
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
ARRAYS = list(FEATURES[:6])
CPU = ["CPUExecutionProvider"]


@pytest.fixture(scope="module")
def classifier_uri(folder):
    """Two outputs: labels, and a probability for each of two classes."""
    model = LogisticRegression().fit(FEATURES, LABELS)
    path = folder / "classifier.onnx"
    path.write_bytes(to_onnx(model, FEATURES[:1], options={"zipmap": False}).SerializeToString())
    return str(path)


WEIGHT = RNG.normal(size=(3, 2)).astype(numpy.float32)


def model_of(nodes, inputs, output, weights=()) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    graph = helper.make_graph(nodes, "graph", inputs, [output], weights)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def scaled_product() -> onnx.ModelProto:
    """``inputs @ WEIGHT * scale``, where the second input ``scale`` is 1 unless given."""
    one = numpy_helper.from_array(numpy.ones(1, dtype=numpy.float32), "scale")
    nodes = [
        helper.make_node("MatMul", ["inputs", "weight"], ["product"]),
        helper.make_node("Mul", ["product", "scale"], ["out"]),
    ]
    inputs = [value_info("inputs", TensorProto.FLOAT, ["n", 3]), value_info("scale", TensorProto.FLOAT, [1])]
    weights = [one, numpy_helper.from_array(WEIGHT, "weight")]
    return model_of(nodes, inputs, value_info("out", TensorProto.FLOAT, ["n", 2]), weights)


@pytest.fixture(scope="module")
def product_uri(folder):
    onnx.save(scaled_product(), folder / "product.onnx")
    return str(folder / "product.onnx")


def wide_batches(session, batch, inference_args=None):
    labels, probabilities = session.run(None, {"X": numpy.stack(batch)})
    return {"label": labels, "yes": probabilities[:, 1] * (inference_args or {}).get("factor", 1)}


def single_thread() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return options


class TestContract(BeamCompatContract, ColumnsContract):
    frame = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])
    bad_example = numpy.zeros(2, dtype=numpy.float32)
    beams_model_id = False
    odd_examples = ODD_ARRAYS
    examples = ARRAYS
    inference_args = {"scale": numpy.array([2], dtype=numpy.float32)}

    def handler(self, product_uri):
        return OnnxModelHandlerNumpy(product_uri, max_batch_size=4)

    def beams(self, product_uri):
        return incumbent.OnnxModelHandlerNumpy(product_uri, providers=CPU)


class TestContractWithOptions(HandlerContract):
    bad_example = "no array"
    examples = ARRAYS

    def handler(self, classifier_uri):
        return OnnxModelHandlerNumpy(classifier_uri, single_thread, CPU, [{}], inference_fn=wide_batches)

    def test_several_outputs_are_a_dict_for_each_example(self, handler):
        (first, *_) = infer(handler, ARRAYS, {"factor": 10})
        (expected, *_) = infer(handler, ARRAYS)
        assert first.inference.keys() == {"label", "yes"}
        assert nearly_equal(first.inference["yes"], 10 * expected.inference["yes"])


def test_provider_outside_a_list_is_refused(product_uri):
    with pytest.raises(ConfigurationError, match=r"must be a list: \['CUDAExecutionProvider'\]"):
        OnnxModelHandlerNumpy(product_uri, providers="CUDAExecutionProvider")


@pytest.mark.parametrize("options", [single_thread, single_thread()], ids=["made", "given"])
def test_session_options_are_an_object_or_a_function(product_uri, options):
    handler = OnnxModelHandlerNumpy(product_uri, options)
    assert handler.load_model().get_session_options().intra_op_num_threads == 1
    assert nearly_equal(inferences(predict(handler, ARRAYS)), list(FEATURES[:6] @ WEIGHT))


def test_external_weights_are_found_and_uris_opened(folder, product_uri):
    path = folder / "split.onnx"
    onnx.save(scaled_product(), path, save_as_external_data=True, location="split.data", size_threshold=0)
    assert (folder / "split.data").exists()
    results = infer(OnnxModelHandlerNumpy(str(path)), ARRAYS)
    assert nearly_equal(inferences(results), list(FEATURES[:6] @ WEIGHT))
    assert OnnxModelHandlerNumpy(Path(product_uri).as_uri()).load_model()


@pytest.mark.parametrize("size", [1, 4])
def test_model_of_a_fixed_batch_size_takes_any_batch(folder, size):
    model = scaled_product()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = size
    onnx.save(model, folder / f"of-{size}.onnx")
    handler = OnnxModelHandlerNumpy(folder / f"of-{size}.onnx")
    session = handler.load_model()
    for count in (1, 3, 4, 6):
        results = list(handler.run_inference(ARRAYS[:count], session))
        assert nearly_equal(inferences(results), list(FEATURES[:count] @ WEIGHT))


def test_ids_from_a_file_fit_a_model_of_integers(tmp_path):
    table = numpy_helper.from_array(WEIGHT, "table")
    ids = value_info("ids", TensorProto.INT64, ["n", "length"])
    node = helper.make_node("Gather", ["table", "ids"], ["out"])
    onnx.save(model_of([node], [ids], value_info("out", TensorProto.FLOAT, None), [table]), tmp_path / "m.onnx")
    handler = OnnxModelHandlerNumpy(tmp_path / "m.onnx", min_batch_size=3, max_batch_size=3)
    rows = [handler.example_from_row(row) for row in ({"a": 2, "b": "0"}, {"a": 1.5, "b": 0}, {"a": "1.0", "b": 2})]
    good, bad, also_good = predict(handler, rows, on_failure="yield")
    assert nearly_equal([good.inference, also_good.inference], [WEIGHT[[2, 0]], WEIGHT[[1, 2]]])
    assert "the model takes int64, which cannot hold" in str(bad.error)


def mixed_inputs():
    """A text, an integer and a float make a float: whether the text is "b", plus both numbers."""
    kinds = {"city": TensorProto.STRING, "age": TensorProto.INT64, "income": TensorProto.FLOAT}
    codes = {"keys_strings": ["b"], "values_floats": [1.0]}
    nodes = [
        helper.make_node("LabelEncoder", ["city"], ["code"], domain="ai.onnx.ml", **codes),
        helper.make_node("Cast", ["age"], ["years"], to=TensorProto.FLOAT),
        helper.make_node("Sum", ["code", "years", "income"], ["out"]),
    ]
    inputs = [value_info(name, kind, ["n", 1]) for name, kind in kinds.items()]
    return model_of(nodes, inputs, value_info("out", TensorProto.FLOAT, ["n", 1]))


@pytest.fixture(scope="module")
def mixed_uri(folder):
    path = folder / "mixed.onnx"
    path.write_bytes(mixed_inputs().SerializeToString())
    return str(path)


def test_columns_are_inputs_of_any_type(mixed_uri):
    handler = OnnxModelHandlerNumpy(mixed_uri, columns_are_inputs=True)
    rows = [{"age": 20, "city": "b", "income": 0.5}, {"income": 1, "age": 30, "city": "long"}]
    examples = [handler.example_from_row(row) for row in rows]
    assert [result.inference.tolist() for result in predict(handler, examples)] == [[21.5], [31.0]]
    assert handler.get_num_bytes(examples) > 0


def test_an_input_that_does_not_fit_fails_alone(mixed_uri):
    handler = OnnxModelHandlerNumpy(mixed_uri, columns_are_inputs=True)
    good = {"age": 20, "city": "b", "income": 0.5}
    examples = [handler.example_from_row(row) for row in (good, {**good, "age": 0.5}, good, {**good, "city": 7})]
    outcomes = list(predict(handler, examples, on_failure="yield"))
    assert [isinstance(outcome, Failure) for outcome in outcomes] == [False, True, False, True]
    assert str(outcomes[1].error).startswith("input 'age': the model takes int64, which cannot hold 0.5;")
    assert str(outcomes[3].error).startswith("input 'city': the model takes texts, and an example is of int64;")
    with pytest.raises(ValueError, match="column 'age' holds None"):
        handler.example_from_row({**good, "age": None})

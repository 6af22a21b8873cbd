"""An ONNX file is read as ONNX Runtime reads it: the names and shapes of its inputs, without weights."""

from __future__ import annotations

import numpy
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.core.errors import ConfigurationError
from headrace.core.model_files import ModelFile
from headrace.handlers.model_recognition import onnx as recognise


def model_of(inputs, weights=(), listed=True):
    """The sum of the inputs; old models list their weights among these."""
    names = [name for name, *_ in inputs]
    tensors = [numpy_helper.from_array(numpy.ones(1, numpy.float32), name) for name in weights]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs]
    if listed:
        values += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in weights]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Sum", [*names, *weights], ["out"])], "sum", values, [out], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    ("inputs", "columns", "width"),
    [
        ([("x", ["n", 3])], None, 3),
        ([("x", [None, 3])], None, 3),
        ([("x", ["n", "m"])], None, None),
        ([("x", ["n", 3, 32, 32])], None, None),
        ([("x", None)], None, None),
        ([("age", ["n", 1]), ("Größe", ["n", 1])], ("age", "Größe"), None),
    ],
)
def test_inputs_are_columns_or_have_a_width(tmp_path, inputs, columns, width, listed):
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(inputs, ["weight"], listed).SerializeToString())
    known = recognise(ModelFile(str(path)))
    assert (known.handler, known.columns, known.width) == ("onnx-numpy", columns, width)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert f"{len(session.get_inputs())} input" in known.what


def test_large_fields_are_passed_over(tmp_path):
    model = model_of([("x", ["n", 3])])
    model.graph.initializer.append(numpy_helper.from_array(numpy.zeros(100_000, numpy.float32), "large"))
    model.doc_string = "d" * 1000
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert recognise(ModelFile(str(path))).width == 3


@pytest.mark.parametrize("content", [b"", b"\x08\x07 nothing", b"\xff" * 40, b"{}"])
def test_a_damaged_file_is_a_mistake(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="it cannot be read as ONNX: "):
        recognise(ModelFile(str(path)))


def test_integers_have_an_end_in_a_file_of_another_format(tmp_path):
    """Else the time for a large file is the square of its size."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08" + b"\x80" * 10 + b"\x01")
    with pytest.raises(ConfigurationError, match="it is damaged"):
        recognise(ModelFile(str(path)))

"""Files of all frameworks but scikit-learn say which handler runs them, and which columns they want."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile

import numpy
import onnx
import onnxruntime
import pandas
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace import predict
from headrace.core.errors import ConfigurationError
from headrace.core.model_files import ModelFile
from headrace.handlers import model_recognition
from large import tensorflow, torch, xgboost


def known(kind, path):
    return getattr(model_recognition, kind)(ModelFile(str(path)))


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
def test_inputs_of_onnx_are_columns_or_have_a_width(tmp_path, inputs, columns, width, listed):
    path = tmp_path / "model.onnx"
    model = model_of(inputs, ["weight"], listed)
    model.graph.initializer.append(numpy_helper.from_array(numpy.zeros(100_000, numpy.float32), "large"))
    model.doc_string = "d" * 1000
    onnx.save(model, path)
    found = known("onnx", path)
    assert (found.handler, found.columns, found.width) == ("onnx-numpy", columns, width)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert (f"{len(session.get_inputs())} inputs" in found.what) is (columns is not None)


ENDLESS = b"\x08" + b"\x80" * 10 + b"\x01"
"""An integer of so many bytes that the time for a large file would be the square of its size."""


@pytest.mark.parametrize("content", [b"", b"\x08\x07 nothing", b"\xff" * 40, b"{}", ENDLESS])
def test_a_damaged_file_of_onnx_is_a_mistake(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="it cannot be read as ONNX: "):
        known("onnx", path)


@pytest.mark.parametrize(
    ("shapes", "width"), [([[None, 3]], 3), ([[None, None]], None), ([[None, 8, 8, 1]], None), ([[None, 1]] * 2, None)]
)
def test_a_file_of_keras_has_a_width_or_columns(tmp_path, shapes, width):
    inputs = [{"batch_shape": shape, "name": name} for shape, name in zip(shapes, "ab", strict=False)]
    layers = [{"class_name": "InputLayer", "config": config} for config in inputs]
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("config.json", json.dumps({"config": {"layers": [*layers, {"class_name": "Dense"}]}}))
    found = known("tensorflow", tmp_path / "model.keras")
    assert (found.handler, found.width) == ("tensorflow-numpy", width)
    if len(shapes) > 1:
        assert (found.arguments, found.columns) == ({"columns_are_inputs": True}, ("a", "b"))
        assert found.what == "a model of Keras with 2 inputs"


@pytest.mark.large
def test_what_keras_saves_has_a_width_or_columns(tmp_path):
    keras = tensorflow.keras
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "saved", verbose=False)
    assert [known("tensorflow", tmp_path / name).width for name in ("model.keras", "saved")] == [3, 3]
    inputs = [keras.Input((1,), name="age"), keras.Input((1,), name="income")]
    keras.Model(inputs, keras.layers.Add()(inputs)).export(tmp_path / "several", verbose=False)
    found = known("tensorflow", tmp_path / "several")
    assert (found.arguments, set(found.columns)) == ({"columns_are_inputs": True}, {"age", "income"})


def known_of(folder, settings, *others):
    (folder / "config.json").write_text(json.dumps(settings))
    for name in others:
        (folder / name).write_text("[]")
    return known("huggingface", folder)


@pytest.mark.parametrize(
    ("architecture", "handler", "arguments", "takes"),
    [
        ("BertForSequenceClassification", "huggingface-pipeline", {"task": "text-classification"}, "text"),
        ("ViTForImageClassification", "huggingface-pipeline", {"task": "image-classification"}, "text"),
        ("Qwen2ForCausalLM", "huggingface-generation", {}, "rows"),
        ("GPT2LMHeadModel", "huggingface-generation", {}, "rows"),
    ],
)
def test_the_architecture_decides(tmp_path, architecture, handler, arguments, takes):
    found = known_of(tmp_path, {"architectures": [architecture], "model_type": "some"})
    assert (found.handler, found.arguments, found.takes) == (handler, arguments, takes)
    assert architecture in found.what


def test_folders_of_sentence_transformers_and_of_others(tmp_path):
    for settings in ({"architectures": ["BertModel"]}, {"model_type": "bert"}):
        with pytest.raises(ConfigurationError, match="--handler-arg task=TASK"):
            known_of(tmp_path, settings)
    assert known_of(tmp_path, {"name": "nothing"}) is known_of(tmp_path, [1]) is None
    found = known_of(tmp_path, {"architectures": ["BertModel"]}, "modules.json")
    assert (found.handler, found.takes) == ("sentence-transformer", "text")


FRAME = pandas.DataFrame({"age": [20, 30, 40, 50] * 5, "Größe": [1.5, 2.0, 1.0, 3.0] * 5})
ODD = FRAME.rename(columns={"age": 'a "quoted" \\ name', "Größe": "}, {"})
LABELS = numpy.array([0, 0, 1, 1] * 5)
CLASSES = ["XGBClassifier", "XGBRegressor", "XGBRanker", "Booster"]


def fitted(cls, rows):
    if cls == "Booster":
        return xgboost.train({}, xgboost.DMatrix(rows, LABELS), 2)
    options = {"qid": numpy.zeros(len(LABELS))} if cls == "XGBRanker" else {}
    return getattr(xgboost, cls)(n_estimators=2).fit(rows, LABELS, **options)


def assert_knows_columns(found, package, rows):
    if isinstance(rows, pandas.DataFrame):
        assert (found.handler, found.columns) == (f"{package}-pandas", tuple(rows.columns))
    else:
        assert (found.handler, found.columns, found.width) == (f"{package}-numpy", None, 2)


@pytest.mark.large
@pytest.mark.parametrize("rows", [FRAME, ODD, FRAME.to_numpy()], ids=["frame", "odd", "array"])
@pytest.mark.parametrize("cls", CLASSES)
def test_a_saved_model_of_xgboost_names_class_and_columns(tmp_path, cls, rows):
    model = fitted(cls, rows)
    for ending in ("json", "ubj"):
        model.save_model(path := tmp_path / f"model.{ending}")
        found = known("xgboost", path)
        assert found.arguments == {"model_class": cls}
        assert_knows_columns(found, "xgboost", rows)
    path = tmp_path / "model.pkl"  # runs as one of scikit-learn
    path.write_bytes(pickle.dumps(model))
    if cls == "Booster":  # its predict takes a DMatrix only
        assert known("xgboost", path) is None
    else:
        assert_knows_columns(known("xgboost", path), "sklearn", rows)


@pytest.mark.parametrize("content", [b"", b"{", b'{"learner": 1}'[:5], b"learner"])
def test_other_files_are_none_of_xgboost(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_bytes(content)
    assert known("xgboost", path) is None


def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 2))


def exported(path, model, *examples, batches=True):
    names = ["input"] if len(examples) == 1 else ["age", "income"]
    shapes = {name: {0: torch.export.Dim.AUTO} for name in names} if batches else None
    torch.export.save(torch.export.export(model, examples, dynamic_shapes=shapes), path)
    return path


class Sum(torch.nn.Module if torch else object):
    def forward(self, age, income):
        return age + income


@pytest.mark.large
def test_an_exported_program_is_recognised_and_predicts(tmp_path):
    from headrace.handlers.pytorch_inference import PytorchModelHandlerKeyedTensor, PytorchModelHandlerTensor

    model, rows = net(), list(torch.randn(5, 3))
    path = exported(tmp_path / "model.pt2", model, torch.zeros(4, 3))
    found = known("pytorch", path)
    assert (found.handler, found.width, found.arguments) == ("pytorch-tensor", 3, {})
    assert found.path_parameter == "torch_script_model_path"
    answers = [result.inference for result in predict(PytorchModelHandlerTensor(torch_script_model_path=path), rows)]
    with torch.no_grad():
        assert torch.allclose(torch.stack(answers), model(torch.stack(rows)))

    path = exported(tmp_path / "sum.pt2", Sum(), torch.zeros(4), torch.zeros(4))
    found = known("pytorch", path)
    assert (found.handler, found.columns) == ("pytorch-keyed-tensor", ("age", "income"))
    rows = [{"age": torch.tensor(1.0), "income": torch.tensor(2.0)}] * 3
    handler = PytorchModelHandlerKeyedTensor(torch_script_model_path=path)
    assert [result.inference.item() for result in predict(handler, rows)] == [3.0] * 3

    path = exported(tmp_path / "single.pt2", net(), torch.zeros(1, 3), batches=False)
    assert known("pytorch", path).arguments == {"max_batch_size": 1}
    with pytest.raises(ConfigurationError, match="exported for batches of exactly 4"):
        known("pytorch", exported(path, net(), torch.zeros(4, 3), batches=False))


@pytest.mark.large
def test_torchscript_is_recognised_and_a_state_needs_a_class(tmp_path):
    path = tmp_path / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.jit.trace(net(), torch.zeros(1, 3)).save(path)
    found = known("pytorch", path)
    assert (found.handler, found.path_parameter) == ("pytorch-tensor", "torch_script_model_path")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.jit.trace(Sum(), (torch.zeros(2), torch.zeros(2))).save(path)
    found = known("pytorch", path)
    assert (found.handler, found.columns) == ("pytorch-keyed-tensor", ("age", "income"))
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save(net().state_dict(), path, **options)
        with pytest.raises(ConfigurationError, match=r"--handler-arg model_class=package\.module:Class"):
            known("pytorch", path)

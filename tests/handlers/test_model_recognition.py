"""Files of all frameworks say which handler runs them, and which columns they want."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile

import joblib
import numpy
import onnx
import onnxruntime
import pandas
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

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


INPUTS = [
    ([("x", ["n", 3])], None, 3),
    ([("x", [None, 3])], None, 3),
    ([("x", ["n", "m"])], None, None),
    ([("x", ["n", 3, 32, 32])], None, None),
    ([("x", None)], None, None),
    ([("age", ["n", 1]), ("Größe", ["n", 1])], ("age", "Größe"), None),
]


@pytest.mark.parametrize("listed", [True, False])
def test_inputs_of_onnx_are_columns_or_have_a_width(tmp_path, listed):
    path = tmp_path / "model.onnx"
    for inputs, columns, width in INPUTS:
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


def test_a_file_of_keras_has_a_width_or_columns(tmp_path):
    path, one, several = tmp_path / "model.keras", "a model of Keras", "a model of Keras with 2 inputs"
    for shapes, width, columns, what in (
        ([[None, 3]], 3, None, one),
        ([[None, None]], None, None, one),
        ([[None, 8, 8, 1]], None, None, one),
        ([[None, 1]] * 2, None, ("a", "b"), several),
    ):
        inputs = [{"batch_shape": shape, "name": name} for shape, name in zip(shapes, "ab", strict=False)]
        layers = [{"class_name": "InputLayer", "config": config} for config in inputs]
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", json.dumps({"config": {"layers": [*layers, {"class_name": "Dense"}]}}))
        found = known("tensorflow", path)
        assert (found.handler, found.width, found.columns, found.what) == ("tensorflow-numpy", width, columns, what)
        assert found.arguments == ({"columns_are_inputs": True} if columns else {})


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


def test_the_architecture_decides(tmp_path):
    for architecture, handler, arguments, takes in (
        ("BertForSequenceClassification", "huggingface-pipeline", {"task": "text-classification"}, "text"),
        ("ViTForImageClassification", "huggingface-pipeline", {"task": "image-classification"}, "text"),
        ("Qwen2ForCausalLM", "huggingface-generation", {}, "rows"),
        ("GPT2LMHeadModel", "huggingface-generation", {}, "rows"),
    ):
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


FRAME = pandas.DataFrame({"age": [20, 30, 40, 50] * 5, "Größe": [1.5, 2.0, 1.0, 3.0] * 5, "city": list("abab") * 5})
NUMBERS = FRAME[["age", "Größe"]]
ODD = NUMBERS.rename(columns={"age": 'a "quoted" \\ name', "Größe": "}, {"})
LABELS = numpy.array([0, 0, 1, 1] * 5)
ENCODED = ColumnTransformer([("city", OneHotEncoder(), ["city"]), ("rest", "passthrough", ["age"])])
CLASSIFIER = LogisticRegression(max_iter=1000)
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
@pytest.mark.parametrize("rows", [NUMBERS, ODD, NUMBERS.to_numpy()], ids=["frame", "odd", "array"])
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


@pytest.mark.parametrize("content", [b"", b"{", b'{"lea', b"learner", b"text", b"PK\x03\x04"])
def test_other_files_are_none_of_xgboost_or_scikit_learn(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_bytes(content)
    assert known("xgboost", path) is known("sklearn", path) is None


NET = torch and torch.nn.Sequential(torch.nn.Linear(3, 2))


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

    rows = list(torch.randn(5, 3))
    path = exported(tmp_path / "model.pt2", NET, torch.zeros(4, 3))
    found = known("pytorch", path)
    assert (found.handler, found.width, found.arguments) == ("pytorch-tensor", 3, {})
    assert found.path_parameter == "torch_script_model_path"
    answers = [result.inference for result in predict(PytorchModelHandlerTensor(torch_script_model_path=path), rows)]
    with torch.no_grad():
        assert torch.allclose(torch.stack(answers), NET(torch.stack(rows)))

    path = exported(tmp_path / "sum.pt2", Sum(), torch.zeros(4), torch.zeros(4))
    found = known("pytorch", path)
    assert (found.handler, found.columns) == ("pytorch-keyed-tensor", ("age", "income"))
    rows = [{"age": torch.tensor(1.0), "income": torch.tensor(2.0)}] * 3
    handler = PytorchModelHandlerKeyedTensor(torch_script_model_path=path)
    assert [result.inference.item() for result in predict(handler, rows)] == [3.0] * 3

    path = exported(tmp_path / "single.pt2", NET, torch.zeros(1, 3), batches=False)
    assert known("pytorch", path).arguments == {"max_batch_size": 1}
    with pytest.raises(ConfigurationError, match="exported for batches of exactly 4"):
        known("pytorch", exported(path, NET, torch.zeros(4, 3), batches=False))


@pytest.mark.large
def test_torchscript_is_recognised_and_a_state_needs_a_class(tmp_path):
    path = tmp_path / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.jit.trace(NET, torch.zeros(1, 3)).save(path)
    found = known("pytorch", path)
    assert (found.handler, found.columns, found.path_parameter) == ("pytorch-tensor", None, "torch_script_model_path")
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save(NET.state_dict(), path, **options)
        with pytest.raises(ConfigurationError, match=r"--handler-arg model_class=package\.module:Class"):
            known("pytorch", path)


class Lines:
    """A model that says nothing of itself."""

    def predict(self, rows):
        return rows


MODELS = {
    "plain": (CLASSIFIER, NUMBERS, ("age", "Größe")),
    "forest": (RandomForestClassifier(3), NUMBERS, ("age", "Größe")),
    "pipeline": (make_pipeline(ENCODED, CLASSIFIER), FRAME, ("age", "city")),
    "nested": (make_pipeline(make_pipeline("passthrough", StandardScaler()), CLASSIFIER), NUMBERS, ("age", "Größe")),
    "search": (GridSearchCV(make_pipeline(ENCODED, CLASSIFIER), {"memory": [None]}, cv=2), FRAME, ("age", "city")),
    "voting": (VotingClassifier([("a", CLASSIFIER)]), NUMBERS, ("age", "Größe")),
    "arrays": (Ridge(), NUMBERS.to_numpy(), None),
}


def with_skops(model, path):
    import skops.io

    skops.io.dump(model, path)


WAYS = {
    "pickle": (lambda model, path: path.write_bytes(pickle.dumps(model)), {}),
    "joblib": (joblib.dump, {"model_file_type": "joblib"}),
    "compressed": (lambda model, path: joblib.dump(model, path, compress=3), {"model_file_type": "joblib"}),
    "skops": (with_skops, {"model_file_type": "skops"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_what_it_takes(tmp_path, name):
    model, rows, columns = MODELS[name]
    model.fit(rows, LABELS)
    for way, (write, arguments) in WAYS.items():
        path = tmp_path / f"{way}.pkl"
        write(model, path)
        found = known("sklearn", path)
        assert found.handler == ("sklearn-numpy" if columns is None else "sklearn-pandas")
        assert (found.columns, found.width) == (columns, 2 if columns is None else None)
        assert (found.what, found.arguments) == (f"a {type(model).__name__} of scikit-learn", arguments)
    if name == "pipeline":  # a column that is dropped may be absent
        assert (model.predict(FRAME[list(columns)]) == model.predict(FRAME)).all()


def test_a_vectorizer_takes_texts(tmp_path):
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good", "bad"], [1, 0])
    for way, (write, arguments) in WAYS.items():
        path = tmp_path / ("model.joblib.gz" if way == "compressed" else way)
        write(model, path)
        found = known("sklearn", path)
        assert (found.handler, found.takes) == ("sklearn-numpy", "text")
        assert found.arguments == {**arguments, "takes_texts": True}


def test_what_does_not_say_it_has_to_be_named(tmp_path):
    path = tmp_path / "model.pkl"
    for content, error in (
        ({"model": 1}, "it holds a dict, not a model; save the model alone"),
        (Lines(), "which does not show whether it takes frames or arrays; name the handler: --handler sklearn-pandas"),
        (LogisticRegression(), "a LogisticRegression of scikit-learn, which does not show"),
    ):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(ConfigurationError, match=error):
            known("sklearn", path)

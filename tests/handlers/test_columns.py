"""Each handler that takes columns predicts for them what it predicts for their rows."""

from __future__ import annotations

import numpy
import pandas
import pyarrow
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from headrace import BatchingConfig, Failure, PredictionResult, predict
from headrace.handlers.onnx_inference import OnnxModelHandlerNumpy
from headrace.handlers.sklearn_inference import ModelFileType, SklearnModelHandlerNumpy, SklearnModelHandlerPandas
from large import torch

RNG = numpy.random.default_rng(5)
FEATURES = RNG.normal(size=(100, 3))
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
FRAME = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])
COLUMNAR = BatchingConfig(min_batch_size=32, max_batch_size=32, columnar=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    pandas.to_pickle(LogisticRegression().fit(FEATURES, LABELS), folder / "numpy.pkl", compression=None)
    pandas.to_pickle(LogisticRegression().fit(FRAME, LABELS), folder / "pandas.pkl", compression=None)
    single = FEATURES.astype("float32")
    onnx = to_onnx(LogisticRegression().fit(single, LABELS), single[:1], options={"zipmap": False})
    (folder / "model.onnx").write_bytes(onnx.SerializeToString())
    if torch:
        torch.manual_seed(1)
        torch.save(torch.nn.Linear(3, 2).state_dict(), folder / "linear.pt")
    return folder


def sklearn_numpy(folder):
    return SklearnModelHandlerNumpy(folder / "numpy.pkl", ModelFileType.PICKLE), list(FEATURES)


def sklearn_pandas(folder):
    return SklearnModelHandlerPandas(folder / "pandas.pkl"), [FRAME.iloc[[row]] for row in range(100)]


def onnx(folder):
    return OnnxModelHandlerNumpy(folder / "model.onnx"), list(FEATURES.astype("float32"))


def pytorch(folder, **options):
    from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor

    model = {"model_class": torch.nn.Linear, "model_params": {"in_features": 3, "out_features": 2}}
    handler = PytorchModelHandlerTensor(folder / "linear.pt", **model, **options)
    return handler, list(torch.from_numpy(FEATURES.astype("float32")))


def pytorch_by_another_method(folder):
    from headrace.handlers.pytorch_inference import make_tensor_model_fn

    return pytorch(folder, inference_fn=make_tensor_model_fn("forward"))


def pytorch_by_another_function(folder):
    return pytorch(folder, inference_fn=one_by_one)


def one_by_one(batch, model, device, inference_args, model_id):
    return [PredictionResult(row, model(row[None])[0].detach(), model_id) for row in batch]


HANDLERS = [sklearn_numpy, sklearn_pandas, onnx]
if torch:
    HANDLERS += [pytorch, pytorch_by_another_method, pytorch_by_another_function]
KINDS = {
    "dict": lambda frame: {name: frame[name].to_numpy() for name in frame},
    "frame": lambda frame: frame,
    "record batch": pyarrow.RecordBatch.from_pandas,
    "table": pyarrow.Table.from_pandas,
    "array": lambda frame: frame.to_numpy("float32"),
    "tensor": lambda frame: torch.tensor(frame.to_numpy("float32")),
}


def takes(make, kind):
    """Whether it takes such elements."""
    return make.__name__.startswith("pytorch") if kind == "tensor" else (make, kind) != (sklearn_pandas, "array")


PAIRS = [(make, kind) for make in HANDLERS for kind in KINDS if takes(make, kind)]


@pytest.mark.parametrize(("make", "kind"), PAIRS)
def test_columns_predict_as_rows(folder, make, kind):
    handler, examples = make(folder)
    expected = numpy.array([numpy.asarray(result.inference) for result in predict(handler, examples)])
    pieces = [KINDS[kind](FRAME[start : start + 30]) for start in range(0, 100, 30)]
    results = list(predict(handler, pieces, batching=COLUMNAR))
    found = numpy.concatenate([numpy.asarray(result.inference) for result in results])
    assert numpy.allclose(found, expected, atol=1e-6)
    assert {result.model_id for result in results} == {str(next(predict(handler, examples[:1])).model_id)}


@pytest.mark.parametrize("make", [sklearn_numpy, onnx, pytest.param(pytorch, marks=pytest.mark.large)])
def test_columns_without_numbers_fail(folder, make):
    handler, _ = make(folder)
    elements = [{"a": ["x"], "b": [1.0], "c": [2.0]}]
    [failure] = predict(handler, elements, batching=COLUMNAR, on_failure="yield")
    assert isinstance(failure, Failure)
    assert "not one of numbers" in str(failure.error)

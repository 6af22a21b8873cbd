"""The handlers of every framework predict in a host as they do here, and bring no other framework there."""

from __future__ import annotations

import functools
import pickle
import sys

import cloudpickle
import numpy
import pandas
import pytest
import torch
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from headrace import KeyedModelHandler, KeyModelMapping, predict
from headrace.handlers.onnx_inference import OnnxModelHandlerNumpy
from headrace.handlers.pytorch_inference import PytorchModelHandlerKeyedTensor, PytorchModelHandlerTensor
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy, SklearnModelHandlerPandas
from headrace.testing import nearly_equal

RNG = numpy.random.default_rng(7)
FEATURES = RNG.normal(size=(40, 3)).astype(numpy.float32)
FRAME = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
FRAMEWORKS = {"numpy", "sklearn", "pandas", "torch", "onnxruntime", "apache_beam"}


class Sum(torch.nn.Module):
    def forward(self, a, b):
        return {"sum": a + b, "product": a * b}


@pytest.fixture(scope="module", autouse=True)
def _module_travels():
    """Hosts cannot import test modules, so what is defined here is pickled by value."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(FEATURES, LABELS)
    folder.joinpath("numpy.pkl").write_bytes(pickle.dumps(model))
    folder.joinpath("pandas.pkl").write_bytes(pickle.dumps(LogisticRegression().fit(FRAME, LABELS)))
    onnx = to_onnx(LogisticRegression().fit(FEATURES, LABELS), FEATURES[:1], options={"zipmap": False})
    folder.joinpath("model.onnx").write_bytes(onnx.SerializeToString())
    torch.save(torch.nn.Linear(3, 2).state_dict(), folder / "linear.pt")
    torch.save(Sum().state_dict(), folder / "sum.pt")
    return folder


def frameworks(result):
    """The result, with the frameworks that its process has imported."""
    return result, FRAMEWORKS & set(sys.modules)


def probabilities(model, batch, inference_args):
    return model.predict_proba(numpy.stack(batch))


HANDLERS = {
    "sklearn numpy": lambda folder: SklearnModelHandlerNumpy(str(folder / "numpy.pkl")),
    "sklearn keyed": lambda folder: KeyedModelHandler(
        [KeyModelMapping(["k"], SklearnModelHandlerNumpy(str(folder / "numpy.pkl"), inference_fn=probabilities))]
    ),
    "sklearn pandas": lambda folder: SklearnModelHandlerPandas(str(folder / "pandas.pkl")),
    "torch": lambda folder: PytorchModelHandlerTensor(
        str(folder / "linear.pt"), functools.partial(torch.nn.Linear, 3, 2)
    ),
    "torch keyed tensors": lambda folder: PytorchModelHandlerKeyedTensor(str(folder / "sum.pt"), Sum),
    "onnx": lambda folder: OnnxModelHandlerNumpy(str(folder / "model.onnx")),
}
ELEMENTS = {
    "sklearn numpy": list(FEATURES),
    "sklearn keyed": [("k", row) for row in FEATURES],
    "sklearn pandas": [FRAME[n : n + 1] for n in range(9)],
    "torch": list(torch.from_numpy(FEATURES)),
    "torch keyed tensors": [{"a": torch.ones(2) * n, "b": torch.full((2,), 3.0)} for n in range(9)],
    "onnx": list(FEATURES),
}
NEEDED = {"sklearn numpy": {"numpy", "sklearn"}, "torch": {"numpy", "torch"}, "onnx": {"numpy", "onnxruntime"}}


@pytest.mark.parametrize("name", HANDLERS)
def test_a_host_predicts_as_this_process(folder, name):
    handler = HANDLERS[name](folder).with_postprocess_fn(frameworks)
    here, there = (list(predict(handler, ELEMENTS[name], isolate=isolate)) for isolate in (False, True))
    assert len(there) == len(ELEMENTS[name])
    assert nearly_equal([result for result, _ in there], [result for result, _ in here])
    imported = there[0][1]
    assert "apache_beam" not in imported
    assert name not in NEEDED or imported - {"pandas"} == NEEDED[name]

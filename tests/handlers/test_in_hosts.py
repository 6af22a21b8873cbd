"""The handlers of every framework predict in a host as they do here, and bring no other framework there."""

from __future__ import annotations

import functools
import pickle
import sys

import numpy
import pandas
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from headrace import KeyedModelHandler, KeyModelMapping, predict
from headrace.handlers.onnx_inference import OnnxModelHandlerNumpy
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy, SklearnModelHandlerPandas
from headrace.testing import nearly_equal
from large import torch

pytestmark = pytest.mark.usefixtures("module_travels")

RNG = numpy.random.default_rng(7)
FEATURES = RNG.normal(size=(40, 3)).astype(numpy.float32)
FRAME = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
FRAMEWORKS = {"numpy", "sklearn", "pandas", "torch", "onnxruntime", "apache_beam"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(FEATURES, LABELS)
    folder.joinpath("numpy.pkl").write_bytes(pickle.dumps(model))
    folder.joinpath("pandas.pkl").write_bytes(pickle.dumps(LogisticRegression().fit(FRAME, LABELS)))
    onnx = to_onnx(LogisticRegression().fit(FEATURES, LABELS), FEATURES[:1], options={"zipmap": False})
    folder.joinpath("model.onnx").write_bytes(onnx.SerializeToString())
    return folder


def frameworks(result):
    """The result, with the frameworks that its process has imported."""
    return result, FRAMEWORKS & set(sys.modules)


def probabilities(model, batch, inference_args):
    return model.predict_proba(numpy.stack(batch))


def by_key(**handlers):
    return KeyedModelHandler([KeyModelMapping([key], handler) for key, handler in handlers.items()])


def sklearn_handlers(folder):
    return by_key(
        array=SklearnModelHandlerNumpy(str(folder / "numpy.pkl"), inference_fn=probabilities),
        frame=SklearnModelHandlerPandas(str(folder / "pandas.pkl")),
    )


def torch_handlers(folder):
    from headrace.handlers.pytorch_inference import PytorchModelHandlerKeyedTensor, PytorchModelHandlerTensor

    class Sum(torch.nn.Module):
        def forward(self, a, b):
            return {"sum": a + b, "product": a * b}

    torch.save(torch.nn.Linear(3, 2).state_dict(), folder / "linear.pt")
    torch.save(Sum().state_dict(), folder / "sum.pt")
    return by_key(
        tensor=PytorchModelHandlerTensor(str(folder / "linear.pt"), functools.partial(torch.nn.Linear, 3, 2)),
        tensors=PytorchModelHandlerKeyedTensor(str(folder / "sum.pt"), Sum),
    )


def onnx_handler(folder):
    return OnnxModelHandlerNumpy(str(folder / "model.onnx"))


FRAMES = [("frame", FRAME[n : n + 1]) for n in range(9)]
CASES = [
    (sklearn_handlers, [("array", row) for row in FEATURES] + FRAMES, {"numpy", "pandas", "sklearn"}),
    (onnx_handler, list(FEATURES), {"numpy", "onnxruntime"}),
]
if torch:
    ROWS = [("tensor", row) for row in torch.from_numpy(FEATURES)]
    TENSORS = [("tensors", {"a": torch.ones(2) * n, "b": torch.full((2,), 3.0)}) for n in range(9)]
    CASES.append((torch_handlers, ROWS + TENSORS, {"numpy", "torch"}))


@pytest.mark.large
@pytest.mark.parametrize(("make", "elements", "needed"), CASES)
def test_handlers_predict_in_a_host_as_in_process(folder, make, elements, needed):
    handler = make(folder).with_postprocess_fn(frameworks)
    here, there = (list(predict(handler, elements, isolate=isolate)) for isolate in (False, True))
    assert len(there) == len(elements)
    assert nearly_equal([result for result, _ in there], [result for result, _ in here])
    assert there[0][1] == needed

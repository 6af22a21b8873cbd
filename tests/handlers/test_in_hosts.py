"""The handlers of every framework predict in a host as they do here, and bring no other framework there."""

from __future__ import annotations

import functools
import importlib
import pickle
import sys

import numpy
import pandas
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from headrace import predict
from headrace.handlers.onnx_inference import OnnxModelHandlerNumpy
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy, SklearnModelHandlerPandas
from headrace.testing import nearly_equal
from large import torch

pytestmark = [pytest.mark.large, pytest.mark.usefixtures("module_travels")]

RNG = numpy.random.default_rng(7)
FEATURES = RNG.normal(size=(40, 3)).astype(numpy.float32)
FRAME = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
FRAMEWORKS = {"numpy", "sklearn", "pandas", "torch", "onnxruntime", "apache_beam"}


def frameworks(result):
    """The result, with the frameworks that its process has imported."""
    return result, FRAMEWORKS & set(sys.modules)


def sklearn_numpy(path):
    path.write_bytes(pickle.dumps(LogisticRegression().fit(FEATURES, LABELS)))
    return SklearnModelHandlerNumpy(path)


def sklearn_pandas(path):
    path.write_bytes(pickle.dumps(LogisticRegression().fit(FRAME, LABELS)))
    return SklearnModelHandlerPandas(path)


def onnx(path):
    model = to_onnx(LogisticRegression().fit(FEATURES, LABELS), FEATURES[:1], options={"zipmap": False})
    path.write_bytes(model.SerializeToString())
    return OnnxModelHandlerNumpy(path)


def pytorch(path):
    from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor

    torch.save(torch.nn.Linear(3, 2).state_dict(), path)
    return PytorchModelHandlerTensor(path, functools.partial(torch.nn.Linear, 3, 2))


def xgboost(path):
    from headrace.handlers.xgboost_inference import XGBoostModelHandlerNumpy

    model = importlib.import_module("xgboost").XGBClassifier(n_estimators=5, n_jobs=1).fit(FEATURES, LABELS)
    model.save_model(path := path.with_suffix(".ubj"))
    return XGBoostModelHandlerNumpy("XGBClassifier", path)


def tensorflow(path):
    from headrace.handlers.tensorflow_inference import TFModelHandlerNumpy

    keras = importlib.import_module("tensorflow").keras
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path := path.with_suffix(".keras"))
    return TFModelHandlerNumpy(path)


CASES = [
    (sklearn_numpy, list(FEATURES), {"numpy", "pandas", "sklearn"}),  # scikit-learn itself imports pandas
    (sklearn_pandas, [FRAME[n : n + 1] for n in range(9)], {"numpy", "pandas", "sklearn"}),
    (onnx, list(FEATURES), {"numpy", "onnxruntime"}),
    (pytorch, torch and list(torch.from_numpy(FEATURES)), {"numpy", "torch"}),
    (xgboost, list(FEATURES), None),
    (tensorflow, list(FEATURES), None),
]


@pytest.mark.parametrize(("make", "elements", "needed"), CASES)
def test_handlers_predict_in_hosts_as_in_process(tmp_path, make, elements, needed):
    handler = make(tmp_path / "model").with_postprocess_fn(frameworks)
    here = [result for result, _ in predict(handler, elements)]
    for placement in ({"isolate": True}, {"placement": "machine"}, {"placement": "machine", "isolate": True}):
        there = list(predict(handler, elements, **placement))
        assert nearly_equal([result for result, _ in there], here)
        assert needed is None or "isolate" not in placement or there[0][1] == needed

"""Beam's own handlers and wrappers predict the same with Headrace's transform, wherever the model lives."""

from __future__ import annotations

import pickle
import sys
from functools import partial

import numpy
import pandas
import pytest
import scipy.sparse
import torch
import xgboost
from apache_beam.ml.inference import base
from apache_beam.ml.inference.onnx_inference import OnnxModelHandlerNumpy
from apache_beam.ml.inference.pytorch_inference import PytorchModelHandlerKeyedTensor
from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerNumpy
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from headrace import predict
from headrace.testing import nearly_equal
from pipelines import Run

pytestmark = [
    pytest.mark.large,
    pytest.mark.filterwarnings("ignore"),  # Beam's handlers use what their frameworks deprecate
    pytest.mark.usefixtures("module_travels"),
]

RNG = numpy.random.default_rng(7)
FEATURES = RNG.normal(size=(12, 3)).astype(numpy.float32)
FRAME = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder of small model files."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "numpy.pkl").write_bytes(pickle.dumps(LogisticRegression().fit(FEATURES, LABELS)))
    onnx = to_onnx(LogisticRegression().fit(FEATURES, LABELS), FEATURES[:1], options={"zipmap": False})
    (folder / "model.onnx").write_bytes(onnx.SerializeToString())
    torch.manual_seed(7)
    torch.save(torch.nn.Bilinear(2, 1, 1).state_dict(), folder / "bilinear.pt")
    xgboost.XGBClassifier(n_estimators=2, max_depth=2).fit(FEATURES, LABELS).save_model(folder / "model.json")
    return folder


def trees(handler_class, folder):
    return handler_class(xgboost.XGBClassifier, str(folder / "model.json"))


HANDLERS = {
    "sklearn-numpy": (lambda folder: SklearnModelHandlerNumpy(str(folder / "numpy.pkl")), list(FEATURES)),
    "pytorch-keyed-tensor": (
        lambda folder: PytorchModelHandlerKeyedTensor(
            str(folder / "bilinear.pt"), torch.nn.Bilinear, {"in1_features": 2, "in2_features": 1, "out_features": 1}
        ),
        [{"input1": row[:2], "input2": row[2:]} for row in torch.tensor(FEATURES)],
    ),
    "onnx-numpy": (lambda folder: OnnxModelHandlerNumpy(str(folder / "model.onnx")), list(FEATURES)),
}

if sys.version_info < (3, 13):  # later, datatable has no wheels, and Beam's module imports it for every handler
    import datatable
    from apache_beam.ml.inference.xgboost_inference import (
        XGBoostModelHandlerDatatable,
        XGBoostModelHandlerNumpy,
        XGBoostModelHandlerPandas,
        XGBoostModelHandlerSciPy,
    )

    pieces = range(0, 12, 2)
    HANDLERS |= {
        f"xgboost-{name}": (partial(trees, handler), [make(i) for i in pieces])
        for name, handler, make in [
            ("numpy", XGBoostModelHandlerNumpy, lambda i: FEATURES[i : i + 2]),
            ("pandas", XGBoostModelHandlerPandas, lambda i: FRAME[i : i + 2]),
            ("scipy", XGBoostModelHandlerSciPy, lambda i: scipy.sparse.csr_matrix(FEATURES[i : i + 2])),
            ("datatable", XGBoostModelHandlerDatatable, lambda i: datatable.Frame(FEATURES[i : i + 2])),
        ]
    }


def negative(row):
    return -row


def inference_of(result):
    return result.inference


KEYED = [("high" if row.sum() > 0 else "low", row) for row in FEATURES]
WRAPPED = {
    "batches": (
        lambda handler: (
            handler.with_preprocess_fn(negative)
            .with_no_batching()
            .with_postprocess_fn(inference_of)
            .with_postprocess_fn(str)
        ),
        [FEATURES[:5], FEATURES[5:]],
    ),
    "keyed": (lambda handler: base.KeyedModelHandler(handler).with_postprocess_fn(str), KEYED),
    "maybe keyed": (base.MaybeKeyedModelHandler, KEYED),
    "maybe not keyed": (base.MaybeKeyedModelHandler, list(FEATURES)),
}


def values(results):
    """The inferences, with keys if there are any, but without examples: some cannot be compared."""
    return [(one[0], inference_of(one[1])) if type(one) is tuple else getattr(one, "inference", one) for one in results]


def ordered(results):
    """The values in a fixed order: Beam's handler of several models groups predictions by key."""
    return sorted(values(results), key=repr)


def with_beam(handler, elements):
    run = Run()
    return run.values(out=run.create(elements) | base.RunInference(handler))


def test_handlers_predict_as_with_beam(models, run):
    """By key, in one host: with all that Beam imports it takes seconds to start."""
    made = {name: make(models) for name, (make, _) in HANDLERS.items()}
    handler = base.KeyedModelHandler([base.KeyModelMapping([name], one) for name, one in made.items()])
    elements = [(name, element) for name, (_, examples) in HANDLERS.items() for element in examples]
    expected = {name: with_beam(made[name], examples) for name, (_, examples) in HANDLERS.items()}
    for found in (predict(handler, elements), predict(handler, elements, isolate=True), run.infer(elements, handler)):
        results = dict.fromkeys(HANDLERS, ())
        for name, result in found:
            results[name] += (result,)
        for name, ours in results.items():
            assert nearly_equal(values(ours), values(expected[name]))
            assert {type(one) for one in ours} == {base.PredictionResult}
            assert {one.model_id for one in ours} == {one.model_id for one in expected[name]}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_predict_as_with_beam(models, run, name):
    wrap, elements = WRAPPED[name]
    make, _ = HANDLERS["sklearn-numpy"]
    expected = with_beam(wrap(make(models)), elements)
    assert nearly_equal(ordered(predict(wrap(make(models)), elements)), ordered(expected))
    assert nearly_equal(ordered(run.infer(elements, wrap(make(models)))), ordered(expected))

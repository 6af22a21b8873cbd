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
from apache_beam.ml.inference.pytorch_inference import PytorchModelHandlerKeyedTensor, PytorchModelHandlerTensor
from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerNumpy, SklearnModelHandlerPandas
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression, LogisticRegression

from headrace import predict
from headrace.testing import nearly_equal

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
    (folder / "pandas.pkl").write_bytes(pickle.dumps(LinearRegression().fit(FRAME, FEATURES.sum(axis=1))))
    onnx = to_onnx(LogisticRegression().fit(FEATURES, LABELS), FEATURES[:1], options={"zipmap": False})
    (folder / "model.onnx").write_bytes(onnx.SerializeToString())
    torch.manual_seed(7)
    torch.save(torch.nn.Linear(3, 2).state_dict(), folder / "linear.pt")
    torch.save(torch.nn.Bilinear(2, 1, 1).state_dict(), folder / "bilinear.pt")
    xgboost.XGBClassifier(n_estimators=2, max_depth=2).fit(FEATURES, LABELS).save_model(folder / "model.json")
    return folder


def trees(handler_class, folder):
    return handler_class(xgboost.XGBClassifier, str(folder / "model.json"))


HANDLERS = {
    "sklearn-numpy": (lambda folder: SklearnModelHandlerNumpy(str(folder / "numpy.pkl")), list(FEATURES)),
    "sklearn-pandas": (
        lambda folder: SklearnModelHandlerPandas(str(folder / "pandas.pkl")),
        [FRAME[i : i + 1] for i in range(len(FRAME))],
    ),
    "pytorch-tensor": (
        lambda folder: PytorchModelHandlerTensor(
            str(folder / "linear.pt"), torch.nn.Linear, {"in_features": 3, "out_features": 2}
        ),
        list(torch.tensor(FEATURES)),
    ),
    "pytorch-keyed-tensor": (
        lambda folder: PytorchModelHandlerKeyedTensor(
            str(folder / "bilinear.pt"),
            torch.nn.Bilinear,
            {"in1_features": 2, "in2_features": 1, "out_features": 1},
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


def text(value):
    return f"<{value}>"


KEYED = [("high" if row.sum() > 0 else "low", row) for row in FEATURES]
BATCHES = [FEATURES[:5], FEATURES[5:]]
WRAPPED = {
    "preprocessed": (lambda handler: handler.with_preprocess_fn(negative), list(FEATURES)),
    "batches": (lambda handler: handler.with_no_batching(), BATCHES),
    "batches, processed": (
        lambda handler: (
            handler.with_preprocess_fn(negative)
            .with_no_batching()
            .with_postprocess_fn(inference_of)
            .with_postprocess_fn(text)
        ),
        BATCHES,
    ),
    "keyed": (base.KeyedModelHandler, KEYED),
    "keyed, processed": (lambda handler: base.KeyedModelHandler(handler).with_postprocess_fn(str), KEYED),
    "models by key": (
        lambda handler: base.KeyedModelHandler(
            [base.KeyModelMapping(["low"], handler), base.KeyModelMapping(["high"], handler)]
        ),
        KEYED,
    ),
    "maybe keyed": (base.MaybeKeyedModelHandler, KEYED),
    "maybe not keyed": (base.MaybeKeyedModelHandler, list(FEATURES)),
}


@pytest.fixture(scope="module")
def by_beam(models, make_run):
    """The predictions of Beam's transform, by the test's name for the handler."""
    known = {}

    def of(name, handler, elements):
        if name not in known:
            run = make_run()
            known[name] = run.values(out=run.create(elements) | base.RunInference(handler))
        return known[name]

    return of


def values(results):
    """The inferences, with keys if there are any, but without examples: some cannot be compared."""
    return [(one[0], inference_of(one[1])) if type(one) is tuple else getattr(one, "inference", one) for one in results]


def ordered(results):
    """The values in a fixed order: Beam's handler of several models groups predictions by key."""
    return sorted(values(results), key=repr)


@pytest.mark.parametrize("name", HANDLERS)
def test_handlers_predict_as_with_beam(models, by_beam, run, name):
    make, elements = HANDLERS[name]
    expected = by_beam(name, make(models), elements)
    found = list(predict(make(models), elements))
    assert nearly_equal(values(found), values(expected))
    assert [type(one) for one in found] == [base.PredictionResult] * len(elements)
    assert [one.model_id for one in found] == [one.model_id for one in expected]
    assert nearly_equal(values(run.infer(elements, make(models))), values(expected))


def test_handlers_in_a_host_predict_as_with_beam(models, by_beam):
    """One host for all, by key: with all that Beam imports it takes seconds to start."""
    made = {name: make(models) for name, (make, _) in HANDLERS.items()}
    handler = base.KeyedModelHandler([base.KeyModelMapping([name], one) for name, one in made.items()])
    elements = [(name, element) for name, (_, examples) in HANDLERS.items() for element in examples]
    found = list(predict(handler, elements, isolate=True))
    expected = [(name, one) for name, handler in made.items() for one in by_beam(name, handler, HANDLERS[name][1])]
    assert nearly_equal(values(found), values(expected))


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_predict_as_with_beam(models, by_beam, run, name):
    wrap, elements = WRAPPED[name]
    make, _ = HANDLERS["sklearn-numpy"]
    expected = by_beam(name, wrap(make(models)), elements)
    assert nearly_equal(ordered(predict(wrap(make(models)), elements)), ordered(expected))
    assert nearly_equal(ordered(run.infer(elements, wrap(make(models)))), ordered(expected))

"""Frameworks give exactly the same over a model that the machine's processes share as over a model of their own."""

from __future__ import annotations

import pickle
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy
import onnx
import pandas
import pytest
import sklearn.ensemble
import sklearn.linear_model
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from headrace.handlers.onnx_inference import OnnxModelHandlerNumpy
from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy, SklearnModelHandlerPandas

sys.path.append(str(Path(__file__).parent))  # hosts find what handlers need on it, too

from pairs import Pair

pytestmark = pytest.mark.large

WIDTH = 64
RNG = numpy.random.default_rng(7)
WEIGHTS = RNG.integers(-8, 8, (WIDTH, WIDTH)).astype("f4")
"""More than a page. With small integers sums are exact, in whatever order a library that looks at addresses adds."""
ROWS = st.lists(st.integers(-8, 8), min_size=WIDTH, max_size=WIDTH).map(lambda row: numpy.array(row, "f4"))


@pytest.fixture(scope="module")
def make_pair(own_runtime):
    with own_runtime(), ExitStack() as stack:

        def make(handler, elsewhere, **batching):
            made = Pair(handler, elsewhere, **batching)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


MAPPED = {"placement": "machine"}
few = settings(max_examples=5)


def saved(folder, model):
    path = folder / f"{type(model).__name__}.pickle"
    path.write_bytes(pickle.dumps(model))
    return str(path)


def estimator(folder):
    model = sklearn.linear_model.LinearRegression()
    model.coef_, model.intercept_, model.n_features_in_ = WEIGHTS, WEIGHTS[0], WIDTH
    return SklearnModelHandlerNumpy(saved(folder, model))


def forest(folder):
    features = RNG.normal(size=(60, WIDTH))
    frame = pandas.DataFrame(features, columns=[f"c{n}" for n in range(WIDTH)])
    model = sklearn.ensemble.RandomForestClassifier(20, random_state=1).fit(frame, features[:, 0] > 0)
    return SklearnModelHandlerPandas(saved(folder, model))


def module(folder):
    torch.save({"weight": torch.tensor(WEIGHTS), "bias": torch.tensor(WEIGHTS[0])}, folder / "state.pt")
    sizes = {"in_features": WIDTH, "out_features": WIDTH}
    return PytorchModelHandlerTensor(str(folder / "state.pt"), torch.nn.Linear, sizes)


def network(folder):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, WIDTH])],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "product.onnx")
    return OnnxModelHandlerNumpy(str(folder / "product.onnx"), providers=["CPUExecutionProvider"], model_copies=2)


def as_frame(row):
    return pandas.DataFrame([row], columns=[f"c{n}" for n in range(WIDTH)])


FRAMEWORKS = {
    "estimator": (estimator, lambda row: row, MAPPED),
    "forest": (forest, as_frame, MAPPED),
    "module": (module, torch.tensor, MAPPED),
    "module mapped by a host": (module, torch.tensor, {**MAPPED, "isolate": True}),
    "network in two hosts": (network, lambda row: row, {}),
}
"""Each with what it makes of a row, and where it lives."""


@pytest.fixture(scope="module", params=FRAMEWORKS.values(), ids=FRAMEWORKS)
def of_framework(request, make_pair, folder):
    make, convert, elsewhere = request.param
    pair = make_pair(make(folder), elsewhere)
    assert pair.is_hosted == (elsewhere != MAPPED)
    return pair, convert


@few
@given(st.lists(ROWS, max_size=7))
def test_frameworks_are_equal_over_a_mapped_model(of_framework, rows):
    pair, convert = of_framework
    pair.compare([convert(row) for row in rows])


@few
@given(st.lists(ROWS, min_size=1, max_size=7), st.data())
def test_errors_of_frameworks_are_equal_over_a_mapped_model(of_framework, rows, data):
    pair, convert = of_framework
    elements = [convert(row) for row in rows]
    elements[data.draw(st.integers(0, len(rows) - 1))] = "no row"
    pair.compare(elements)

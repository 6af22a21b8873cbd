"""Frameworks give exactly the same over a model that the machine's processes share as over a model of their own."""

from __future__ import annotations

import pickle
import sys
from contextlib import closing
from pathlib import Path

import numpy
import pytest
import sklearn.linear_model
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

sys.path.append(str(Path(__file__).parent))  # hosts find what handlers need on it, too

from pairs import Pair

pytestmark = pytest.mark.large

WIDTH = 64
WEIGHTS = numpy.random.default_rng(7).integers(-8, 8, (WIDTH, WIDTH)).astype("f4")
"""More than a page. With small integers sums are exact, in whatever order a library that looks at addresses adds."""
ROWS = st.lists(st.integers(-8, 8), min_size=WIDTH, max_size=WIDTH).map(lambda row: numpy.array(row, "f4"))
MAPPED = {"placement": "machine"}
few = settings(max_examples=5)


def estimator(folder):
    model = sklearn.linear_model.LinearRegression()
    model.coef_, model.intercept_, model.n_features_in_ = WEIGHTS, WEIGHTS[0], WIDTH
    (folder / "model.pickle").write_bytes(pickle.dumps(model))
    return SklearnModelHandlerNumpy(str(folder / "model.pickle"))


def module(folder):
    torch.save({"weight": torch.tensor(WEIGHTS), "bias": torch.tensor(WEIGHTS[0])}, folder / "state.pt")
    sizes = {"in_features": WIDTH, "out_features": WIDTH}
    return PytorchModelHandlerTensor(str(folder / "state.pt"), torch.nn.Linear, sizes)


FRAMEWORKS = {
    "estimator": (estimator, lambda row: row, MAPPED),
    "module": (module, torch.tensor, MAPPED),
    "module mapped by a host": (module, torch.tensor, {**MAPPED, "isolate": True}),
}
"""Each with what it makes of a row, and where it lives."""


@pytest.fixture(scope="module", params=FRAMEWORKS.values(), ids=FRAMEWORKS)
def of_framework(request, own_runtime, tmp_path_factory):
    make, convert, elsewhere = request.param
    with own_runtime(), closing(Pair(make(tmp_path_factory.mktemp("model")), elsewhere)) as pair:
        assert pair.is_hosted == (elsewhere != MAPPED)
        yield pair, convert


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

"""Nearly equal: the same structure and, within a tolerance, the same numbers."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import PredictionResult
from headrace.testing import nearly_equal
from large import torch

SAME = [
    (1.0, 1.0 + 1e-6),
    (0.0, 1e-9),
    (1, 1.0),
    (math.nan, math.nan),
    (math.inf, math.inf),
    (1 + 1j, 1 + 1.000001j),
    ([1.0, [2.0]], [1.0, [2.000001]]),
    ((1, "a"), (1, "a")),
    ({"x": [0.1]}, {"x": [0.1000001]}),
    ({1, 2}, {2, 1}),
    (numpy.array([1.0, numpy.nan]), numpy.array([1.0000001, numpy.nan])),
    (numpy.float32(0.1), 0.1),
    (pandas.DataFrame({"a": [1.0], "b": ["x"]}), pandas.DataFrame({"a": [1.0], "b": ["x"]})),
    (PredictionResult("a", numpy.array([1.0])), PredictionResult("a", numpy.array([1.0]))),
    (SimpleNamespace(x=1), SimpleNamespace(x=1)),
]

DIFFERENT = [
    (1.0, 1.1),
    (0.0, 0.1),
    (100_000, 100_001),
    (math.nan, 1.0),
    (math.inf, -math.inf),
    (1j, 2j),
    ("1", 1),
    (None, 0),
    ([1], (1,)),
    ([1, 2], [1]),
    ({"x": 1}, {"y": 1}),
    ({"x": 1}, {"x": 2}),
    ({1}, {2}),
    (numpy.array([1.0]), [1.0]),
    (numpy.array([1.0]), numpy.array([[1.0]])),
    (numpy.zeros((0, 2)), numpy.zeros((0, 3))),
    (numpy.array([100_000]), numpy.array([100_001])),
    (pandas.DataFrame({"a": [1.0]}), pandas.DataFrame({"b": [1.0]})),
    (pandas.DataFrame({"a": [1.0]}), pandas.DataFrame({"a": [2.0]})),
    (PredictionResult("a", 1.0), PredictionResult("a", 2.0)),
    (SimpleNamespace(x=1), SimpleNamespace(x=2)),
]
if torch:
    LARGE = pytest.mark.large
    SAME += [
        pytest.param(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.000001], requires_grad=True), marks=LARGE),
        pytest.param(torch.tensor([0.1], dtype=torch.float64), numpy.array([0.1]), marks=LARGE),
        pytest.param(torch.tensor([0.5], dtype=torch.bfloat16), torch.tensor([0.5]), marks=LARGE),
    ]
    DIFFERENT.append(pytest.param(torch.tensor([1.0]), torch.tensor([1.1]), marks=LARGE))


@pytest.mark.parametrize(("a", "b"), SAME)
def test_equal_values_are_close(a, b):
    assert nearly_equal(a, b)
    assert nearly_equal(b, a)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different_values_are_not_close(a, b):
    assert not nearly_equal(a, b)
    assert not nearly_equal(b, a)


def test_zero_tolerance_means_equality():
    assert not nearly_equal(1.0, 1.0 + 1e-12, relative=0, absolute=0)
    assert nearly_equal([1.0], [1.0], relative=0, absolute=0)


@given(st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=4))
def test_arrays_are_compared_by_their_numbers(numbers):
    assert nearly_equal(numpy.array(numbers), numpy.array(numbers) + 1e-9)

"""Arrays are stacked with their like, and converted where that changes no value."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import PredictionCountError
from headrace.handlers.array_batches import fitted, predict_arrays


def test_examples_of_one_kind_are_one_call():
    calls = []

    def predict(rows):
        calls.append((rows.dtype.name, rows.shape))
        return rows.sum(axis=1)

    batch = [[1, 2], [0.5, 1.0], numpy.array([3, 4]), [5, 6, 7], [True, False]]
    assert [float(one) for one in predict_arrays(batch, predict)] == [3.0, 1.5, 7.0, 18.0, 1.0]
    assert calls == [("int64", (2, 2)), ("float64", (1, 2)), ("int64", (1, 3)), ("bool", (1, 2))]
    calls.clear()
    assert predict_arrays(batch, predict, "float32").__len__() == 5
    assert calls == [("float32", (4, 2)), ("float32", (1, 3))]


@given(
    shape=st.lists(st.integers(0, 3), max_size=3),
    count=st.integers(2, 5),
    dtype=st.sampled_from(["float64", ">f4", "int8", "bool", "object", "U3", "M8[s]"]),
    step=st.sampled_from([1, -1, 2]),
)
def test_a_stack_is_that_of_numpy(shape, count, dtype, step):
    stacks = []
    whole = numpy.arange(count * 2 * numpy.prod(shape, dtype=int)).reshape(count, *shape, 2).astype(dtype)
    examples = [array.T[0][..., ::step] if shape else array[0] for array in whole]
    predict_arrays(examples, lambda rows: stacks.append(rows) or [0] * count)
    (found,), expected = stacks, numpy.stack(examples)
    assert (found.dtype, found.shape, found.tolist()) == (expected.dtype, expected.shape, expected.tolist())
    assert found.flags.c_contiguous == expected.flags.c_contiguous  # a model may round by the order in memory


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_a_wrong_count_of_one_kind_is_one_of_the_batch(wrong):
    with pytest.raises(PredictionCountError, match=f"was given 2 examples and returned {wrong} prediction"):
        predict_arrays([[1, 2], [3, 4], [0.5, 1.0]], lambda rows: [0] * (wrong if len(rows) == 2 else 1))


def test_outputs_of_several_kinds_are_dicts():
    answer = predict_arrays([[1], [0.5]], lambda rows: {"twice": rows[:, 0] * 2, "half": rows[:, 0] / 2})
    assert answer == [{"twice": 2, "half": 0.5}, {"twice": 1.0, "half": 0.25}]


@pytest.mark.parametrize("rows", [lambda rows: rows[:, :1], lambda rows: rows, lambda rows: rows.sum(axis=1)])
def test_a_model_that_squeezes_has_a_row_for_a_single_example(rows):
    for batch in ([[1.0, 2.0]], [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]):
        expected = rows(numpy.array(batch))
        squeezed = expected.reshape([length for length in expected.shape if length != 1] if len(batch) > 1 else -1)
        found = predict_arrays(batch, lambda given: rows(given).squeeze())
        assert len(found) == len(batch)
        assert numpy.allclose(numpy.array(found).reshape(-1), squeezed.reshape(-1))
    for model in (lambda rows: rows.mean(), lambda rows: rows.sum(axis=0), lambda rows: rows[0]):  # of the whole batch
        assert numpy.shape(predict_arrays([[1.0, 2.0, 3.0]], model)) in {(), (3,)}


FITS = [
    ([1, 2], "int64", "float32"),
    ([1.5, numpy.inf, numpy.nan], "float64", "float32"),
    ([True], "bool", "float32"),
    ([1.0, -2.0], "float32", "int64"),
    ([1, 0], "int64", "bool"),
    ([1, 2.5], "object", "float32"),
    ([255], "int64", "uint8"),
    (["a"], "str", "object"),
]
REFUSED = [
    ([1.5], "float64", "int64", ValueError, "takes int64, which cannot hold 1\\.5;"),
    ([1e39], "float64", "float32", ValueError, "takes float32, which cannot hold"),
    ([256], "int64", "uint8", ValueError, "takes uint8, which cannot hold"),
    ([-1], "int64", "uint64", ValueError, "takes uint64, which cannot hold"),
    ([numpy.nan], "float64", "int64", ValueError, "takes int64, which cannot hold"),
    ([2], "int64", "bool", ValueError, "takes bool, which cannot hold"),
    (["1"], "str", "float32", TypeError, "takes float32, and an example is of <U1"),
    ([None, 1], "object", "float32", TypeError, "takes float32, and an example is of object"),
    ([1.0], "float64", "object", TypeError, "takes texts, and an example is of float64"),
]


@pytest.mark.parametrize(("values", "given", "wanted"), FITS)
def test_numbers_become_the_models_dtype(values, given, wanted):
    found = fitted(numpy.array(values, given), wanted)
    assert found.dtype == wanted or wanted == "object"
    assert numpy.array_equal(found.tolist(), values, equal_nan=given != "str")


@pytest.mark.parametrize(("values", "given", "wanted", "error", "complaint"), REFUSED)
def test_numbers_that_would_change_are_refused(values, given, wanted, error, complaint):
    with pytest.raises(error, match=complaint):
        fitted(numpy.array(values, given), wanted)

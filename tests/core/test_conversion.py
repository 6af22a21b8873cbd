"""One result per prediction, none lost; numbers from a file's rows, or an error that names the column; lengths."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import PredictionCountError, PredictionResult
from headrace.core.conversion import (
    column_numbers,
    parsed,
    predict_by_kind,
    row_length,
    single_output,
    text_length,
    to_numbers,
    to_results,
)


def test_each_example_stands_beside_its_prediction():
    results = to_results(iter("ab"), (n for n in (1, 2, 3)), "model")
    assert results == [PredictionResult(*row, "model") for row in (("a", 1), ("b", 2), (None, 3))]
    assert set(map(type, results)) == {PredictionResult}


@given(st.lists(st.one_of(st.booleans(), st.integers(0, 2), st.sampled_from([0.0, 1.0, "a", "b"])), max_size=8))
def test_a_call_has_examples_of_one_kind_only_and_each_gets_its_own_prediction(batch):
    calls = []

    def predict(alike):
        calls.append(list(alike))
        return [str(example) for example in alike]

    assert predict_by_kind(batch, map(type, batch), predict) == list(map(str, batch))
    assert sorted(map(repr, calls)) == sorted(
        repr([one for one in batch if type(one) is kind]) for kind in set(map(type, batch))
    )


def test_a_mapping_becomes_one_dict_for_each_example():
    results = to_results("ab", {"logit": numpy.array([1.0, 2.0]), "label": ["x", "y"]})
    assert [result.inference for result in results] == [{"logit": 1.0, "label": "x"}, {"logit": 2.0, "label": "y"}]


def test_outputs_that_are_no_predictions_of_the_examples_are_refused():
    with pytest.raises(PredictionCountError, match=r"differ in length.*'label': 1"):
        to_results("ab", {"logit": [1, 2], "label": ["x"]})
    for outputs in ("a", numpy.array(1.0)):
        with pytest.raises(PredictionCountError, match=r"^output 'label' of the model returned a"):
            to_results(["x"], {"logit": [1], "label": outputs})
    with pytest.raises(PredictionCountError, match=r"tuple of 2 outputs; give the handler an inference_fn"):
        single_output((numpy.zeros(2), numpy.ones(2)))


def test_numbers_are_accepted():
    given = [3, -2.5, True, "3", " +3.50 ", ".5", "5.", "-1e-3", Decimal("1.5"), Fraction(1, 2), numpy.float32(0.5)]
    numbers = [3.0, -2.5, 1.0, 3.0, 3.5, 0.5, 5.0, -0.001, 1.5, 0.5, 0.5]
    assert [column_numbers("x", one) for one in given] == [[number] for number in numbers]
    assert column_numbers("x", given) == numbers
    assert column_numbers("x", numpy.arange(3)) == [0.0, 1.0, 2.0]


WRONG = ["", "abc", "1,5", "1_000", "nan", "inf", "0x10", "\u0663", None, float("nan"), float("-inf"), 1j, b"1"]


@pytest.mark.parametrize("value", [*WRONG, 10**400, "1" * 400, [[1]], [1, None], {"a": 1}, print], ids=repr)
def test_a_value_that_is_no_number_is_named_with_its_column(value):
    with pytest.raises(ValueError, match=r"^column 'weight' holds .*, which is not a finite number\.$"):
        column_numbers("weight", value)


def test_columns_follow_each_other_in_the_rows_order():
    assert to_numbers({"b": "1", "a": [2, 3], "c": 4.0}) == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="at least one column"):
        to_numbers({})


def test_parsing_changes_only_text_that_is_entirely_a_number():
    expected = {"7": 7, "7.0": 7.0, "1e2": 100.0, " 7": 7, "7 kg": "7 kg", "": "", "nan": "nan", None: None}
    assert repr({value: parsed(value) for value in expected}) == repr(expected)


@given(st.floats(allow_nan=False, allow_infinity=False), st.text())
def test_parsing_equals_pythons_own_and_never_fails(number, text):
    assert parsed(repr(number)) == number
    assert isinstance(parsed(text), str | int | float)


def test_text_length_counts_words_parts_of_long_words_and_signs():
    tokens = {"": 2, "the film": 4, "the  film.\n": 5, "internationalization": 5, "x[1234]": 7, "é日本": 5}
    assert {text: text_length(text) for text in tokens} == tokens


def test_text_length_adds_up_the_texts_of_a_container():
    assert text_length({"question": "who?", "context": "me"}) == text_length("who?") + text_length("me")
    assert text_length(("a b", ["c"], 7)) == text_length("a b") + text_length("c")


def test_text_length_never_raises():
    assert {text_length(example) for example in (None, 7, b"bytes", [], {}, object())} == {1}


def test_row_length_is_a_number_or_that_of_a_text_and_never_refuses_a_row():
    lengths = [(7, 7), (2.5, 2.5), ("the film", 4), (["the", "film"], 6), ([5, 6, 7], 3)]
    lengths += [(value, 1) for value in (None, 0, -3, math.nan, math.inf, {})]
    assert [(value, row_length(value)) for value, _ in lengths] == lengths

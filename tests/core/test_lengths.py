"""Lengths of texts are about those of their tokens."""

import math

import pytest

from headrace.core.lengths import OfExample, row_length, text_length


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 2),
        ("the film", 4),
        ("the  film.\n", 5),
        ("internationalization", 5),
        ("x[1234]", 7),
        ("é日本", 5),
    ],
)
def test_text_length_counts_words_parts_of_long_words_and_signs(text, tokens):
    assert text_length(text) == tokens


def test_text_length_adds_up_the_texts_of_a_container():
    assert text_length({"question": "who?", "context": "me"}) == text_length("who?") + text_length("me")
    assert text_length(("a b", ["c"], 7)) == text_length("a b") + text_length("c")


@pytest.mark.parametrize("example", [None, 7, b"bytes", [], {}, object()])
def test_text_length_never_raises(example):
    assert text_length(example) == 1


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (7, 7),
        (2.5, 2.5),
        ("the film", 4),
        (["the", "film"], 6),
        ([5, 6, 7], 3),
        (None, 1),
        (0, 1),
        (-3, 1),
        (math.nan, 1),
        (math.inf, 1),
        ({}, 1),
    ],
)
def test_row_length_is_a_number_or_that_of_a_text_and_never_refuses_a_row(value, length):
    assert row_length(value) == length


def test_length_of_a_pairs_example_leaves_what_is_no_pair_to_the_model():
    measure = OfExample(len, if_any=True)
    assert [measure(("key", "abc")), measure(7), measure(("alone",)), measure({})] == [3, 1, 1, 1]

"""Lengths of texts are about those of their tokens."""

import math

from headrace.core.lengths import OfExample, row_length, text_length


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


def test_length_of_a_pairs_example_leaves_what_is_no_pair_to_the_model():
    measure = OfExample(len, if_any=True)
    assert [measure(("key", "abc")), measure(7), measure(("alone",)), measure({})] == [3, 1, 1, 1]

"""Prompts and conversations are made of texts, of rows, and of messages."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigurationError
from headrace.handlers.generation import as_messages
from headrace.handlers.prompts import PromptRows, Prompts

USER = {"role": "user", "content": "b"}


class Rows(PromptRows):
    def __init__(self, template=None, *, takes_conversations=True):
        self._prompts, self._takes_conversations = Prompts("H", template), takes_conversations


@pytest.mark.parametrize(
    ("template", "row", "prompt"),
    [
        ("{a}", {"a": "x"}, "x"),
        ("{a}: {b:.1f} {{c}}", {"a": 1, "b": 2.25}, "1: 2.2 {c}"),
        ("{a[b]} {c!r}", {"a": {"b": "x"}, "c": "y"}, "x 'y'"),
    ],
)
def test_template_makes_the_prompt_of_a_row(template, row, prompt):
    assert Prompts("H", template).text(row) == prompt
    assert Rows(template).example_from_row(row) == prompt
    assert Rows(template, takes_conversations=False).example_from_row(row) == prompt


@pytest.mark.parametrize(
    ("template", "row", "said"),
    [
        ("{a}", {"b": 1}, "the prompt needs a column 'a'; the row has b"),
        *(("{a}", {"a": value}, "column 'a', .* is empty") for value in (None, "")),
        *(("{a[title]}", {"a": value}, "the row lacks what the prompt needs") for value in ({}, [], 5)),
    ],
)
def test_missing_and_empty_columns_are_named(template, row, said):
    with pytest.raises(ValueError, match=said):
        Prompts("H", template).text(row)


@pytest.mark.parametrize(
    ("example", "conversation"),
    [
        ("a", ("s", [{"role": "user", "content": "a"}])),
        ({"x": "a"}, ("s", [{"role": "user", "content": "<a>"}])),
        ([USER], ("s", [USER])),
        ((USER,), ("s", [USER])),
        ([{"role": "system", "content": "own"}, USER], ("own", [USER])),
    ],
)
def test_conversations_are_made_of_every_sort_of_example(example, conversation):
    assert Prompts("H", "<{x}>", "s").conversation(example) == conversation


@pytest.mark.parametrize(
    ("example", "error", "said"),
    [
        (3, TypeError, "an example must be a text, or a row with prompt=, not 3"),
        ({"x": 1}, TypeError, r"the example is a row \(x\); give H prompt="),
        (["a"], TypeError, "a message must be a dict with 'role' and 'content', not 'a'"),
        ([], ValueError, "the conversation has no messages to answer"),
        ([{"role": "system", "content": "s"}], ValueError, "no messages to answer"),
    ],
)
def test_what_is_no_example_is_named(example, error, said):
    with pytest.raises(error, match=said):
        Prompts("H").conversation(example)


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"any": "a"}, "a"),
        ({"any": 7}, "7"),
        ({"system": "s", "user": "b"}, [{"role": "system", "content": "s"}, USER]),
        ({"system": None, "user": "b"}, [USER]),
        ({"system": "", "user": "b"}, [USER]),
        ({"messages": [USER]}, [USER]),
        ({"messages": [USER], "id": 3}, [USER]),
        ({"messages": "a"}, "a"),
    ],
)
def test_rows_become_prompts_and_conversations(row, example):
    assert Rows().example_from_row(row) == example


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"a": "x", "b": "y"}, "choose one column with the prompt .*--columns.* of a, b"),
        ({"a": None}, "column 'a' holds None, which is no text"),
        ({"a": ""}, "column 'a', which is the prompt, is empty"),
        ({"user": ["x"], "system": "s"}, "column 'user' holds .* no text"),
    ],
)
def test_rows_of_which_no_prompt_can_be_made_are_named(row, said):
    with pytest.raises(ValueError, match=said):
        Rows().example_from_row(row)


@pytest.mark.parametrize(
    ("template", "columns", "is_conversation"),
    [
        (None, ["any"], False),
        ("{a}", ["a", "b"], False),
        (None, ["system", "user"], True),
        (None, ["messages", "id"], True),
    ],
)
def test_columns_of_which_a_prompt_can_be_made_are_accepted(template, columns, is_conversation):
    Rows(template, takes_conversations=is_conversation).refuse_columns(columns)


@pytest.mark.parametrize(
    ("columns", "is_conversation"), [(["id", "text"], True), (["system", "user"], False), (["messages", "id"], False)]
)
def test_columns_of_which_no_prompt_can_be_made_are_refused(columns, is_conversation):
    with pytest.raises(ConfigurationError, match=r"choose one column .*--columns.* of .*--prompt"):
        Rows(takes_conversations=is_conversation).refuse_columns(columns)


def test_message_without_content_is_refused_where_a_template_would_make_an_empty_one_of_it():
    assert as_messages([USER]) == [USER]
    with pytest.raises(TypeError, match=r"'role' and 'content', not \{'role': 'user', 'text'"):
        as_messages([{"role": "user", "text": "b"}])

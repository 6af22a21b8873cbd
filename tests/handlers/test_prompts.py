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


def test_template_makes_the_prompt_of_a_row():
    for template, row, prompt in (
        ("{a}", {"a": "x"}, "x"),
        ("{a}: {b:.1f} {{c}}", {"a": 1, "b": 2.25}, "1: 2.2 {c}"),
        ("{a[b]} {c!r}", {"a": {"b": "x"}, "c": "y"}, "x 'y'"),
    ):
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


def test_conversations_are_made_of_every_sort_of_example():
    for example, conversation in (
        ("a", ("s", [{"role": "user", "content": "a"}])),
        ({"x": "a"}, ("s", [{"role": "user", "content": "<a>"}])),
        ([USER], ("s", [USER])),
        ((USER,), ("s", [USER])),
        ([{"role": "system", "content": "own"}, USER], ("own", [USER])),
    ):
        assert Prompts("H", "<{x}>", "s").conversation(example) == conversation
    for example, error, said in (
        (3, TypeError, "an example must be a text, or a row with prompt=, not 3"),
        ({"x": 1}, TypeError, r"the example is a row \(x\); give H prompt="),
        (["a"], TypeError, "a message must be a dict with 'role' and 'content', not 'a'"),
        ([], ValueError, "the conversation has no messages to answer"),
        ([{"role": "system", "content": "s"}], ValueError, "no messages to answer"),
    ):
        with pytest.raises(error, match=said):
            Prompts("H").conversation(example)


def test_rows_become_prompts_and_conversations():
    for row, example in (
        ({"any": "a"}, "a"),
        ({"any": 7}, "7"),
        ({"system": "s", "user": "b"}, [{"role": "system", "content": "s"}, USER]),
        ({"system": None, "user": "b"}, [USER]),
        ({"system": "", "user": "b"}, [USER]),
        ({"messages": [USER]}, [USER]),
        ({"messages": [USER], "id": 3}, [USER]),
        ({"messages": "a"}, "a"),
    ):
        assert Rows().example_from_row(row) == example
    for said, row in {
        "choose one column with the prompt .*--columns.* of a, b": {"a": "x", "b": "y"},
        "column 'a' holds None, which is no text": {"a": None},
        "column 'a', which is the prompt, is empty": {"a": ""},
        "column 'user' holds .* no text": {"user": ["x"], "system": "s"},
    }.items():
        with pytest.raises(ValueError, match=said):
            Rows().example_from_row(row)


def test_columns_are_refused_of_which_no_prompt_can_be_made():
    Rows(takes_conversations=False).refuse_columns(["any"])
    Rows("{a}", takes_conversations=False).refuse_columns(["a", "b"])
    for roles in (["system", "user"], ["messages", "id"]):
        Rows().refuse_columns(roles)
        with pytest.raises(ConfigurationError, match=r"choose one column .*--columns.* of .*--prompt"):
            Rows(takes_conversations=False).refuse_columns(roles)
    with pytest.raises(ConfigurationError, match=r"choose one column .*--columns.* of .*--prompt"):
        Rows().refuse_columns(["id", "text"])


def test_message_without_content_is_refused_where_a_template_would_make_an_empty_one_of_it():
    assert as_messages([USER]) == [USER]
    with pytest.raises(TypeError, match=r"'role' and 'content', not \{'role': 'user', 'text'"):
        as_messages([{"role": "user", "text": "b"}])

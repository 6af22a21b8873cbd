"""Errors say what happened and what to do."""

from __future__ import annotations

import inspect

import pytest

from headrace.core import errors


def test_the_tree_at_the_head_of_the_file_is_complete():
    drawn = errors.__doc__
    defined = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]
    assert [cls.__name__ for cls in defined if issubclass(cls, Exception) and cls.__name__ not in drawn] == [
        "NotYetHonouredWarning"
    ]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            errors.MissingExtraError("torch", "pytorch"),
            "torch is not .* 'pytorch' with: pip install .*\"torch>=",
        ),
        (errors.UnsupportedError("time travel", "wait"), "time travel is not available .*; wait."),
        (errors.PredictionCountError("one for each"), "one for each"),
        (errors.UnknownKeyError("k"), "key 'k' belongs to no KeyModelMapping"),
    ],
)
def test_messages_name_the_cause_and_the_cure(error, message):
    with pytest.raises(errors.HeadraceError, match=message):
        raise error


def test_beams_callers_may_catch_the_exceptions_they_used_to():
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.MissingExtraError, ImportError)
    assert issubclass(errors.UnknownKeyError, KeyError)
    assert issubclass(errors.RateLimitExceeded, RuntimeError)


def test_type_names_are_qualified_unless_builtin():
    assert errors.as_type_name(ValueError()) == "ValueError"
    assert errors.as_type_name(errors.HeadraceError) == "headrace.core.errors.HeadraceError"

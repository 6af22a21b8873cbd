"""Errors say what happened and what to do."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
from pathlib import Path

import pytest

import headrace
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
        (errors.MissingExtraError("torch", "pytorch"), "torch is not .* 'pytorch' with: pip install .*\"torch>="),
        (errors.UnsupportedError("time travel", "wait"), "time travel is not available .*; wait."),
        (errors.PredictionCountError("one for each"), "one for each"),
        (errors.UnknownKeyError("k"), "key 'k' belongs to no KeyModelMapping"),
    ],
)
def test_messages_name_the_cause_and_the_cure(error, message):
    with pytest.raises(errors.HeadraceError, match=message):
        raise error


def errors_within(folder):
    """The exceptions that the source defines, as module and name, without importing frameworks."""
    for path in sorted(folder.rglob("*.py")):
        for name in re.findall(r"^class (\w+(?:Error|Traceback|Exceeded))\b", path.read_text(), re.MULTILINE):
            yield ".".join(["headrace", *path.relative_to(folder).with_suffix("").parts]), name


SOURCE = Path(headrace.__file__).parent
LARGE = ("headrace.handlers.huggingface_inference", "headrace.handlers.pytorch_inference")
CLASSES = [
    pytest.param(module, name, id=name, marks=[pytest.mark.large] if module in LARGE else [])
    for module, name in errors_within(SOURCE)
]
EXAMPLES = {
    "FallbackError": errors.FallbackError(ValueError("bad"), KeyError("worse")),
    "HostStartError": errors.HostStartError("a model", "its memory is short.", ["Traceback", "a line"]),
    "MissingExtraError": errors.MissingExtraError("torch", "pytorch"),
    "ModelMemoryError": errors.ModelMemoryError("a model", "it needs 3 GB."),
    "UnknownKeyError": errors.UnknownKeyError(3),
    "UnsupportedError": errors.UnsupportedError("time travel", "wait"),
}
"""Those that make their text of several arguments."""


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_error_survives_pickling_copying_and_a_longer_text(module, name):
    cls = getattr(importlib.import_module(module), name)
    error = EXAMPLES.get(name) or cls("went wrong")
    again = cls(error.args[0] + " [while running 'a step']", *error.args[1:])  # as Beam's runners do
    for copied, addition in (
        (pickle.loads(pickle.dumps(error)), ""),
        (copy.copy(error), ""),
        (copy.deepcopy(error), ""),
        (again, " [while running 'a step']"),
        (pickle.loads(pickle.dumps(again)), " [while running 'a step']"),
    ):
        assert type(copied) is cls
        assert str(copied) == str(error) + addition
        assert copied.args == (error.args[0] + addition,)


def test_beams_callers_may_catch_the_exceptions_they_used_to():
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.MissingExtraError, ModuleNotFoundError)
    assert issubclass(errors.UnknownKeyError, KeyError)
    assert issubclass(errors.RateLimitExceeded, RuntimeError)


class Attributed(ValueError):
    pass


def test_copy_of_an_error_has_all_but_its_traceback():
    try:
        try:
            raise Attributed("no", 7)
        except ValueError as error:
            error.code = 5
            raise error from KeyError("why")
    except ValueError as caught:
        error = caught
    copied = errors.copy_of(error)
    assert (type(copied), copied.args, copied.code) == (Attributed, ("no", 7), 5)
    assert (copied is not error, copied.__cause__ is error.__cause__, copied.__traceback__) == (True, True, None)

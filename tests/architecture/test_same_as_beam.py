"""Names, arguments, their kinds and their defaults are Beam's, so that a pipeline moves over by its imports."""

from __future__ import annotations

import inspect
from inspect import Parameter
from types import FunctionType
from typing import Any

import pytest
from apache_beam.ml.inference import base

import headrace.beam

CLASSES = sorted(
    name
    for name, value in vars(base).items()
    if isinstance(value, type) and value.__module__ == base.__name__ and not name.startswith("_")
)


def _methods(cls: type) -> list[str]:
    """Public methods that a class of Beam's inference module defines or inherits from another one there."""
    names = {name for parent in cls.__mro__ if parent.__module__ == base.__name__ for name in vars(parent)}
    found = [name for name in sorted(names) if not name.startswith("_") and callable(getattr(cls, name))]
    # A decorator that stands in the class body by accident; it cannot be called on an instance.
    return [name for name in found if name != "retry_on_exception"]


METHODS = [(cls, method) for cls in CLASSES for method in _methods(getattr(base, cls))]


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "RateLimitExceeded"])
def test_constructor(name):
    _assert_serves(inspect.signature(getattr(headrace.beam, name)), inspect.signature(getattr(base, name)))


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_method(name, method):
    ours, theirs = getattr(getattr(headrace.beam, name), method), getattr(getattr(base, name), method)
    _assert_serves(inspect.signature(ours), inspect.signature(theirs))


def test_model_handler_has_no_public_method_that_beams_has_not():
    assert _public_functions(headrace.beam.ModelHandler) == _public_functions(base.ModelHandler)


@pytest.mark.parametrize("name", ["ModelMetadata", "PredictionResult", "RunInferenceDLQ"])
def test_fields(name):
    assert getattr(headrace.beam, name)._fields == getattr(base, name)._fields


def test_rate_limit_exceeded_is_caught_as_beams_is():
    assert issubclass(headrace.beam.RateLimitExceeded, RuntimeError)


def test_the_comparison_notices_a_difference():
    def theirs(a: int, b: int = 1, *, c: bool = False) -> None: ...
    def renamed(a: int, z: int = 1, *, c: bool = False) -> None: ...
    def other_default(a: int, b: int = 2, *, c: bool = False) -> None: ...
    def positional_extra(a: int, b: int = 1, extra: int = 0, *, c: bool = False) -> None: ...
    def required_extra(a: int, b: int = 1, *, c: bool = False, extra: int) -> None: ...
    def keyword_extra(a: int, b: int = 1, *, c: bool = False, extra: int = 0) -> None: ...

    for other in (renamed, other_default, positional_extra, required_extra):
        with pytest.raises(AssertionError):
            _assert_serves(inspect.signature(other), inspect.signature(theirs))
    _assert_serves(inspect.signature(keyword_extra), inspect.signature(theirs))


def _assert_serves(ours: inspect.Signature, theirs: inspect.Signature) -> None:
    """Every call that ``theirs`` takes, ``ours`` takes with the same meaning; ours may have more keyword arguments."""
    more = {
        name
        for name, parameter in ours.parameters.items()
        if name not in theirs.parameters
        and (
            parameter.kind is Parameter.VAR_KEYWORD
            or (parameter.kind is Parameter.KEYWORD_ONLY and parameter.default is not Parameter.empty)
        )
    }
    mine = [_shape(parameter) for name, parameter in ours.parameters.items() if name not in more]
    assert mine == [_shape(parameter) for parameter in theirs.parameters.values()]


def _shape(parameter: Parameter) -> tuple[str, Any, Any]:
    default = parameter.default
    return parameter.name, parameter.kind, "a function" if isinstance(default, FunctionType) else default


def _public_functions(cls: type) -> set[str]:
    return {name for name, value in vars(cls).items() if not name.startswith("_") and callable(value)}

"""What a handler says that it predicts: in the annotation of ``run_inference``, or as a type argument of its base."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

ExampleT_contra = TypeVar("ExampleT_contra", contravariant=True)
PredictionT_co = TypeVar("PredictionT_co", covariant=True)

_FUNCTIONS = ("_inference_fn", "_model_inference_fn", "inference_fn")
"""Where handlers, Headrace's and Beam's, keep a function that predicts in their place."""
_OURS = ("headrace", "apache_beam")


class PredictingHandler(Protocol[ExampleT_contra, PredictionT_co]):
    """What type checkers need to know of a handler that is not derived from Headrace's ModelHandler, such as Beam's."""

    def load_model(self) -> Any:
        """As in ModelHandler."""

    def run_inference(
        self, batch: Sequence[ExampleT_contra], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionT_co]:
        """As in ModelHandler."""


def declared_prediction_type(handler: Any) -> Any:
    """The type of one prediction, as a handler, of any base, declares it; ``Any`` if it does not.

    Two declarations count: ``run_inference(...) -> Iterable[X]``, and ``class Mine(ModelHandler[Example, X, Model])``.
    One made by a base class says nothing of a ``run_inference`` that a subclass puts in its place, nor does it of an
    ``inference_fn`` of the user's. Type variables are followed through all generic bases.
    """
    for function in map(getattr(handler, "__dict__", {}).get, (*_FUNCTIONS, "run_inference")):
        module = str(getattr(_unwrapped(function), "__module__", None))
        if callable(function) and module.partition(".")[0] not in _OURS:
            return _with_arguments(_item_type(function), {})
    cls = type(handler)
    owner = next((base for base in cls.__mro__ if "run_inference" in vars(base)), cls)
    declared = _item_type(vars(owner).get("run_inference"))
    found = _type_argument(cls, owner) if declared is Any else _seen_from(cls, owner, declared)
    return _with_arguments(found, {})


def _type_argument(cls: type, owner: type) -> Any:
    """What ``cls``, or a base of it up to ``owner``, puts in the place of the type variable for predictions."""
    for root in cls.__mro__[1:]:
        variable = _item_type(vars(root).get("run_inference"))
        if isinstance(variable, TypeVar):
            bases = [base for one in cls.__mro__[: cls.__mro__.index(owner) + 1] for base in one.__bases__]
            is_left_open = any(isinstance(_seen_from(base, root, variable), TypeVar) for base in bases)
            return _seen_from(cls, root, variable) if is_left_open else Any
    return Any


def _seen_from(cls: type, ancestor: type, declared: Any) -> Any:
    """A type that mentions type variables of ``ancestor``, with what ``cls`` puts in their places."""
    if cls is ancestor:
        return declared
    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if isinstance(origin, type) and issubclass(origin, ancestor):
            names = getattr(sys.modules.get(cls.__module__), "__dict__", {})
            arguments = (evaluated(one, names) for one in get_args(base))
            given = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
            return _with_arguments(_seen_from(origin, ancestor, declared), given)
    return Any


def _with_arguments(declared: Any, given: Mapping[Any, Any]) -> Any:
    """The type with its type variables replaced by what they stand for; unknown ones by ``Any``."""
    if isinstance(declared, TypeVar):
        return given.get(declared, Any)
    if get_origin(declared) is None or not declared.__parameters__:
        return declared
    return declared[tuple(given.get(one, Any) for one in declared.__parameters__)]


def _item_type(function: Any) -> Any:
    """X of a function annotated to return an iterable of X; else ``Any``."""
    function = _unwrapped(function)
    try:
        annotation = function.__annotations__["return"]  # Python 3.14 evaluates it now, and so may fail
    except Exception:
        return Any
    returned = evaluated(annotation, getattr(function, "__globals__", {}))
    origin, arguments = get_origin(returned), get_args(returned)
    is_iterable = isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping | tuple)
    return arguments[0] if is_iterable and arguments else Any


def evaluated(annotation: Any, names: Mapping[str, Any]) -> Any:
    """An annotation, or type argument, that may be a string; ``Any`` if a name in it exists for type checkers only."""
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"it": annotation}), dict(names))["it"]
    except Exception:
        return Any


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function) if callable(function) else function

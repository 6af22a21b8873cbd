"""Adds to an error of a handler the mistake that most likely led to it, where the error itself does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.transferable import short_repr
from headrace.runtime.plan import Plan

_OF_NONE = "NoneType"
_OF_PAIRS = ("tuple", "inhomogeneous", "with a sequence")
_TYPES = (AttributeError, TypeError, ValueError, RuntimeError)
"""Of errors with one text; a KeyError's argument is the key."""


def add_hint(error: BaseException, plan: Plan, name: Any, model: Any, elements: Sequence[Any]) -> None:
    """Extends the text of an error that inference raised, if a common mistake explains it.

    Args:
        error: what the handler raised; it keeps its type and its attributes.
        plan: the handler, parsed.
        name: of the model.
        model: what ``load_model`` returned.
        elements: the batch.
    """
    if not isinstance(error, _TYPES) or len(error.args) != 1 or not isinstance(error.args[0], str):
        return
    hint = _hint(error.args[0], plan, name, model, elements)
    if hint and hint not in error.args[0]:
        error.args = (f"{error.args[0]} ({hint})",)


def _hint(text: str, plan: Plan, name: Any, model: Any, elements: Sequence[Any]) -> str | None:
    handler = plan.models[name]
    who = type(handler).__qualname__
    if model is None and _OF_NONE in text:
        return f"{who}.load_model returned None; does it lack a return?"
    if _tells_of_pairs(text, elements) and not plan.keyed and not hasattr(handler, "unkeyed"):
        shown = " ".join(short_repr(elements[0]).split())
        return (
            f"the examples are pairs, such as {shown}; if their first parts are keys, wrap the "
            f"handler: KeyedModelHandler({who}(...))"
        )
    return None


def _tells_of_pairs(text: str, elements: Sequence[Any]) -> bool:
    """Whether the elements look like pairs with keys, and the text looks as if that were the problem."""
    if not all(type(one) is tuple and len(one) == 2 and isinstance(one[0], str | bytes | int) for one in elements):
        return False
    key = elements[0][0]
    return any(word in text for word in _OF_PAIRS) or (not isinstance(key, int) and repr(key) in text)

"""Dead letters and skipped elements that any step behind can be given.

A runner encodes what it shuffles, and fails where it cannot.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from apache_beam import coders

from headrace.core.result import ErrorRecord
from headrace.core.transferable import encodable_text, short_repr, transferable, with_parts

_CODER = coders.FastPrimitivesCoder()
"""What Beam takes for elements of which it knows no type, as of dead letters."""
_SURROGATE = b"\xed"
"""With which one begins in a pickle, where it is no error; so do other letters."""
_MEMORY = {"cpu", "meta"}
_PLAIN = {bool, int, float, str, bytes, type(None)}
_DEEPEST = 10
"""Containers within each other that are looked through for arrays."""


def encodable(record: tuple[Any, ErrorRecord]) -> tuple[Any, ErrorRecord]:
    """The dead letter itself, if its parts can be encoded and decoded; else one with texts in place of what cannot.

    Arrays on an accelerator are in the CPU's memory in it: who reads it may have no accelerator.
    """
    element, error = record
    parts = element, error.key, error.source, error.model_id
    here = _in_memory(parts)
    if here is parts and _travels((record, error.key, error.model_id, *error[1:])):
        return record
    element, key, source, model_id = (transferable(part, _travels) for part in here)
    cls, described, lines = error
    triple = _sendable(cls), encodable_text(described), list(map(encodable_text, lines))
    return element, ErrorRecord(
        triple, attempts=error.attempts, model_id=model_id, key=key, source=source, wrapped=error.wrapped
    )


def encodable_element(element: Any) -> Any:
    """The same of an element that was skipped."""
    return transferable(_in_memory(element), _travels)


def _travels(value: Any) -> bool:
    """Whether the coder can encode and decode it. What it does not know it pickles, which is faster for all of it."""
    try:
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        pickle.loads(content)
        if _SURROGATE in content:
            _CODER.encode(value)
    except Exception:
        return False
    return True


def _sendable(cls: type[BaseException]) -> type[BaseException]:
    """The class, or its first base that can be pickled."""
    return next(base for base in cls.__mro__ if _travels(base))


def _in_memory(value: Any) -> Any:
    return _on_cpu(value) if "torch" in sys.modules else value


def _on_cpu(value: Any, depth: int = _DEEPEST) -> Any:
    """The same, with arrays that tuples, lists and dicts hold on an accelerator in the CPU's memory."""
    if type(value) in _PLAIN:
        return value
    if depth:
        made = with_parts(value, lambda part: _on_cpu(part, depth - 1))
        if made is not value:
            return made
    try:
        return value if value.device.type in _MEMORY else value.cpu()
    except AttributeError:  # no tensor
        return value
    except Exception:  # the device is lost
        return short_repr(value)

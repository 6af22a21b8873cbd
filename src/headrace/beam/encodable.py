"""Makes dead letters and skipped elements encodable: a runner encodes what it shuffles, and fails where it cannot."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from apache_beam import coders

from headrace.core.result import ErrorRecord
from headrace.core.transferable import encodable_text, short_repr, transferable, with_parts

_CODER = coders.FastPrimitivesCoder()
"""Beam's coder for elements of unknown type, such as dead letters."""
_SURROGATE = b"\xed"
"""The first byte of a surrogate in a pickle; other characters begin with it, too."""
_IN_MEMORY = {"cpu", "meta"}
_PLAIN = {bool, int, float, str, bytes, type(None)}
_DEEPEST = 10
"""How many levels of containers are searched for arrays."""


def encodable_record(record: tuple[Any, ErrorRecord]) -> tuple[Any, ErrorRecord]:
    """The dead letter itself if Beam can encode and decode it; else a copy with text for each part that it cannot.

    Arrays on an accelerator are copied to the CPU's memory: the reader may have no accelerator.
    """
    element, error = record
    parts = element, error.key, error.source, error.model_id
    in_memory = _in_memory(parts)
    if in_memory is parts and _is_encodable((record, error.key, error.model_id, *error[1:])):
        return record
    element, key, source, model_id = (transferable(part, _is_encodable) for part in in_memory)
    cls, described, lines = error
    cls = next(base for base in cls.__mro__ if _is_encodable(base))
    triple = cls, encodable_text(described), list(map(encodable_text, lines))
    return element, ErrorRecord(
        triple, attempts=error.attempts, model_id=model_id, key=key, source=source, wrapped=error.wrapped
    )


def encodable_element(element: Any) -> Any:
    """The element if Beam can encode and decode it; else a copy, as ``encodable_record`` makes one."""
    return transferable(_in_memory(element), _is_encodable)


def _is_encodable(value: Any) -> bool:
    """Whether the coder can encode and decode a value. It pickles unknown types; to pickle the whole is faster."""
    try:
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        pickle.loads(content)
        if _SURROGATE in content:
            _CODER.encode(value)
    except Exception:
        return False
    return True


def _in_memory(value: Any, depth: int = _DEEPEST) -> Any:
    """The value; arrays on an accelerator, also in tuples, lists and dicts, are copied to the CPU's memory."""
    if type(value) in _PLAIN or "torch" not in sys.modules:
        return value
    if depth:
        copy = with_parts(value, lambda part: _in_memory(part, depth - 1))
        if copy is not value:
            return copy
    try:
        return value if value.device.type in _IN_MEMORY else value.cpu()
    except AttributeError:  # no tensor
        return value
    except Exception:  # the device is lost
        return short_repr(value)

"""Pickles a handler for another process, or raises an error that names the attribute that does not pickle."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections import ChainMap
from collections.abc import Iterator
from functools import partial
from types import FunctionType
from typing import Any, ClassVar

import cloudpickle

from headrace.core.errors import ConfigurationError, as_type_name
from headrace.core.locks import LOCKS
from headrace.core.transferable import short_repr

PROTOCOL = 5
_DEEPEST = 8
"""How many levels of attributes, containers and functions are searched."""


def pickle_or_explain(value: Any, name: str, part: Any = None) -> bytes:
    """Pickles a value for another process; functions and classes that cannot be imported there go by value.

    Locks arrive as new ones.

    Args:
        value: a handler, or an object that contains one.
        name: what error messages call it: the handler's class.
        part: the handler inside ``value``, searched first for the culprit; None: ``value`` is the handler.

    Raises:
        ConfigurationError: it does not pickle; the message names the attribute or variable at fault.
    """
    content = io.BytesIO()
    try:
        _Pickler(content, PROTOCOL).dump(value)
    except Exception as error:
        culprit, where = _culprit(value, name) if _pickles(part) else _culprit(part, type(part).__name__)
        raise ConfigurationError(
            f"{name} cannot go to the process in which its model is to live: {where}, of type "
            f"{as_type_name(type(culprit))}, does not pickle ({as_type_name(error)}: {str(error)[:10_000]}). "
            "Make it in load_model, which runs in that process; or leave it out of the constructor, or out "
            "of what __getstate__ returns."
        ) from error
    return content.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = ChainMap(dict(LOCKS), *cloudpickle.Pickler.dispatch_table.maps)


def _culprit(value: Any, path: str, depth: int = _DEEPEST) -> tuple[Any, str]:
    """The innermost part that does not pickle, as far as it is easily found, and the path to it."""
    with contextlib.suppress(Exception):  # user objects may raise at any attribute access
        for part, where in _parts(value, path) if depth else ():
            if part is not value and not _pickles(part):
                return _culprit(part, where, depth - 1)
    return value, path


def _parts(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(value, dict):
        yield from ((part, f"{path}[{short_repr(key)}]") for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((part, f"{path}[{number}]") for number, part in enumerate(value))
    elif isinstance(value, partial):
        yield from ((value.func, f"{path}.func"), (value.args, f"{path}.args"), (value.keywords, f"{path}.keywords"))
    elif isinstance(value, FunctionType):
        variables = inspect.getclosurevars(value)
        for name, part in {**variables.globals, **variables.nonlocals}.items():
            yield part, f"the variable `{name}` of the function {value.__qualname__} ({path})"
    else:
        reduced = value.__reduce_ex__(PROTOCOL)
        state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
        for attributes in state if isinstance(state, tuple) else (state,):  # with __slots__ there are two dicts
            yield from ((part, f"{path}.{name}") for name, part in (attributes or {}).items())


def _pickles(value: Any) -> bool:
    try:
        _Pickler(_Nowhere(), PROTOCOL).dump(value)
    except Exception:
        return False
    return True


class _Nowhere:
    """A file that discards what is written: a trial must not hold a model's weights twice."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes

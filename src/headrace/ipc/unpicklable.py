"""Pickles a handler for another process, or raises an error that names the attribute that does not pickle."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, NamedTuple

import cloudpickle

from headrace.core.errors import ConfigurationError, as_type_name

PROTOCOL = 5
MEMBERS = (GetSetDescriptorType, MemberDescriptorType)
_LONGEST_TEXT = 100_000
"""Limit, in characters, of a text that replaces an unpicklable value."""
PLAIN = (str, bytes, int, float, complex, bool)


def pickle_or_explain(value: Any, name: str, part: Any = None) -> bytes:
    """Pickles a value for another process; functions and classes that cannot be imported there go by value.

    Args:
        value: a handler, or an object that contains one.
        name: what error messages call it: the handler's class.
        part: the handler inside ``value``, searched first for the culprit; None: ``value`` is the handler.

    Raises:
        ConfigurationError: it does not pickle; the message names the attribute or variable at fault.
    """
    try:
        content: bytes = cloudpickle.dumps(value, protocol=PROTOCOL)
    except Exception as error:
        culprit = _Search().culprit(part, value, name)
        raise ConfigurationError(
            f"{name} cannot go to the process in which its model is to live: {culprit.where}, of type "
            f"{as_type_name(type(culprit.value))}, does not pickle ({as_type_name(error)}: {text_of(str, error)}). "
            "Make it in load_model, which runs in that process; or leave it out of the constructor, or out "
            "of what __getstate__ returns."
        ) from error
    return content


class _Attribute(NamedTuple):
    """A value reached while searching, and the path to it."""

    value: Any
    path: str
    function: str = ""
    """The function whose variable the path begins with, if it begins with one."""

    @property
    def where(self) -> str:
        return f"the variable `{self.path}` of the function {self.function}" if self.function else self.path

    def attribute(self, name: object, value: Any) -> _Attribute:
        return self._replace(value=value, path=f"{self.path}.{name}")

    def item(self, key: Any, value: Any) -> _Attribute:
        return self._replace(value=value, path=f"{self.path}[{(text_of(repr, key) or '...')[:80]}]")


class _Search:
    """Finds the innermost part of a value that does not pickle, within 5,000 trials and 30 levels."""

    def __init__(self) -> None:
        self._parts_left = 5_000
        self._entered: dict[int, Any] = {}

    def culprit(self, part: Any, value: Any, name: str) -> _Attribute:
        start = _Attribute(value, name) if self._pickles(part) else _Attribute(part, type(part).__name__)
        with contextlib.suppress(Exception):  # user objects may raise at any attribute access
            return self._find(start, depth=30) or start
        return start

    def _find(self, part: _Attribute, depth: int) -> _Attribute | None:
        """Depth-first search; None: ``part`` fails only because of something that is already being searched."""
        self._entered[id(part.value)] = part.value
        is_to_blame = True
        for inner in _parts(part) if depth else ():
            if id(inner.value) not in self._entered:
                if self._pickles(inner.value):
                    continue
                found = self._find(inner, depth - 1)
                if found:
                    return found
            is_to_blame = False
        return part if is_to_blame else None

    def _pickles(self, value: Any) -> bool:
        if type(value) in PLAIN:
            return True
        self._parts_left -= 1
        try:
            if self._parts_left >= 0:
                cloudpickle.Pickler(_Nowhere(), PROTOCOL).dump(value)
        except Exception:
            return False
        return True


class _Nowhere:
    """A file that discards what is written: a trial must not hold a model's weights twice."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


_HELD = {
    FunctionType: ("__defaults__", "__kwdefaults__", "__dict__"),
    MethodType: ("__self__", "__func__"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    partial: ("func", "args", "keywords"),
}


def _parts(part: _Attribute) -> Iterator[_Attribute]:
    value = part.value
    if isinstance(value, FunctionType):
        function = value.__qualname__ if part.where == value.__qualname__ else f"{value.__qualname__} ({part.where})"
        yield from (_Attribute(held, name, function) for name, held in _variables(value).items())
    elif isinstance(value, dict):
        yield from (part.item(key, held) for key, held in value.items())
        yield from (_Attribute(key, f"a key of {part.where}") for key in value)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from (part.item(number, held) for number, held in enumerate(value))
    elif isinstance(value, type):
        yield from (_Attribute(base, base.__name__) for base in value.__bases__)
    yield from (part.attribute(name, held) for name, held in _attributes(value).items())
    yield _Attribute(type(value), type(value).__name__)


def _variables(function: FunctionType) -> dict[str, Any]:
    """The variables that a function uses from outside: globals of its module, and its closure."""
    known = function.__globals__
    variables = {name: known[name] for name in _names(function.__code__) if name in known}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # the cell is still empty
            variables[name] = cell.cell_contents
    return variables


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _attributes(value: Any) -> dict[str, Any]:
    if isinstance(value, type):
        held = {name: kept for name, kept in vars(value).items() if not isinstance(kept, MEMBERS)}
        return {**held, "_abc_impl": None}  # recreated with the class, like the member descriptors
    for kind, names in _HELD.items():
        if isinstance(value, kind):
            return {name: getattr(value, name) for name in names}
    try:
        reduced = value.__reduce_ex__(PROTOCOL)
    except Exception:
        return {}
    state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
    states = state if isinstance(state, tuple) else (state,)  # with __slots__ there are two dicts
    return {name: kept for each in states if isinstance(each, dict) for name, kept in each.items()}


def text_of(render: Callable[[Any], str], value: Any) -> str | None:
    """``render(value)``, cut to 100,000 characters; None if it raises."""
    try:
        return render(value)[:_LONGEST_TEXT]
    except Exception:
        return None

"""Sends any exception to another process: itself, a copy of its class, or else a ``RemoteError`` with its text."""

from __future__ import annotations

import builtins
import contextlib
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from headrace.core.errors import as_type_name
from headrace.core.events import Event
from headrace.ipc.serialization import all_reducers, pickled

_PLAIN = (str, bytes, int, float, bool, type(None))
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())
"""Python 3.10 has none."""


class RemoteError(Exception):
    """In place of an exception whose class does not pickle: names it, with its text and the attributes that pickle."""


def exception_reducers(
    errors: Iterable[BaseException], events: Iterable[Event] = ()
) -> dict[type, Callable[[Any], Any]]:
    """Reducers for those exceptions that would not survive pickling unchanged.

    Such an exception arrives as an object of its class, made without the constructor, with the arguments and attributes
    that pickle (an argument that does not becomes its repr); or as a ``RemoteError`` if that fails, too.

    Args:
        errors: the exceptions in one message. Each is pickled and unpickled here as a trial.
        events: the events in the message; some carry an error.

    Returns:
        Reducers by exact class, for a pickler's ``dispatch_table`` (set it before constructing a cloudpickle pickler).
    """
    reducers: dict[type, Callable[[Any], Any]] = {}
    for error in (*errors, *(event.error for event in events if hasattr(event, "error"))):
        reducers |= _of_members(error)
        if not _survives(error):
            reducers[type(error)] = _reduced
    return reducers


def _of_members(error: Any) -> dict[type, Callable[[Any], Any]]:
    return exception_reducers(error.exceptions) if isinstance(error, _GROUP) else {}


def _reduced(error: BaseException) -> Any:
    if _survives(error):  # it is of the same class as one that does not
        return error.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    cls, base = type(error), _built_in(type(error))
    attributes = {name: value for name, value in vars(error).items() if _survives(value)}
    args, own = (
        tuple(value if _survives(value) else _text(value, repr) for value in given)
        for given in (base.__reduce__(error)[1], error.args)
    )
    parts = cls, args, own, attributes
    try:
        str(_rebuild(*_round_trip(parts)))
    except Exception:
        return RemoteError, (f"{as_type_name(cls)}: {_text(error)}",), attributes
    return _rebuild, parts


def _rebuild(cls: type, args: tuple[Any, ...], own: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    base = _built_in(cls)
    copy = base.__new__(cls, *args)
    with contextlib.suppress(Exception):  # a SyntaxError's arguments, for one, may be such as it cannot start with
        base.__init__(copy, *args)
    for name, value in {"args": own, **attributes}.items():
        object.__setattr__(copy, name, value)  # a frozen dataclass's own __setattr__ refuses
    return copy


def _round_trip(value: Any) -> Any:
    """The value as it would arrive in another process; None: it would not."""
    try:
        pieces, buffers = pickled(value, all_reducers(_of_members(value)))
        return pickle.loads(b"".join(pieces), buffers=buffers)
    except Exception:
        return None


def _survives(value: Any) -> bool:
    """Whether a value survives pickling; an exception, whether it does so with its class, text and attributes."""
    if type(value) in _PLAIN:
        return True
    copy = _round_trip(value)
    if copy is None or not isinstance(value, BaseException):
        return copy is not None
    return type(copy) is type(value) and _text(copy) == _text(value) and vars(copy).keys() == vars(value).keys()


def _text(value: Any, render: Callable[[Any], str] = str) -> str | None:
    try:
        return render(value)
    except Exception:
        return None


def _built_in(cls: Any) -> Any:
    """The built-in class on which it is laid out: its ``__new__`` makes instances without the class's constructor."""
    while cls.__module__ != "builtins":
        cls = cls.__base__
    return cls


class HostTraceback(Exception):
    """The cause of an exception from another process; its text is the traceback there."""

    def __str__(self) -> str:
        return f"\n{super().__str__()}"


def with_traceback_of(error: BaseException, lines: Iterable[str]) -> BaseException:
    """Returns ``error`` with ``lines``, its traceback in another process, as its ``__cause__``.

    Fewer than two lines are no traceback and are not attached.
    """
    lines = list(lines)
    if len(lines) > 1:
        BaseException.__setattr__(error, "__cause__", HostTraceback("".join(lines)))  # works on frozen dataclasses
    return error

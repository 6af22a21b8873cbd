"""Sends any exception to another process: it arrives with its class name, text and attributes, pickleable or not."""

from __future__ import annotations

import builtins
import contextlib
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

from headrace.ipc.serialization import Reducers, all_reducers, pickled

_LONGEST_TEXT = 100_000
"""Limit, in characters, of a text that replaces an unpicklable value."""
_MADE_AT_RUN_TIME = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_PLAIN = (str, bytes, int, float, complex, bool)
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())
"""Python 3.10 has none."""
_TEXTS = "_headrace_texts"
_RENDERS: Mapping[str, Callable[[Any], str]] = {"__str__": str, "__repr__": repr}
_set_args = vars(BaseException)["args"].__set__


def stand_ins(errors: Iterable[BaseException]) -> dict[type, Callable[[Any], Any]]:
    """Reducers for those exceptions that would not survive pickling unchanged.

    They pickle as a stand-in: an object of the same class, made without calling the constructor, with those attributes
    and ``args`` that pickle (an argument that does not becomes its repr). If the class itself does not pickle, or the
    stand-in would lose its text, the stand-in gets a new class with the same name and the original's ``str`` and
    ``repr``, derived from the class itself or else its nearest base that works.

    Args:
        errors: the exceptions in one message. Each is pickled and unpickled here as a trial.

    Returns:
        Reducers by exact class, for a pickler's ``dispatch_table`` (set it before constructing a cloudpickle pickler).
        They hold the exceptions, so drop them with the message.
    """
    seen: dict[int, tuple[BaseException, Any]] = {}
    reducers: dict[type, Callable[[Any], Any]] = {}
    for error in errors:
        members = stand_ins(error.exceptions) if isinstance(error, _GROUP) else {}
        reducers.update(members)
        seen[id(error)] = error, _stand_in(error, all_reducers(members))
        if seen[id(error)][1] is not None:
            reducers[type(error)] = partial(_reduced, seen)
    return reducers


def _reduced(seen: dict[int, tuple[BaseException, Any]], error: BaseException) -> Any:
    if id(error) not in seen:
        seen[id(error)] = error, _stand_in(error, all_reducers())
    return seen[id(error)][1] or error.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _stand_in(error: BaseException, reducers: Reducers) -> tuple[Any, ...] | None:
    """What a reducer returns for an exception that would not survive pickling; None: it would."""
    if _survives(error, reducers):
        return None
    cls = type(error)
    args, own = (tuple(map(_sendable, given)) for given in (_arguments(error), error.args))
    attributes = {name: value for name, value in _attributes(error).items() if _survives(value)}
    shown = _text_of(repr, error) or f"{cls.__qualname__}(...)"
    said = _text_of(str, error)
    texts = shown if said is None else said, shown
    bases = [base for base in cls.__mro__ if issubclass(base, BaseException)]
    for base, name in ((cls, None), *((base, (cls.__module__, cls.__qualname__)) for base in bases)):
        more = {} if name is None else {_TEXTS: texts}
        reduced = _rebuild, (base, name, args, own, {**attributes, **more})
        copy = _round_trip(_Reduced(reduced), reducers)
        if copy is None:
            continue
        if name is not None or (_own_texts(copy) == _own_texts(error) and None not in _own_texts(copy)):
            return reduced
    return Exception, (texts[0],)


class _Reduced:
    """Pickles as a given reducer says."""

    def __init__(self, reduced: tuple[Any, ...]) -> None:
        self._reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def _round_trip(value: Any, reducers: Reducers) -> Any:
    """The value as it would arrive in another process; None: it would not."""
    try:
        pieces, buffers = pickled(value, reducers)
        return pickle.loads(b"".join(pieces), buffers=buffers)
    except Exception:
        return None


def _survives(value: Any, reducers: Reducers | None = None) -> bool:
    """Whether a value survives pickling; an exception, whether it does so unchanged."""
    if value is None or type(value) in _PLAIN:
        return True
    copy = _round_trip(value, reducers or all_reducers())
    return copy is not None and (not isinstance(value, BaseException) or _comparable(copy) == _comparable(value))


def _sendable(value: Any) -> Any:
    return value if _survives(value) else _plain_text(_text_of(str, value) or "", _text_of(repr, value) or "...")


def _comparable(error: BaseException) -> tuple[Any, ...]:
    """What a copy must have in common with an exception; of values that may not compare (arrays) their types."""
    values = [list(error.args), *_attributes(error).values()]
    return type(error), _shape(values), list(_attributes(error)), _own_texts(error)


def _shape(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value), [_shape(part) for part in value]
    return repr(value) if type(value) in _PLAIN else type(value)


def _own_texts(error: BaseException) -> list[str | None]:
    """Its ``str`` and ``repr``, where its class overrides them, without the memory addresses of default reprs."""
    own = [render for name, render in _RENDERS.items() if getattr(type(error), name) is not vars(BaseException)[name]]
    texts = [_text_of(render, error) for render in own]
    return [text and re.sub("0x[0-9a-fA-F]+", "0x", text) for text in texts]


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """With which the built-in base initializes itself: unlike ``args``, an OSError's include the file's name."""
    base: Any = _built_in(type(error))
    return tuple(base.__reduce__(error)[1])


def _attributes(error: BaseException) -> dict[str, Any]:
    """What an exception has in its ``__dict__`` and in ``__slots__``."""
    slots = [name for base in type(error).__mro__ for name in getattr(base, "__slots__", ())]
    return {**{name: getattr(error, name) for name in slots if hasattr(error, name)}, **vars(error)}


def _built_in(cls: type) -> type:
    """The nearest built-in base: its ``__new__`` and ``__init__`` make instances without the class's constructor."""
    while cls.__flags__ & _MADE_AT_RUN_TIME:
        cls = cls.__base__ or object
    return cls


def _rebuild(
    cls: type, name: tuple[str, str] | None, args: tuple[Any, ...], own: tuple[Any, ...], attributes: dict[str, Any]
) -> Any:
    """A stand-in: of the class itself, or of a subclass that is named like the original and says the stored texts."""
    base: Any = _built_in(cls)
    copy = base.__new__(cls if name is None else _named(cls, *name), *args)
    with contextlib.suppress(Exception):  # a SyntaxError's arguments, for one, may be such as it cannot start with
        base.__init__(copy, *args)
    _set_args(copy, own)
    for attribute, value in attributes.items():
        object.__setattr__(copy, attribute, value)  # a frozen dataclass's own __setattr__ refuses
    return copy


@lru_cache(maxsize=100)
def _named(base: type, module: str, qualname: str) -> type:
    """A subclass of ``base`` with the given name, whose ``str`` and ``repr`` return stored texts."""
    members = {"__module__": module, "__qualname__": qualname, "__str__": _said, "__repr__": _shown}
    return type(base)(qualname.rpartition(".")[2], (base,), members)


def _said(error: BaseException) -> str:
    """The stored text; of an error that somebody has made of the new class, as Beam does from a text, its own."""
    return str(getattr(error, _TEXTS, (BaseException.__str__(error),))[0])


def _shown(error: BaseException) -> str:
    return str(getattr(error, _TEXTS, (BaseException.__repr__(error),))[-1])


class _NestedText(str):
    """In place of an argument that does not pickle: has the same ``str`` and ``repr``."""

    shown: str

    def __repr__(self) -> str:
        return self.shown

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain_text, (str(self), self.shown)


def _plain_text(said: str, shown: str) -> _NestedText:
    text = _NestedText(said)
    text.shown = shown
    return text


def _text_of(render: Callable[[Any], str], value: Any) -> str | None:
    """``render(value)``, at most 100,000 characters of it; None if it raises."""
    try:
        return render(value)[:_LONGEST_TEXT]
    except Exception:
        return None


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

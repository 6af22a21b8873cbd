"""Sends any exception to another process: it arrives with its class name, text and attributes, pickleable or not."""

from __future__ import annotations

import builtins
import contextlib
import io
import pickle
import re
from collections.abc import Callable, Iterable
from functools import lru_cache, partialmethod
from types import MethodDescriptorType
from typing import Any

import cloudpickle

from headrace.ipc.serialization import all_reducers
from headrace.ipc.unpicklable import MEMBERS, PLAIN, PROTOCOL, text_of

_IS_MADE_AT_RUN_TIME = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_TEXTS = "_headrace_texts"
_own: Callable[[BaseException], dict[str, Any]] = vars(BaseException)["__dict__"].__get__  # bypasses class overrides
_args: Callable[[BaseException], tuple[Any, ...]] = vars(BaseException)["args"].__get__


def stand_ins(errors: Iterable[BaseException]) -> dict[type, Callable[[Any], Any]]:
    """Reducers for those exceptions that would not survive pickling unchanged.

    They pickle as a stand-in: an object of the same class, made without calling the constructor, with those attributes
    and ``args`` that pickle (an argument that does not becomes its repr). If the class itself does not pickle, or the
    stand-in would lose its text, the stand-in gets a new class with the same name and the original's ``str`` and
    ``repr``, derived from the class itself or else its nearest base that works. Nested exceptions are treated alike.

    Args:
        errors: the exceptions in one message. Each is pickled and unpickled here as a trial.

    Returns:
        Reducers by exact class, for a pickler's ``dispatch_table`` (set it before constructing a cloudpickle pickler).
        They hold the exceptions, so drop them with the message.
    """
    inspection = _Inspection()
    for error in errors:
        inspection.stand_in(error)
    return {type(error): inspection.reduce for error, stand_in in inspection.seen.values() if stand_in is not None}


class _Inspection:
    """Finds which exceptions survive pickling, and builds stand-ins for the others."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[BaseException, tuple[Any, ...] | None]] = {}
        """By id: each exception (kept alive) and its stand-in as a reducer's tuple; None: it needs none."""

    def reduce(self, error: BaseException) -> Any:
        stand_in = self.stand_in(error)
        return error.__reduce_ex__(PROTOCOL) if stand_in is None else stand_in

    def stand_in(self, error: BaseException) -> tuple[Any, ...] | None:
        if id(error) not in self.seen:
            self.seen[id(error)] = error, (Exception, ())  # ends the recursion where its parts refer back to it
            self.seen[id(error)] = error, None if self._arrives(error) else self._made(error)
        return self.seen[id(error)][1]

    def _arrives(self, error: BaseException) -> bool:
        try:
            return _is_alike(error, self._trip(error, root=error))
        except Exception:
            return False

    def _made(self, error: BaseException) -> tuple[Any, ...]:
        cls = type(error)
        args = tuple(arg if self._travels(arg) else _Described(text_of(repr, arg) or "...") for arg in _args(error))
        fields = {name: value for name, value in _fields(error).items() if self._travels(value)}
        own = {name: value for name, value in _own(error).items() if self._travels(value)}
        described = text_of(repr, error) or f"{cls.__qualname__}(...)"
        said = text_of(str, error)
        texts = (described if said is None else said, described)
        bases = [base for base in cls.__mro__ if issubclass(base, BaseException)]
        for base, name in ((cls, None), *((base, (cls.__module__, cls.__qualname__)) for base in bases)):
            state = (args, fields, own if name is None else {**own, _TEXTS: texts})
            stand_in = (_blank, (base, name, *_in_group(base, fields)), state, None, None, _fill)
            self.seen[id(error)] = error, stand_in
            if self._tells_the_same(error):
                return stand_in
        return Exception, (texts[0],)

    def _travels(self, value: Any) -> bool:
        try:
            self._trip(value)
        except Exception:
            return False
        return True

    def _tells_the_same(self, error: BaseException) -> bool:
        """Whether the stand-in survives pickling with a readable text, equal to the error's own where it has one."""
        try:
            copy = self._trip(error)
        except Exception:
            return False
        own = _own_words(type(error))
        words = [(_words(render, error), _words(render, copy), render in own) for render in _RENDERS]
        return all(now is not None and (was in (None, now) or not matters) for was, now, matters in words)

    def _trip(self, value: Any, root: BaseException | None = None) -> Any:
        """Pickles and unpickles a value; raises what either raises."""
        file = io.BytesIO()
        _PickleTrial(file, self, root).dump(value)
        return pickle.loads(file.getbuffer())


class _PickleTrial(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles exceptions through their stand-ins; only ``root`` without one."""

    def __init__(self, file: io.BytesIO, inspection: _Inspection, root: BaseException | None) -> None:
        self.dispatch_table = {**cloudpickle.Pickler.dispatch_table, **all_reducers()}  # super().__init__ reads it
        super().__init__(file, PROTOCOL)
        self._inspection = inspection
        self._root = root

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), BaseException):
            stand_in = None if obj is self._root else self._inspection.stand_in(obj)
            return NotImplemented if stand_in is None else stand_in
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:  # cloudpickle sends it by value
            cloudpickle.dumps(obj)
            return _class_here, (cloudpickle.cloudpickle._get_or_create_tracker_id(obj),)
        return reduced


def _class_here(identity: str) -> Any:
    """The class itself: unpickling it by value in this process would replace its members with copies."""
    return cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[identity]


def _is_alike(error: BaseException, copy: BaseException) -> bool:
    """Whether a copy has the same class, arguments, attributes and text."""
    cls = type(error)
    if type(copy) is not cls or not _is_same(_args(error), _args(copy)):
        return False
    held, got = {**_fields(error), **_own(error)}, {**_fields(copy), **_own(copy)}
    has_all = all(name in got and _is_same(value, got[name]) for name, value in held.items())
    if not has_all and isinstance(cls.__reduce__, MethodDescriptorType):  # a custom __reduce__ may omit some on purpose
        return False
    return all(_words(render, error) == _words(render, copy) for render in _own_words(cls))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two arguments look equal. Only plain types are compared: ``==`` of an array is an array."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) not in PLAIN or one == other or one != one  # noqa: PLR0124 - NaN


def _own_words(cls: type) -> list[Callable[[Any], str]]:
    """Which of ``str`` and ``repr`` the class overrides."""
    return [render for render, name in _RENDERS.items() if getattr(cls, name) is not vars(BaseException)[name]]


def _words(render: Callable[[Any], str], value: Any) -> str | None:
    """The text of a value, without the memory addresses of default reprs, for comparison."""
    text = text_of(render, value)
    return text and re.sub("0x[0-9a-fA-F]+", "0x", text)


_RENDERS: dict[Callable[[Any], str], str] = {str: "__str__", repr: "__repr__"}


def _fields(error: BaseException) -> dict[str, Any]:
    """Attributes that live outside ``args`` and ``__dict__``: OSError's ``errno``, a subclass's ``__slots__``."""
    fields: dict[str, Any] = {}
    for base in type(error).__mro__:
        if base in (AttributeError, NameError, BaseException, object):  # AttributeError.obj may be the whole model
            continue
        for name, member in vars(base).items():
            if isinstance(member, MEMBERS) and name not in ("__dict__", "__weakref__"):
                with contextlib.suppress(Exception):  # an unset slot
                    fields.setdefault(name, member.__get__(error))
    return fields


def _in_group(cls: type, fields: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments that an exception group's ``__new__`` needs; none for other classes."""
    if _built_in(cls) is not getattr(builtins, "BaseExceptionGroup", None):
        return ()
    return fields["message"], list(fields["exceptions"])


def _built_in(cls: type) -> type:
    """The nearest built-in base: only its ``__new__`` can make instances without the class's constructor."""
    while cls.__flags__ & _IS_MADE_AT_RUN_TIME:
        cls = cls.__base__ or object
    return cls


def _blank(cls: type, name: tuple[str, str] | None, *args: Any) -> Any:
    """An empty stand-in, filled afterwards so that its attributes may refer back to it."""
    return _built_in(cls).__new__(cls if name is None else _class_named(cls, *name), *args)


def _fill(blank: Any, state: tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]) -> None:
    args, fields, own = state
    vars(BaseException)["args"].__set__(blank, args)
    _own(blank).update(own)
    for name, value in fields.items():
        with contextlib.suppress(AttributeError, TypeError):  # an exception group's fields are read-only
            if getattr(blank, name, fields) is not value:
                object.__setattr__(blank, name, value)  # a frozen dataclass's own __setattr__ refuses


@lru_cache(maxsize=100)
def _class_named(base: type, module: str, qualname: str) -> type:
    """A subclass of ``base`` with the given name, whose ``str`` and ``repr`` return stored texts."""
    words = {name: partialmethod(_said, number) for number, name in enumerate(_RENDERS.values())}
    return type(base)(qualname.rpartition(".")[2], (base,), {"__module__": module, "__qualname__": qualname, **words})


def _said(error: BaseException, number: int) -> Any:
    return _own(error)[_TEXTS][number]


class _Described(str):
    """The repr of an argument that does not pickle; its own repr has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__


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

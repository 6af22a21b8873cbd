"""Exceptions on their way to another process: of whatever class they are, they arrive and say what they said."""

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
_own: Callable[[BaseException], dict[str, Any]] = vars(BaseException)["__dict__"].__get__  # whatever its class may say
_args: Callable[[BaseException], tuple[Any, ...]] = vars(BaseException)["args"].__get__


def stand_ins(errors: Iterable[BaseException]) -> dict[type, Callable[[Any], Any]]:
    """How to pickle those exceptions that would not arrive on their own, or not as they are.

    A stand-in is of the same class, made without its constructor, with the ``args`` and attributes that pickle; an
    argument that does not is replaced by its repr. Where the class does not pickle, or could not tell any more what
    it told, the stand-in's class is made for it: of the same name, with the texts that the original had, derived from
    the class if that can be had, else from its nearest base that can. Exceptions within exceptions are seen to as well.

    Args:
        errors: those in one message. They are pickled and unpickled here, for trial.

    Returns:
        Reducers by exact class, for a pickler's ``dispatch_table`` (cloudpickle's looks at it when it is constructed,
        not later); to be kept no longer than the message, since they hold its exceptions.
    """
    inspection = _Inspection()
    for error in errors:
        inspection.stand_in(error)
    return {type(error): inspection.reduce for error, stand_in in inspection.seen.values() if stand_in is not None}


class _Inspection:
    """Finds out which exceptions arrive, and how the others could."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[BaseException, tuple[Any, ...] | None]] = {}
        """By id: each exception with its stand-in, in the form that a reducer returns; None: it needs none."""

    def reduce(self, error: BaseException) -> Any:
        stand_in = self.stand_in(error)
        return error.__reduce_ex__(PROTOCOL) if stand_in is None else stand_in

    def stand_in(self, error: BaseException) -> tuple[Any, ...] | None:
        if id(error) not in self.seen:
            self.seen[id(error)] = error, (Exception, ())  # where something within it refers to it
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
        """Whether its stand-in arrives and has words; the error's own, if it has any."""
        try:
            copy = self._trip(error)
        except Exception:
            return False
        own = _own_words(type(error))
        words = [(_words(render, error), _words(render, copy), render in own) for render in _RENDERS]
        return all(now is not None and (was in (None, now) or not matters) for was, now, matters in words)

    def _trip(self, value: Any, root: BaseException | None = None) -> Any:
        """What becomes of a value on its way; raises what pickling or unpickling it raises."""
        file = io.BytesIO()
        _PickleTrial(file, self, root).dump(value)
        return pickle.loads(file.getbuffer())


class _PickleTrial(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles exceptions as they are to travel; only ``root`` as it would on its own."""

    def __init__(self, file: io.BytesIO, inspection: _Inspection, root: BaseException | None) -> None:
        self.dispatch_table = {**cloudpickle.Pickler.dispatch_table, **all_reducers()}  # which super().__init__ reads
        super().__init__(file, PROTOCOL)
        self._inspection = inspection
        self._root = root

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), BaseException):
            stand_in = None if obj is self._root else self._inspection.stand_in(obj)
            return NotImplemented if stand_in is None else stand_in
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:  # by value
            cloudpickle.dumps(obj)
            return _class_here, (cloudpickle.cloudpickle._get_or_create_tracker_id(obj),)
        return reduced


def _class_here(identity: str) -> Any:
    """A class that a trial has pickled by value; cloudpickle would put copies in place of all that it has."""
    return cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[identity]


def _is_alike(error: BaseException, copy: BaseException) -> bool:
    """Whether a copy has the same class, arguments, attributes and words."""
    cls = type(error)
    if type(copy) is not cls or not _is_same(_args(error), _args(copy)):
        return False
    held, got = {**_fields(error), **_own(error)}, {**_fields(copy), **_own(copy)}
    has_all = all(name in got and _is_same(value, got[name]) for name, value in held.items())
    if not has_all and isinstance(cls.__reduce__, MethodDescriptorType):  # else its author left something out
        return False
    return all(_words(render, error) == _words(render, copy) for render in _own_words(cls))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two arguments are the same as far as one can see: what ``==`` says may be an array, or anything."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) not in PLAIN or one == other or one != one  # noqa: PLR0124 - not a number


def _own_words(cls: type) -> list[Callable[[Any], str]]:
    """How a class renders its instances otherwise than by their arguments."""
    return [render for render, name in _RENDERS.items() if getattr(cls, name) is not vars(BaseException)[name]]


def _words(render: Callable[[Any], str], value: Any) -> str | None:
    """Its text, for comparison: less the addresses in memory that default reprs have."""
    text = text_of(render, value)
    return text and re.sub("0x[0-9a-fA-F]+", "0x", text)


_RENDERS: dict[Callable[[Any], str], str] = {str: "__str__", repr: "__repr__"}


def _fields(error: BaseException) -> dict[str, Any]:
    """What an exception holds beside ``args`` and its dict: OSError's ``errno``, a subclass's ``__slots__``."""
    fields: dict[str, Any] = {}
    for base in type(error).__mro__:
        if base in (AttributeError, NameError, BaseException, object):  # what the first two hold may be the model
            continue
        for name, member in vars(base).items():
            if isinstance(member, MEMBERS) and name not in ("__dict__", "__weakref__"):
                with contextlib.suppress(Exception):  # it has no value
                    fields.setdefault(name, member.__get__(error))
    return fields


def _in_group(cls: type, fields: dict[str, Any]) -> tuple[Any, ...]:
    """What a group of exceptions must be made with."""
    if _built_in(cls) is not getattr(builtins, "BaseExceptionGroup", None):
        return ()
    return fields["message"], list(fields["exceptions"])


def _built_in(cls: type) -> type:
    """The class of the interpreter's on which a class rests; only its ``__new__`` makes instances of the class."""
    while cls.__flags__ & _IS_MADE_AT_RUN_TIME:
        cls = cls.__base__ or object
    return cls


def _blank(cls: type, name: tuple[str, str] | None, *args: Any) -> Any:
    """A stand-in yet to be filled, so that what fills it may refer to it."""
    return _built_in(cls).__new__(cls if name is None else _class_named(cls, *name), *args)


def _fill(blank: Any, state: tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]) -> None:
    args, fields, own = state
    vars(BaseException)["args"].__set__(blank, args)
    _own(blank).update(own)
    for name, value in fields.items():
        with contextlib.suppress(AttributeError, TypeError):  # those of a group cannot be set
            if getattr(blank, name, fields) is not value:
                object.__setattr__(blank, name, value)  # that of a frozen dataclass refuses


@lru_cache(maxsize=100)
def _class_named(base: type, module: str, qualname: str) -> type:
    """A class that looks like another; its instances say what they were given to say."""
    words = {name: partialmethod(_said, number) for number, name in enumerate(_RENDERS.values())}
    return type(base)(qualname.rpartition(".")[2], (base,), {"__module__": module, "__qualname__": qualname, **words})


def _said(error: BaseException, number: int) -> Any:
    return _own(error)[_TEXTS][number]


class _Described(str):
    """Stands for an argument that does not pickle: its repr."""

    __slots__ = ()
    __repr__ = str.__str__


class HostTraceback(Exception):
    """Where an exception was raised in another process; its text is the traceback there."""

    def __str__(self) -> str:
        return f"\n{super().__str__()}"


def with_traceback_of(error: BaseException, lines: Iterable[str]) -> BaseException:
    """The same exception; when it is raised, ``lines``, of its traceback in another process, are shown as its cause.

    A single line, or none, is no traceback.
    """
    lines = list(lines)
    if len(lines) > 1:
        BaseException.__setattr__(error, "__cause__", HostTraceback("".join(lines)))  # even a frozen dataclass's
    return error

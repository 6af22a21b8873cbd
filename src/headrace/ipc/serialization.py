"""Pickles for another process of this machine: large buffers apart, ``__main__``'s classes by value, any exception."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import importlib.metadata
import io
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple

import cloudpickle

from headrace.core.arrays import LARGE, ArrayCodec
from headrace.core.errors import ConfigurationError, as_type_name
from headrace.core.events import Event
from headrace.core.transferable import LOCKS

Reducers = Mapping[type, Callable[[Any], Any]]

_GROUP = "headrace.arrays"
_LONGEST_FRAME = 1 << 17
"""Bytes. The pickler ends a frame once it exceeds half of this, after the current object."""

PROTOCOL = 5

_making_classes = threading.RLock()


class Pickled(NamedTuple):
    """A pickle, in pieces, and its out-of-band buffers."""

    pieces: list[bytes]
    buffers: list[memoryview]


@cache
def array_plug_ins() -> Mapping[str, importlib.metadata.EntryPoint]:
    """The entry points of array plug-ins, by the framework's top-level module; the first call takes milliseconds."""
    return {plug_in.name: plug_in for plug_in in importlib.metadata.entry_points(group=_GROUP)}


@cache
def codec(framework: str) -> ArrayCodec:
    """The plug-in for a framework's arrays. Loading it imports the framework.

    Raises:
        ConfigurationError: no plug-in is installed for it.
    """
    plug_in = array_plug_ins().get(framework)
    if plug_in is None:
        raise ConfigurationError(f"no plug-in for arrays of {framework} was found; reinstall headrace")
    made: ArrayCodec = plug_in.load()()
    return made


@lru_cache(maxsize=256)
def framework_of(kind: type) -> str | None:
    """The framework of whose arrays this may be the class, judged by its module; None if no plug-in handles that."""
    name = kind.__module__.partition(".")[0]
    return name if name in array_plug_ins() else None


def all_reducers(more: Reducers | None = None) -> Reducers:
    """A pickler's ``dispatch_table``: ``copyreg``'s entries, those of imported array frameworks, and ``more``."""
    global _latest  # noqa: PLW0603 - made again after something was imported or registered; threads may race
    modules, registered, table = _latest
    if modules != len(sys.modules) or registered != copyreg.dispatch_table:
        table = _table(*(one.reducers() for one in codecs()))
        _latest = len(sys.modules), dict(copyreg.dispatch_table), table
    return {**table, **more} if more else table


_latest: tuple[int, Reducers, Reducers] = (0, {}, {})
"""For ``all_reducers``: how many modules were imported, what was registered, and the table without more."""


def all_exporters() -> Reducers:
    """The ``dispatch_table`` for exporting a model to a weights file; keeps shared and strided memory as it is."""
    return _table(*(one.exporters() for one in codecs()))


def codecs() -> list[ArrayCodec]:
    """The array plug-ins of the frameworks that this process has imported."""
    return [codec(framework) for framework in array_plug_ins() if sys.modules.get(framework)]


def _table(*parts: Reducers) -> Reducers:
    table: dict[Any, Callable[[Any], Any]] = dict(copyreg.dispatch_table)
    for part in parts:
        table.update(part)
    return table


def pickled(value: Any, reducers: Reducers) -> Pickled:
    """Pickles a value so that another process can load it, even with a different ``__main__``.

    Classes and functions are pickled by name. If that fails, or a name is in ``__main__`` or in a module that was
    registered with cloudpickle to be pickled by value, the value is pickled again with cloudpickle, which does that.

    Args:
        value: any object.
        reducers: a complete ``dispatch_table``, ``copyreg``'s entries included.

    Raises:
        Exception: pickling fails both ways.
    """
    try:
        named = _dumped(_by_name, value, reducers)
    except Exception:
        return _dumped(_ByValue, value, reducers)
    return _dumped(_ByValue, value, reducers) if _names_what_travels_by_value(named.pieces) else named


def _names_what_travels_by_value(pieces: Iterable[bytes]) -> bool:
    """Whether a pickle refers to a module that other processes may be unable to import.

    Large bytes and strings, which are pieces of their own, are skipped: they do not begin like a frame.
    """
    registered = cloudpickle.list_registry_pickle_by_value()
    names = _encoded_names(frozenset(registered), len(sys.modules)) if registered else [_MAIN]
    frames = [one for one in pieces if len(one) <= _LONGEST_FRAME or one[:1] in (pickle.PROTO, pickle.FRAME)]
    return any(name in frame for name in names for frame in frames)


@lru_cache(maxsize=8)
def _encoded_names(modules: frozenset[str], _imported: int) -> list[bytes]:
    """How a pickle encodes ``__main__`` and the names of these modules and of those imported within them."""
    within = tuple(f"{module}." for module in modules)
    names = [name for name in list(sys.modules) if name in modules or name.startswith(within)]
    return [_MAIN, *map(_encoded_name, names)]


def _encoded_name(module: str) -> bytes:
    name = module.encode()
    return pickle.SHORT_BINUNICODE + bytes([len(name) & 0xFF]) + name


_MAIN = _encoded_name("__main__")


class _Pieces(list[bytes]):
    """A file for a pickler, which writes once for each frame and each large object."""

    write = list.append


def _dumped(make_pickler: Callable[..., pickle.Pickler], value: Any, reducers: Reducers) -> Pickled:
    """Pickles a value piece by piece, and keeps each large buffer apart, without a copy."""
    result = Pickled(_Pieces(), [])

    def keep_within(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= LARGE:
            result.buffers.append(raw)
        return raw.nbytes < LARGE

    make_pickler(result.pieces, reducers, keep_within).dump(value)
    return result


def _by_name(file: Any, reducers: Reducers, keep_within: Callable[[pickle.PickleBuffer], bool]) -> pickle.Pickler:
    pickler = pickle.Pickler(file, protocol=PROTOCOL, buffer_callback=keep_within)
    pickler.dispatch_table = reducers
    return pickler


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends classes by value with an identity, so that a process that already has the class keeps its own.

    cloudpickle alone would reassign every attribute of the existing class, with functions whose globals are copies.
    """

    def __init__(self, file: Any, reducers: Reducers, keep_within: Callable[[pickle.PickleBuffer], bool]) -> None:
        self.dispatch_table = {**cloudpickle.Pickler.dispatch_table, **reducers}  # super().__init__ reads it
        super().__init__(file, protocol=PROTOCOL, buffer_callback=keep_within)

    def reducer_override(self, obj: Any) -> Any:
        """Reduces a by-value class to its identity and definition; everything else as cloudpickle does."""
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:
            identity = cloudpickle.cloudpickle._get_or_create_tracker_id(obj)
            return _known_or_made, (identity, cloudpickle.dumps(obj))
        return reduced


def _known_or_made(identity: str, definition: bytes) -> Any:
    with _making_classes:
        known = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(identity)
        return pickle.loads(definition) if known is None else known


def pickle_or_explain(value: Any, name: str, part: Any = None) -> bytes:
    """Pickles a value for another process; functions and classes that cannot be imported there go by value.

    Locks arrive as new ones.

    Args:
        value: a handler, or an object that contains one.
        name: what error messages call it: the handler's class.
        part: the handler inside ``value``, whose attributes are searched; None: ``value`` is the handler.

    Raises:
        ConfigurationError: it does not pickle; the message names the attribute at fault.
    """
    try:
        return _handler_pickled(value)
    except Exception as error:
        culprit, where = _culprit(value if part is None else part, name)
        raise ConfigurationError(
            f"{name} cannot go to the process in which its model is to live: {where}, of type "
            f"{as_type_name(type(culprit))}, does not pickle ({as_type_name(error)}: {str(error)[:10_000]}). "
            "Make it in load_model, which runs in that process; or leave it out of the constructor, or out "
            "of what __getstate__ returns."
        ) from error


class _HandlerPickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = ChainMap(dict(LOCKS), *cloudpickle.Pickler.dispatch_table.maps)


def _handler_pickled(value: Any) -> bytes:
    content = io.BytesIO()
    _HandlerPickler(content, PROTOCOL).dump(value)
    return content.getvalue()


def _culprit(value: Any, name: str) -> tuple[Any, str]:
    """The first attribute that does not pickle, and what to call it; the value itself if none is found."""
    with contextlib.suppress(Exception):  # user objects may raise at any attribute access
        for attribute, part in value.__reduce_ex__(PROTOCOL)[2].items():
            try:
                _handler_pickled(part)
            except Exception:
                return part, f"{name}.{attribute}"
    return value, name


# Exceptions: each arrives as itself, as a copy of its class made without the constructor, or as a ``RemoteError``.

_PLAIN = (str, bytes, int, float, bool, type(None))


class RemoteError(Exception):
    """In place of an exception whose class does not pickle: names it, with its text and the attributes that pickle."""


class HostTraceback(Exception):
    """The cause of an exception from another process; its text is the traceback there."""

    def __str__(self) -> str:
        return f"\n{super().__str__()}"


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
        reducers |= _of_members(error) | ({} if _survives(error) else {type(error): _reduced})
    return reducers


def _of_members(error: Any) -> dict[type, Callable[[Any], Any]]:
    group: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.10 has none
    return exception_reducers(error.exceptions) if isinstance(error, group) else {}


def _reduced(error: BaseException) -> Any:
    if _survives(error):  # it is of the same class as one that does not
        return error.__reduce_ex__(PROTOCOL)
    cls = type(error)
    given = _built_in(cls).__reduce__(error)[1]
    args = tuple(value if _survives(value) else _text(value, repr) for value in given)
    attributes = {name: value for name, value in vars(error).items() if _survives(value)}
    try:
        str(_rebuild(*_round_trip((cls, args, attributes))))
    except Exception:
        return RemoteError, (f"{as_type_name(cls)}: {_text(error)}",), attributes
    return _rebuild, (cls, args, attributes)


def _rebuild(cls: type, args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    base = _built_in(cls)
    copy = base.__new__(cls, *args)
    with contextlib.suppress(Exception):  # a SyntaxError's arguments, for one, may be such as it cannot start with
        base.__init__(copy, *args)
    vars(copy).update(attributes)
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


def with_traceback_of(error: BaseException, lines: Iterable[str]) -> BaseException:
    """Returns ``error`` with ``lines``, its traceback in another process, as its ``__cause__``; one line is none."""
    lines = list(lines)
    if len(lines) > 1:
        BaseException.__setattr__(error, "__cause__", HostTraceback("".join(lines)))  # works on frozen dataclasses
    return error

"""Pickles objects for another process on this machine: large buffers apart, and what lives in ``__main__`` by value."""

from __future__ import annotations

import copyreg
import importlib.metadata
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import cloudpickle

from headrace.core.arrays import LARGE, ArrayCodec
from headrace.core.errors import ConfigurationError

Reducers = Mapping[type, Callable[[Any], Any]]

_GROUP = "headrace.arrays"
_MAIN = pickle.SHORT_BINUNICODE + b"\x08__main__"
"""How a pickle gives the name of that module."""
_LONGEST_FRAME = 1 << 17
"""Bytes; the pickler ends a frame at half of this, with the object that it is at."""

_making_classes = threading.RLock()


class Pickled(NamedTuple):
    """A pickle in pieces, and the buffers that it needs besides."""

    pieces: list[bytes]
    buffers: list[memoryview]


@cache
def array_plug_ins() -> Mapping[str, importlib.metadata.EntryPoint]:
    """The frameworks whose arrays are understood, by top-level module; the first call takes milliseconds."""
    return {plug_in.name: plug_in for plug_in in importlib.metadata.entry_points(group=_GROUP)}


@cache
def codec(framework: str) -> ArrayCodec:
    """The plug-in for a framework's arrays, which imports the framework.

    Raises:
        ConfigurationError: none is installed.
    """
    plug_in = array_plug_ins().get(framework)
    if plug_in is None:
        raise ConfigurationError(f"no plug-in for arrays of {framework} was found; reinstall headrace")
    made: ArrayCodec = plug_in.load()()
    return made


def framework_of(value: Any) -> str | None:
    """Whose array this may be; None where no plug-in is for its class's module."""
    name = type(value).__module__.partition(".")[0]
    return name if name in array_plug_ins() else None


def all_reducers(more: Reducers | None = None) -> Reducers:
    """What a pickler must know of classes: ``copyreg``'s, those for arrays of imported frameworks, and ``more``."""
    return _table(*(one.reducers() for one in codecs()), more or {})


def all_exporters() -> Reducers:
    """What a pickler must know of classes to move a whole model, ``copyreg``'s included; see ``ipc.weights_file``."""
    return _table(*(one.exporters() for one in codecs()))


def codecs() -> list[ArrayCodec]:
    """The plug-ins for arrays of those frameworks that this process has imported."""
    return [codec(framework) for framework in array_plug_ins() if sys.modules.get(framework)]


def _table(*parts: Reducers) -> Reducers:
    table: dict[Any, Callable[[Any], Any]] = dict(copyreg.dispatch_table)
    for part in parts:
        table.update(part)
    return table


def pickled(value: Any, reducers: Reducers) -> Pickled:
    """A pickle that the other process can load, whichever module is its ``__main__``.

    Classes and functions are named where possible; where that fails, and where they are ``__main__``'s, they go by
    value.

    Args:
        value: what to pickle.
        reducers: as in ``dispatch_table``, ``copyreg``'s included.

    Raises:
        Exception: what pickling raises.
    """
    try:
        named = _dumped(_by_name, value, reducers)
    except Exception:
        return _dumped(_ByValue, value, reducers)
    return _dumped(_ByValue, value, reducers) if any(map(_names_main, named.pieces)) else named


def measured(value: Any, reducers: Reducers) -> tuple[int, int]:
    """Bytes of the pieces, and of the buffers, of which a pickle would consist; nothing is kept of it.

    Args:
        value: as for ``pickled``.
        reducers: as for ``pickled``.

    Raises:
        Exception: what pickling raises.
    """
    try:
        return _measured(_by_name, value, reducers)
    except Exception:
        return _measured(_ByValue, value, reducers)


def _measured(make_pickler: Callable[..., pickle.Pickler], value: Any, reducers: Reducers) -> tuple[int, int]:
    pieces, apart = _Sum(), _Sum()

    def keep_within(buffer: pickle.PickleBuffer) -> bool:
        size = buffer.raw().nbytes
        if size >= LARGE:
            apart.nbytes += size
        return size < LARGE

    make_pickler(pieces, reducers, keep_within).dump(value)
    return pieces.nbytes, apart.nbytes


def _names_main(piece: bytes) -> bool:
    """Whether a pickle says that something is found in ``__main__``.

    Large bytes and texts, which are pieces by themselves, are not looked through: only a frame begins as one does.
    """
    is_content = len(piece) > _LONGEST_FRAME and piece[:1] not in (pickle.PROTO, pickle.FRAME)
    return not is_content and _MAIN in piece


def _dumped(make_pickler: Callable[..., pickle.Pickler], value: Any, reducers: Reducers) -> Pickled:
    result = Pickled([], [])

    def keep_within(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        result.buffers.append(raw)
        return False

    make_pickler(_Pieces(result.pieces), reducers, keep_within).dump(value)
    return result


class _Pieces:
    """A file for a pickler, which hands large bytes over as they are, without a copy."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.write = pieces.append


class _Sum:
    """A file for a pickler of which only the size is of interest."""

    def __init__(self) -> None:
        self.nbytes = 0

    def write(self, piece: bytes) -> None:
        self.nbytes += len(piece)


def _by_name(file: Any, reducers: Reducers, keep_within: Callable[[pickle.PickleBuffer], bool]) -> pickle.Pickler:
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=keep_within)
    pickler.dispatch_table = reducers
    return pickler


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends classes that cannot be named whole, with an identity: where they come from, they remain themselves.

    cloudpickle alone would set every attribute of the original class anew, with functions whose globals are copies.
    """

    def __init__(self, file: Any, reducers: Reducers, keep_within: Callable[[pickle.PickleBuffer], bool]) -> None:
        self.dispatch_table = {**cloudpickle.Pickler.dispatch_table, **reducers}  # which super().__init__ reads
        super().__init__(file, protocol=5, buffer_callback=keep_within)

    def reducer_override(self, obj: Any) -> Any:
        """A class by value as its identity and its definition; anything else as cloudpickle does."""
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:
            identity = cloudpickle.cloudpickle._get_or_create_tracker_id(obj)
            return _known_or_made, (identity, cloudpickle.dumps(obj))
        return reduced


def _known_or_made(identity: str, definition: bytes) -> Any:
    with _making_classes:
        known = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(identity)
        return pickle.loads(definition) if known is None else known

"""What a framework's plug-in tells the lower rooms about its arrays, so that those need not import the framework.

A plug-in is a class without arguments whose instances are an ``ArrayCodec``. It is found in the entry-point group
``headrace.arrays`` by the framework's top-level module: ``numpy = "headrace.handlers.numpy_arrays:NumpyArrays"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

LARGE = 4096
"""Bytes from which a buffer is kept out of the pickle: below, handling it costs more than copying it."""


class Stacked(NamedTuple):
    """Arrays of one make that can be written side by side into one piece of memory."""

    layout: Any
    """What ``unstack`` needs to know besides their number; small and picklable."""
    nbytes: int
    """Bytes that they take."""
    write: Callable[[memoryview], None]
    """Fills a writable memory of exactly ``nbytes`` bytes; may be called more than once."""


class NotMappableError(Exception):
    """A value cannot be put into memory that processes share.

    Its text says why, in words that follow "the model cannot be mapped, since".
    """


class ArrayCodec(Protocol):
    """Moves one framework's arrays through plain memory."""

    def stack(self, values: Sequence[Any]) -> Stacked | None:
        """Arrays, or a framework's scalars, as one piece.

        Args:
            values: at least one; the first is of this framework, the others may be anything.

        Returns:
            None where ``unstack`` would not give back the same types, dtypes, shapes and values.
        """
        ...

    def unstack(self, layout: Any, memory: memoryview, count: int) -> list[Any]:
        """The ``count`` values that were stacked, as views on ``memory`` (scalars as objects of their own).

        They are writable if the memory is; a framework without read-only arrays copies what is read-only.
        """
        ...

    def reducers(self) -> Mapping[type, Callable[[Any], Any]]:
        """For single arrays within other objects: what goes into a pickler's ``dispatch_table``.

        Each gives what ``__reduce_ex__(5)`` would give, with the array's memory as a ``pickle.PickleBuffer``.
        """
        ...

    def exporters(self) -> Mapping[type, Callable[[Any], Any]]:
        """For whole models that are moved into shared memory: what goes into a pickler's ``dispatch_table``.

        Nothing is copied or converted: the memory itself goes into a ``pickle.PickleBuffer``, with dtypes, strides and
        offsets beside it, and what lies in the same memory lies in the same memory afterwards. Loaded with writable
        buffers, the values are views on them. The entries raise ``NotMappableError`` for memory that is not the CPU's.
        """
        ...

    def limit_threads(self, count: int) -> Callable[[], None]:
        """Has the framework compute with at most ``count`` threads in this process.

        Returns:
            What undoes it.
        """
        ...


class NoArrays:
    """What there is to say of a framework's arrays if nothing is special about them: they travel in pickles."""

    def stack(self, values: Sequence[Any]) -> Stacked | None:
        """None: each goes by itself."""
        return None

    def unstack(self, layout: Any, memory: memoryview, count: int) -> list[Any]:
        """Never called, as nothing is stacked."""
        raise NotImplementedError

    def reducers(self) -> Mapping[type, Callable[[Any], Any]]:
        """None."""
        return {}

"""How a framework's plug-in moves its arrays, so that lower rooms need not import the framework.

A plug-in is a subclass of ``ArrayCodec`` without arguments, registered in the entry-point group
``headrace.arrays`` under the framework's top-level module: ``numpy = "headrace.handlers.numpy_arrays:NumpyArrays"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Span = tuple[int, int]
"""Address and size of a piece of memory, in bytes."""

LARGE = 4096
"""Bytes from which a buffer is kept out of the pickle: for smaller ones, copying is cheaper."""


class Stacked(NamedTuple):
    """Arrays of one framework, ready to be written one after another into one piece of memory."""

    layout: Any
    """What ``unstack`` needs besides the count; small and picklable."""
    nbytes: int
    """Total bytes."""
    write: Callable[[memoryview], None]
    """Fills a writable memory of exactly ``nbytes`` bytes; may be called repeatedly."""


class NotMappableError(Exception):
    """A value cannot be placed in shared memory.

    The text completes "the model cannot be mapped, since".
    """


class ArrayCodec:
    """Moves one framework's arrays through plain memory. By default arrays are pickled, and none can be moved."""

    movable: tuple[type, ...] = ()
    """Exact types of arrays that ``movers`` can move; each has an exporter."""

    def stack(self, values: Sequence[Any]) -> Stacked | None:
        """Prepares arrays, or the framework's scalars, to be written as one piece.

        Args:
            values: at least one; the first is of this framework, the others may be anything.

        Returns:
            None if ``unstack`` would not restore the same types, dtypes, shapes and values.
        """
        return None

    def unstack(self, layout: Any, memory: memoryview, count: int) -> list[Any]:
        """The ``count`` stacked values, as views on ``memory`` (scalars as new objects).

        They are writable if the memory is; a framework without read-only arrays copies read-only memory.
        """
        raise NotImplementedError  # of a codec that stacks nothing

    def reducers(self) -> Mapping[type, Callable[[Any], Any]]:
        """``dispatch_table`` entries for pickling single arrays within other objects.

        Each returns what ``__reduce_ex__(5)`` would, with the array's memory as a ``pickle.PickleBuffer``.
        """
        return {}

    def exporters(self) -> Mapping[type, Callable[[Any], Any]]:
        """``dispatch_table`` entries for moving whole models into shared memory.

        Nothing is copied or converted: the memory itself becomes a ``pickle.PickleBuffer``, with dtypes, strides and
        offsets beside it, and values that share memory still share it afterwards. Loaded with writable buffers, values
        are views on them. The entries raise ``NotMappableError`` for memory that is not the CPU's.
        """
        return {}

    def movers(self, arrays: Sequence[Any]) -> Mapping[Span, Callable[[memoryview], None]]:
        """Functions that move arrays onto other memory, so that their own is freed as soon as nothing else uses it.

        Args:
            arrays: of the types ``movable``.

        Returns:
            For each memory that some of the arrays share: a function that takes a writable memory of the same size and
            content, and moves all of them there. Arrays that cannot be moved stay.
        """
        return {}

    def limit_threads(self, count: int) -> Callable[[], None]:
        """Limits the framework to ``count`` computing threads in this process; by default each model sets its own.

        Returns:
            A function that lifts the limit.
        """
        return lambda: None

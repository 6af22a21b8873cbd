"""How batches travel between processes: rows, and what is said about them, as one piece of memory and back.

A message lies in memory as its numbers (three, then the size of each buffer in bytes), the pickle, and the buffers:
first stacked arrays, then what the pickle keeps apart.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from struct import Struct
from typing import Any, NamedTuple

from headrace.core.arrays import Stacked
from headrace.ipc.columns import KnownColumns, RequestColumns, RowDecoder, RowEncoder
from headrace.ipc.serialization import Pickled, all_reducers, pickled

__all__ = ["Decoded", "Message", "RequestColumns", "decode", "encode"]

_NUMBERS = Struct("=QII")
"""Bytes of the pickle, how many stacks there are, how many buffers in all."""
_ALIGNMENT = 64
"""Bytes; what vector instructions and frameworks like best."""


class Message:
    """A message that is ready to be written, as often as needed; until then its arrays must not change.

    Attributes:
        nbytes: how much memory it takes.
        columns: of its rows; ``known`` to whoever reads the answer.
    """

    def __init__(self, columns: RequestColumns, stacks: list[Stacked], pickle_: Pickled) -> None:
        self.columns = columns
        self._stacks = stacks
        self._pickle = pickle_
        self._sizes = [stack.nbytes for stack in stacks] + [buffer.nbytes for buffer in pickle_.buffers]
        self._start = _sizes(len(self._sizes)).size + _NUMBERS.size
        self._end = self._start + sum(map(len, pickle_.pieces))
        self.nbytes: int = max(chain([self._end], (end for _, end in _places(self._end, self._sizes))))

    def write(self, memory: memoryview) -> None:
        """Writes it to the start of a writable memory, of bytes, that should lie at a multiple of 64.

        Raises:
            ValueError: the memory is smaller than ``nbytes``.
        """
        if len(memory) < self.nbytes:
            raise ValueError(f"a message of {self.nbytes} bytes does not fit into {len(memory)}")
        _NUMBERS.pack_into(memory, 0, self._end - self._start, len(self._stacks), len(self._sizes))
        _sizes(len(self._sizes)).pack_into(memory, _NUMBERS.size, *self._sizes)
        start = self._start
        for piece in self._pickle.pieces:
            memory[start : start + len(piece)] = piece
            start += len(piece)
        writers = chain((stack.write for stack in self._stacks), map(_copier, self._pickle.buffers))
        for write, (start, end) in zip(writers, _places(self._end, self._sizes), strict=True):
            write(memory[start:end])


class Decoded(NamedTuple):
    """What a message says."""

    head: Any
    rows: list[Any]
    columns: RequestColumns
    """``known`` to whoever writes the answer."""


def encode(
    head: Any,
    rows: Sequence[Any],
    *,
    known: RequestColumns | None = None,
    positions: Sequence[int] | None = None,
    reducers: Mapping[type, Callable[[Any], Any]] | None = None,
) -> Message:
    """Makes a message.

    Args:
        head: any small object that can be pickled.
        rows: the elements of a batch, or their predictions.
        known: for an answer the columns of its request. Of what the answer's rows hold and is the very object that
            came with the request, only an index is sent: the other process gets its own object, as it sent it.
        positions: for each row of the answer, to which row of the request it belongs; None: the first to the first,
            and so on.
        reducers: more entries for the pickler's ``dispatch_table``.

    Raises:
        ValueError: there are not as many positions as rows.
        Exception: what pickling raises where something cannot be pickled.
    """
    if positions is not None and len(positions) != len(rows):
        raise ValueError(f"{len(positions)} positions were given for {len(rows)} rows")
    table = all_reducers(reducers)
    apart = RowEncoder(rows, KnownColumns(known, positions, len(rows)), table)
    content = (head, apart.form, len(rows), positions if apart.echoes else None)
    return Message(apart.columns, apart.stacks, pickled(content, table))


def decode(memory: memoryview, *, known: RequestColumns | None = None, own: bool) -> Decoded:
    """Reads a message.

    Args:
        memory: starts with the message.
        known: if the message is an answer, the columns of the request as this process has them.
        own: whether everything gets memory of its own, which may be written to. Otherwise arrays are views on
            ``memory``, which must outlive them unchanged, and can be written to if it can. (Arrays that were read-only
            may remain so.)
    """
    size, stacks, count = _NUMBERS.unpack_from(memory)
    sizes = _sizes(count)
    start = _NUMBERS.size + sizes.size
    places = _places(start + size, sizes.unpack_from(memory, _NUMBERS.size))
    buffers = [memory[begin:end] for begin, end in places]
    if own:
        buffers = [memoryview(bytearray(buffer)) for buffer in buffers]
    content = pickle.loads(memory[start : start + size], buffers=buffers[stacks:])
    head, form, rows, positions = content
    together = RowDecoder(form, rows, buffers[:stacks], KnownColumns(known, positions, rows))
    return Decoded(head, list(together.columns.lists[0]), together.columns)


def _sizes(count: int) -> Struct:
    return Struct(f"={count}Q")


def _places(start: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where buffers begin and end, in bytes."""
    for size in sizes:
        start += -start % _ALIGNMENT
        yield start, start + size
        start += size


def _copier(buffer: memoryview) -> Callable[[memoryview], None]:
    def write(memory: memoryview) -> None:
        memory[:] = buffer

    return write

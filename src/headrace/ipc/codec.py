"""Encodes a batch (a head and rows) into one block of memory, and decodes it.

Layout: three counts, the size of each buffer in bytes, the pickle, then the buffers, each aligned to 64 bytes: first
the stacked arrays, then the pickle's out-of-band buffers.
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
"""Pickle size in bytes, number of stacked arrays, number of all buffers."""
_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector load."""


class Message:
    """An encoded message. It can be written any number of times; its arrays must not change before that.

    Attributes:
        nbytes: size in bytes.
        columns: the columns of its rows; pass them as ``known`` when decoding the response.
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
        """Writes the message to the start of ``memory``: writable bytes, aligned to 64 for best speed.

        Raises:
            ValueError: ``memory`` is smaller than ``nbytes``.
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
    """A decoded message."""

    head: Any
    rows: list[Any]
    columns: RequestColumns
    """Pass them as ``known`` when encoding the response."""


def encode(
    head: Any,
    rows: Sequence[Any],
    *,
    known: RequestColumns | None = None,
    positions: Sequence[int] | None = None,
    reducers: Mapping[type, Callable[[Any], Any]] | None = None,
) -> Message:
    """Encodes a request or a response.

    Args:
        head: any small object that can be pickled.
        rows: the elements of a batch, or their predictions.
        known: for a response, the columns of its request. A column of the very objects that came with the request is
            sent as an index, and the requester gets its own objects back.
        positions: for a response, the index of the request row that each row belongs to; None: row ``i`` to row ``i``.
        reducers: more entries for the pickler's ``dispatch_table``.

    Raises:
        ValueError: ``positions`` and ``rows`` differ in length.
        Exception: something cannot be pickled.
    """
    if positions is not None and len(positions) != len(rows):
        raise ValueError(f"{len(positions)} positions were given for {len(rows)} rows")
    table = all_reducers(reducers)
    apart = RowEncoder(rows, KnownColumns(known, positions, len(rows)), table)
    content = (head, apart.form, len(rows), positions if apart.echoes else None)
    return Message(apart.columns, apart.stacks, pickled(content, table))


def decode(memory: memoryview, *, known: RequestColumns | None = None, own: bool) -> Decoded:
    """Decodes a message.

    Args:
        memory: starts with the message.
        known: for a response, the ``columns`` of the request's ``Message``.
        own: True copies every buffer into new, writable memory. False makes arrays views on ``memory``, which must
            stay unchanged while they live; they are writable if ``memory`` is. (Read-only arrays may stay read-only.)
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
    """The start and end of each buffer, in bytes, aligned."""
    for size in sizes:
        start += -start % _ALIGNMENT
        yield start, start + size
        start += size


def _copier(buffer: memoryview) -> Callable[[memoryview], None]:
    def write(memory: memoryview) -> None:
        memory[:] = buffer

    return write

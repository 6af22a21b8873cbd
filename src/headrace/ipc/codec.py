"""Encodes a batch (a head and rows) into one block of memory, and decodes it.

Layout: three counts, the size of each buffer in bytes, the pickle, then the buffers, each aligned to 64 bytes: first
the stacked arrays, then the pickle's out-of-band buffers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from headrace.core.arrays import Stacked
from headrace.ipc.columns import NOTHING_KNOWN, Columns, KnownColumns, RowDecoder, RowEncoder
from headrace.ipc.serialization import Pickled, all_reducers, pickled

__all__ = ["Columns", "Decoded", "Message", "decode", "encode", "sent_as_plain_values"]

_NUMBERS = Struct("=QII")
"""Pickle size in bytes, number of stacked arrays, number of all buffers."""
_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector load."""


_HEADS: dict[str, Any] = {}
_T = TypeVar("_T", bound=type)


def sent_as_plain_values(kind: _T) -> _T:
    """Class decorator: as a message's head, an object is sent as its class's name and plain values, if it can be.

    Its ``plain`` returns numbers, texts, None, and lists and tuples of those, of which ``of_plain`` makes it again; or
    None: it is pickled. To pickle and to find a class takes longer than the rest of a small message. Both processes
    must have imported it.
    """
    _HEADS[kind.__name__] = kind
    return kind


class Message:
    """An encoded message. It can be written any number of times; its arrays must not change before that.

    Attributes:
        nbytes: size in bytes.
        columns: the columns of its rows; pass them as ``known`` when decoding the response.
    """

    def __init__(self, columns: Columns, stacks: list[Stacked], pickle_: Pickled) -> None:
        self.columns = columns
        self._stacks = stacks
        self._pickle = pickle_
        buffers = pickle_.buffers
        self._sizes = [one.nbytes for one in stacks] + [one.nbytes for one in buffers] if stacks or buffers else []
        self._start = _NUMBERS.size + 8 * len(self._sizes)
        self._end = self._start + sum(map(len, pickle_.pieces))
        self._places = _places(self._end, self._sizes) if self._sizes else []
        self.nbytes: int = self._places[-1][1] if self._places else self._end

    def write(self, memory: memoryview) -> None:
        """Writes the message to the start of ``memory``: ``nbytes`` or more, aligned to 64 for best speed."""
        _NUMBERS.pack_into(memory, 0, self._end - self._start, len(self._stacks), len(self._sizes))
        _sizes(len(self._sizes)).pack_into(memory, _NUMBERS.size, *self._sizes)
        start = self._start
        for piece in self._pickle.pieces:
            memory[start : start + len(piece)] = piece
            start += len(piece)
        for stack, (start, end) in zip(self._stacks, self._places, strict=False):
            stack.write(memory[start:end])
        for buffer, (start, end) in zip(self._pickle.buffers, self._places[len(self._stacks) :], strict=True):
            memory[start:end] = buffer

    def content(self) -> list[bytes | bytearray]:
        """The message as bytes, in pieces."""
        if not self._sizes:
            return [_NUMBERS.pack(self._end - self._start, 0, 0), *self._pickle.pieces]
        content = bytearray(self.nbytes)
        self.write(memoryview(content))
        return [content]


class Decoded(NamedTuple):
    """A decoded message."""

    head: Any
    rows: list[Any]
    columns: Columns
    """Pass them as ``known`` when encoding the response."""


def encode(
    head: Any,
    rows: Sequence[Any],
    *,
    known: Columns | None = None,
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
    if positions == [*range(len(rows))]:
        positions = None
    kind = type(head)
    plain = head.plain() if _HEADS.get(kind.__name__) is kind else None
    table = all_reducers(reducers)
    apart = RowEncoder(rows, NOTHING_KNOWN if known is None else KnownColumns(known, positions, len(rows)), table)
    name, head = (None, head) if plain is None else (kind.__name__, plain)
    content = (name, head, apart.form, len(rows), positions if apart.echoes else None)
    is_plain = apart.is_plain and (plain is not None or head is None)
    parts = Pickled([pickle.dumps(content, protocol=5)], []) if is_plain else pickled(content, table)
    return Message(apart.columns, apart.stacks, parts)


def decode(memory: memoryview, *, known: Columns | None = None, own: bool) -> Decoded:
    """Decodes a message.

    Args:
        memory: starts with the message.
        known: for a response, the ``columns`` of the request's ``Message``.
        own: True copies every buffer into new, writable memory. False makes arrays views on ``memory``, which must
            stay unchanged while they live; they are writable if ``memory`` is. (Read-only arrays may stay read-only.)
    """
    size, stacks, count = _NUMBERS.unpack_from(memory)
    if not count:
        return _joined(pickle.loads(memory[_NUMBERS.size : _NUMBERS.size + size], buffers=()), (), known)
    sizes = _sizes(count)
    start = _NUMBERS.size + sizes.size
    places = _places(start + size, sizes.unpack_from(memory, _NUMBERS.size))
    buffers = [memory[begin:end] for begin, end in places]
    if own:
        buffers = [memoryview(bytearray(buffer)) for buffer in buffers]
    content = pickle.loads(memory[start : start + size], buffers=buffers[stacks:])
    return _joined(content, buffers[:stacks], known)


def _joined(content: tuple[Any, ...], stacks: Sequence[memoryview], known: Columns | None) -> Decoded:
    name, head, form, rows, positions = content
    both_know = NOTHING_KNOWN if known is None else KnownColumns(known, positions, rows)
    columns = RowDecoder(form, rows, stacks, both_know).columns
    return Decoded(head if name is None else _HEADS[name].of_plain(head), columns[0].copy(), columns)


@lru_cache(maxsize=64)
def _sizes(count: int) -> Struct:
    return Struct(f"={count}Q")


def _places(start: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The start and end of each buffer, in bytes, aligned."""
    places = []
    for size in sizes:
        start += -start % _ALIGNMENT
        places.append((start, start + size))
        start += size
    return places

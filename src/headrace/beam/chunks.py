"""Elements in transit through a buffer: a bundle's elements travel together, but each is encoded on its own."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy
from apache_beam import coders
from apache_beam.utils import windowed_value
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue

from headrace.core.errors import as_type_name
from headrace.core.transferable import short_repr


class Uncodable(NamedTuple):
    """Takes the place of an element that cannot be encoded or decoded."""

    text: str
    """A short text for the element."""
    problem: str
    """What is wrong, and the cure."""


class Chunk(NamedTuple):
    """Elements of one bundle and one buffer in order of arrival; plain values, so that Beam encodes it fast."""

    elements: Sequence[bytes | tuple[str, str]]
    """Each one encoded; if that fails, the fields of its ``Uncodable``. Empty if ``rows`` has them."""
    types: Sequence[str]
    """The name of each one's type; a single name if they are equal."""
    micros: Sequence[int]
    """The timestamp of each, in microseconds."""
    sizes: Sequence[float] | None
    """The size of each; None: 1 each."""
    panes: bytes | None
    """The pane of each, pickled; None: no pane is known."""
    windows: Sequence[bytes] | None
    """The window of each, encoded; None: the buffer's."""
    model: int
    """The position in ``Plan.models`` of the model whose target size applies."""
    waited_secs: float
    """Since the first element arrived."""
    rows: tuple[str, int, bytes] | None = None
    """All elements, if they are rows of numbers of one kind: numpy's name of the type, the length of each, the numbers.
    Nothing in them can fail to be decoded."""


ChunkPart: TypeAlias = tuple[tuple[Any, ...], int, int]
"""A chunk's fields, and the positions at which a batch's elements begin and end."""


class ChunkCoder:
    """Encodes elements as a chunk, and decodes them.

    Encoding each on its own costs from 0.5 (a dict) to 5 microseconds (an array) more than pickling them together. But
    one element that cannot be decoded would then lose its whole chunk, and the runner would retry that for ever. Rows
    of numbers, which cannot fail, travel together where they would be pickled.

    Args:
        element_coder: of the PCollection; if it is the coder for any type, elements are pickled.
        window_coder: of the elements' windows, if they differ from the buffer's: merging windows are each element's own
            until they are grouped, so buffers of such elements are in the global window. None: they do not differ.
    """

    def __init__(self, element_coder: coders.Coder, window_coder: coders.Coder | None = None) -> None:
        any_type = type(element_coder) is coders.FastPrimitivesCoder
        self._coder = coders.PickleCoder() if any_type else element_coder
        self.window_coder = window_coder

    def encode(
        self, arrived: Sequence[WindowedValue], sizes: Sequence[float] | None, model: int, waited_secs: float
    ) -> Chunk:
        """A chunk of elements; each has exactly one window if windows are encoded."""
        panes = [one.pane_info for one in arrived]
        known = any(pane is not PANE_INFO_UNKNOWN and pane != PANE_INFO_UNKNOWN for pane in panes)
        values = [one.value for one in arrived]
        coder, types = self.window_coder, list(map(type, values))
        rows = _rows_of(values) if type(self._coder) is coders.PickleCoder and set(types) == {numpy.ndarray} else None
        return Chunk(
            elements=self._encode_all(values) if rows is None else [],
            types=list(map(as_type_name, types if len(set(types)) > 1 else types[:1])),
            micros=[one.timestamp_micros for one in arrived],
            sizes=sizes,
            panes=pickle.dumps(panes) if known else None,
            windows=None if coder is None else [coder.encode(one.windows[0]) for one in arrived],
            model=model,
            waited_secs=waited_secs,
            rows=rows,
        )

    def decode(self, chunk: Chunk, window: Any) -> list[WindowedValue]:
        """The elements, or an ``Uncodable`` in place of one; ``window`` is the buffer's."""
        elements = self._decode_all(chunk.elements) if chunk.rows is None else _decode_rows(*chunk.rows)
        if elements is None:
            types = chunk.types if len(chunk.types) > 1 else [*chunk.types] * len(chunk.elements)
            elements = list(map(self._decode_one, chunk.elements, types))
        panes = repeat(PANE_INFO_UNKNOWN) if chunk.panes is None else pickle.loads(chunk.panes)
        return list(map(windowed_value.create, elements, chunk.micros, self._windows(chunk, window), panes))

    def _encode_all(self, values: Sequence[Any]) -> list[Any]:
        try:
            return [self._coder.encode(value) for value in values]  # map would swallow StopIteration
        except Exception:  # one by one is slower
            return list(map(self._encode_one, values))

    def _decode_all(self, contents: Sequence[bytes | tuple[str, str]]) -> list[Any] | None:
        """The elements; None if they have to be decoded one by one, which is slower."""
        if tuple in map(type, contents):  # an Uncodable, which a lenient coder might decode
            return None
        try:
            return [self._coder.decode(content) for content in contents]
        except Exception:
            return None

    def _encode_one(self, element: Any) -> Any:
        try:
            return self._coder.encode(element)
        except Exception as error:
            return short_repr(element), _problem(as_type_name(type(element)), "encoded", error)

    def _decode_one(self, content: bytes | tuple[str, str], type_name: str) -> Any:
        if isinstance(content, tuple):
            return Uncodable(*content)
        try:
            return self._coder.decode(content)
        except Exception as error:
            return Uncodable(f"<{type_name}>", _problem(type_name, "decoded", error))

    def _windows(self, chunk: Chunk, window: Any) -> Iterator[tuple[Any]]:
        if self.window_coder is None or chunk.windows is None:
            return repeat((window,))
        return ((self.window_coder.decode(own),) for own in chunk.windows)


def _rows_of(arrays: Sequence[Any]) -> tuple[str, int, bytes] | None:
    """The arrays together, which is ten times as fast as one by one; None if they are not rows of one kind."""
    first = arrays[0]
    lengths, kinds = {array.shape for array in arrays}, [array.dtype for array in arrays]
    plain = first.ndim == 1 and first.size > 0 and first.dtype.kind in "biufc" and first.dtype.isnative
    if not plain or len(lengths) > 1 or len(set(kinds)) > 1 or any(kind.metadata for kind in kinds):
        return None
    return first.dtype.str, len(first), numpy.concatenate(arrays).tobytes()


def _decode_rows(dtype: str, length: int, numbers: bytes) -> list[Any]:
    """The arrays; as those that are unpickled, they may be written to, and none sees another's numbers."""
    count = len(numbers) // (length * numpy.dtype(dtype).itemsize)
    return list(numpy.ndarray((count, length), dtype, bytearray(numbers)))


def _problem(type_name: str, what: str, error: Exception) -> str:
    return (
        f"an element of type {type_name} cannot be {what}, which it must be to wait for others ({short_repr(error)}); "
        "make its class one that pickles and unpickles, register a coder for it, or turn it into plain values before "
        "RunInference."
    )

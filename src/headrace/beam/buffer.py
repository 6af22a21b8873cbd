"""Holds elements in Beam's state until they fill a batch or have waited long enough.

A bundle's elements travel together, as a chunk, but each is encoded on its own.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
import numpy
from apache_beam import coders
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils import windowed_value
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue

from headrace.batching.batcher import Gathered, GatherPolicy
from headrace.core.errors import as_type_name
from headrace.core.transferable import short_repr
from headrace.runtime.session import sizes_of
from headrace.runtime.spec import SessionSpec

BufferKey = tuple[str, bytes]
"""A buffer's name, and its elements' window, encoded; empty if elements of all windows share the buffer."""

_PARTS = beam.DoFn.StateParam(BagStateSpec("chunks", coders.FastPrimitivesCoder()))
_GATHERED = beam.DoFn.StateParam(ReadModifyWriteStateSpec("gathered", coders.FastPrimitivesCoder()))
_DUE = TimerSpec("due", TimeDomain.REAL_TIME)
_WINDOW_END = TimerSpec("window_end", TimeDomain.WATERMARK)
_DUE_TIMER = beam.DoFn.TimerParam(_DUE)
_WINDOW_END_TIMER = beam.DoFn.TimerParam(_WINDOW_END)


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

    Each on its own: otherwise one that cannot be decoded would lose its whole chunk, and the runner would retry that
    for ever. Rows of numbers, which cannot fail, travel together where they would be pickled.

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
            elements=list(map(self._encode, values)) if rows is None else [],
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
        types = chunk.types if len(chunk.types) > 1 else repeat(*chunk.types)
        elements = map(self._decode, chunk.elements, types) if chunk.rows is None else _decode_rows(*chunk.rows)
        panes = repeat(PANE_INFO_UNKNOWN) if chunk.panes is None else pickle.loads(chunk.panes)
        windows: Iterable[tuple[Any]] = repeat((window,))
        if self.window_coder is not None and chunk.windows is not None:
            windows = [(self.window_coder.decode(own),) for own in chunk.windows]
        return list(map(windowed_value.create, elements, chunk.micros, windows, panes))

    def _encode(self, element: Any) -> Any:
        try:
            return self._coder.encode(element)
        except Exception as error:
            return short_repr(element), _problem(as_type_name(type(element)), "encoded", error)

    def _decode(self, content: bytes | tuple[str, str], type_name: str) -> Any:
        if isinstance(content, tuple):  # a lenient coder might decode it
            return Uncodable(*content)
        try:
            return self._coder.decode(content)
        except Exception as error:
            return Uncodable(f"<{type_name}>", _problem(type_name, "decoded", error))


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


class BufferDoFn(beam.DoFn):
    """Holds elements in a bag until they fill a batch, or the oldest has waited long enough.

    It runs in the global window, whatever the elements' own: in those a runner drops late elements, and on Flink the
    state holds the watermark at a window's end until nothing can be late any more. With a ``window_coder`` windows are
    kept apart, as part of the key. Then a window's end ends the wait in its buffer; late elements leave at once.

    The timer for the longest wait holds the watermark at the timestamp of the chunk that set it, which is that of the
    chunk's earliest element. An earlier element sets the timer again, to the same time: no element becomes late by
    waiting. A batch leaves with its earliest timestamp for the same reason.
    """

    def __init__(self, spec: SessionSpec, window_coder: coders.Coder | None = None) -> None:
        config = spec.plan.batching
        self._spec = spec
        self._window_coder = window_coder
        self._policy = GatherPolicy(config, measured=not spec.plan.preprocess)
        self._longest_wait_secs = config.max_batch_duration_secs or 0.0
        self._clock = config.clock or time.time

    def setup(self) -> None:
        """Gets the models' size controllers, which learn from the batches that run in this process."""
        sizes = self._sizes = sizes_of(self._spec)
        self._controllers = [sizes[name] for name in self._spec.plan.models]

    def process(
        self,
        keyed: tuple[BufferKey, tuple[Any, ...]],
        bag: Any = _PARTS,
        state: Any = _GATHERED,
        due: Any = _DUE_TIMER,
        window_end: Any = _WINDOW_END_TIMER,
    ) -> Iterable[WindowedValue]:
        """Takes a chunk; gives the batches that it completes. State is touched only for what is left over."""
        key, fields = keyed
        chunk = Chunk(*fields)
        stored = gathered = _read(state)
        parts: list[ChunkPart] = []
        start, end = 0, len(chunk.micros)
        while start < end:
            sizes = None if chunk.sizes is None else chunk.sizes[start:]
            gathered, count = self._policy.take(gathered or self._begin(chunk, start), chunk.micros[start:], sizes)
            if count:
                parts.append((fields, start, start + count))
                start += count
            if start < end or self._policy.is_full(gathered):
                yield self._batch(key, gathered, [*(bag.read() if stored else ()), *parts])
                if stored:
                    _clear(bag, state, due)
                stored = gathered = None
                parts = []
        if gathered is not None:
            for part in parts:
                bag.add(part)
            state.write(tuple(gathered))
            if stored is None:
                window_end.set(self._window(key).max_timestamp())
            if stored is None or gathered.earliest < stored.earliest:
                due.set(Timestamp.of(gathered.due))

    @on_timer(_WINDOW_END)
    @on_timer(_DUE)
    def on_due(
        self, key: Any = beam.DoFn.KeyParam, bag: Any = _PARTS, state: Any = _GATHERED, due: Any = _DUE_TIMER
    ) -> Iterable[WindowedValue]:
        """The oldest element has waited long enough, or no more can come in time."""
        gathered = _read(state)
        if gathered is None:
            return []
        batch = self._batch(key, gathered, list(bag.read()))
        _clear(bag, state, due)
        return [batch]

    def _batch(self, key: BufferKey, gathered: Gathered, parts: list[ChunkPart]) -> WindowedValue:
        return WindowedValue(parts, Timestamp(micros=gathered.earliest), (self._window(key),))

    def _window(self, key: BufferKey) -> Any:
        return GlobalWindow() if self._window_coder is None else self._window_coder.decode(key[1])

    def _begin(self, chunk: Chunk, start: int) -> Gathered:
        due = self._clock() - chunk.waited_secs + self._longest_wait_secs
        return Gathered(self._controllers[chunk.model].target(), due, chunk.micros[start])


def _read(state: Any) -> Gathered | None:
    fields = state.read()
    return None if fields is None else Gathered(*fields)


def _clear(*cells: Any) -> None:
    for cell in cells:
        cell.clear()

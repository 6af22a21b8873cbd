"""Holds elements in Beam's state until they fill a batch or have waited long enough."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from headrace.batching.gather import Gathered, GatherPolicy
from headrace.beam.chunks import Chunk, ChunkPart
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


class BufferDoFn(beam.DoFn):
    """Holds elements in a bag until they fill a batch, or the oldest has waited long enough.

    It runs in the global window, whatever the elements' own: in those a runner drops late elements, and on Flink the
    state holds the watermark at a window's end until nothing can be late any more. If windows are kept apart, they are
    part of the key. Then a window's end ends the wait in its buffer, since no more elements can come in time; late
    elements leave at once.

    The timer for the longest wait holds the watermark at the timestamp of the chunk that set it, which is that of the
    chunk's earliest element. An earlier element sets the timer again, to the same time: no element becomes late by
    waiting. A batch leaves with its earliest timestamp for the same reason: it holds the watermark until all of its
    outputs are out.

    Args:
        spec: of the session that will run the batches.
        window_coder: of the elements' windows, if these are kept apart; None: they share buffers.
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
            gathered, count = self._take(gathered or self._begin(chunk, start), chunk, start)
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

    @on_timer(_DUE)
    def on_due(
        self, key: Any = beam.DoFn.KeyParam, bag: Any = _PARTS, state: Any = _GATHERED, due: Any = _DUE_TIMER
    ) -> Iterable[WindowedValue]:
        """The oldest element has waited long enough."""
        return self._flush(key, bag, state, due)

    @on_timer(_WINDOW_END)
    def on_window_end(
        self, key: Any = beam.DoFn.KeyParam, bag: Any = _PARTS, state: Any = _GATHERED, due: Any = _DUE_TIMER
    ) -> Iterable[WindowedValue]:
        """No more elements can come in time."""
        return self._flush(key, bag, state, due)

    def _flush(self, key: BufferKey, bag: Any, state: Any, due: Any) -> list[WindowedValue]:
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

    def _take(self, gathered: Gathered, chunk: Chunk, start: int) -> tuple[Gathered, int]:
        sizes = None if chunk.sizes is None else chunk.sizes[start:]
        return self._policy.take(gathered, chunk.micros[start:], sizes)

    def _begin(self, chunk: Chunk, start: int) -> Gathered:
        due = self._clock() - chunk.waited_secs + self._longest_wait_secs
        return Gathered(self._controllers[chunk.model].target(), due, chunk.micros[start])


def _read(state: Any) -> Gathered | None:
    fields = state.read()
    return None if fields is None else Gathered(*fields)


def _clear(*cells: Any) -> None:
    for cell in cells:
        cell.clear()

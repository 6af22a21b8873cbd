"""Elements wait in Beam's state until they are enough for a batch, or have waited long enough."""

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
from headrace.beam.chunks import Chunk, Part
from headrace.runtime.session import sizes_of
from headrace.runtime.spec import SessionSpec

Key = tuple[str, bytes]
"""Of a buffer: its name, and the window of its elements, encoded; empty where elements of any window are in it."""

_CHUNKS = beam.DoFn.StateParam(BagStateSpec("chunks", coders.FastPrimitivesCoder()))
_GATHERED = beam.DoFn.StateParam(ReadModifyWriteStateSpec("gathered", coders.FastPrimitivesCoder()))
_DUE = TimerSpec("due", TimeDomain.REAL_TIME)
_WINDOW_END = TimerSpec("window_end", TimeDomain.WATERMARK)
_DUE_TIMER = beam.DoFn.TimerParam(_DUE)
_WINDOW_END_TIMER = beam.DoFn.TimerParam(_WINDOW_END)


class BufferDoFn(beam.DoFn):
    """Keeps elements in a bag until they are enough for a batch, or the oldest has waited long enough.

    It runs in the global window, whatever the elements' own: in theirs a runner drops what is late, and on Flink state
    holds the watermark at a window's end until nothing can come late any more. Where windows are kept apart they are
    part of the key, and a window's end ends the wait in its buffer: nobody else is to come in time, and what is late
    already leaves at once.

    The timer for the latter holds the watermark at the timestamp of the chunk at which it is set, which is that of its
    earliest element, so it is set anew, to the same moment, whenever an earlier element comes: no element becomes late
    by waiting. What leaves has the earliest timestamp, for the same reason: it holds the watermark until all its
    elements have come out.

    Args:
        spec: of the session whose batches they will be.
        window_coder: of the elements' windows, where these are kept apart; None: they share buffers.
    """

    def __init__(self, spec: SessionSpec, window_coder: coders.Coder | None = None) -> None:
        config = spec.plan.batching
        self._spec = spec
        self._window_coder = window_coder
        self._policy = GatherPolicy(config, measured=not spec.plan.preprocess)
        self._patience_secs = config.max_batch_duration_secs or 0.0
        self._clock = config.clock or time.time

    def setup(self) -> None:
        """Has at hand what those who run the models, usually in this process, learn about sizes."""
        sizes = self._sizes = sizes_of(self._spec)
        self._controllers = [sizes[name] for name in self._spec.plan.models]

    def process(
        self,
        keyed: tuple[Key, tuple[Any, ...]],
        bag: Any = _CHUNKS,
        state: Any = _GATHERED,
        due: Any = _DUE_TIMER,
        window_end: Any = _WINDOW_END_TIMER,
    ) -> Iterable[WindowedValue]:
        """Takes a chunk; gives what it completes. Only what is left then is touched in the state."""
        key, fields = keyed
        chunk = Chunk(*fields)
        stored = gathered = _read(state)
        here: list[Part] = []
        start, end = 0, len(chunk.micros)
        while start < end:
            gathered, count = self._take(gathered or self._begin(chunk, start), chunk, start)
            if count:
                here.append((fields, start, start + count))
                start += count
            if start < end or self._policy.is_full(gathered):
                everybody = [*(bag.read() if stored else ()), *here]
                yield WindowedValue(everybody, Timestamp(micros=gathered.earliest), (self._window(key),))
                if stored:
                    _forget(bag, state, due)
                stored = gathered = None
                here = []
        if gathered is not None:
            for part in here:
                bag.add(part)
            state.write(tuple(gathered))
            if stored is None:
                window_end.set(self._window(key).max_timestamp())
            if stored is None or gathered.earliest < stored.earliest:
                due.set(Timestamp.of(gathered.due))

    @on_timer(_DUE)
    def on_due(
        self, key: Any = beam.DoFn.KeyParam, bag: Any = _CHUNKS, state: Any = _GATHERED, due: Any = _DUE_TIMER
    ) -> Iterable[WindowedValue]:
        """The oldest element has waited long enough."""
        return self._all(key, bag, state, due)

    @on_timer(_WINDOW_END)
    def on_window_end(
        self, key: Any = beam.DoFn.KeyParam, bag: Any = _CHUNKS, state: Any = _GATHERED, due: Any = _DUE_TIMER
    ) -> Iterable[WindowedValue]:
        """Nobody else is to come in time."""
        return self._all(key, bag, state, due)

    def _all(self, key: Key, bag: Any, state: Any, due: Any) -> list[WindowedValue]:
        gathered = _read(state)
        if gathered is None:
            return []
        leaving = WindowedValue(list(bag.read()), Timestamp(micros=gathered.earliest), (self._window(key),))
        _forget(bag, state, due)
        return [leaving]

    def _window(self, key: Key) -> Any:
        """What comes out of a buffer is in this window."""
        return GlobalWindow() if self._window_coder is None else self._window_coder.decode(key[1])

    def _take(self, gathered: Gathered, chunk: Chunk, start: int) -> tuple[Gathered, int]:
        sizes = None if chunk.sizes is None else chunk.sizes[start:]
        return self._policy.take(gathered, chunk.micros[start:], sizes)

    def _begin(self, chunk: Chunk, start: int) -> Gathered:
        due = self._clock() - chunk.waited_secs + self._patience_secs
        return Gathered(self._controllers[chunk.model].target(), due, chunk.micros[start])


def _read(state: Any) -> Gathered | None:
    fields = state.read()
    return None if fields is None else Gathered(*fields)


def _forget(*cells: Any) -> None:
    for cell in cells:
        cell.clear()

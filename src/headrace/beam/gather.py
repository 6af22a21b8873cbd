"""Unbounded elements wait for others across bundles, in Beam's state, until they are enough for a batch."""

from __future__ import annotations

import functools
import os
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam import coders, typehints
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, WindowedValue

from headrace.batching.gather import Gathered, GatherPolicy
from headrace.beam.dofn import WINDOWED, InferenceDoFn, Output
from headrace.beam.surroundings import lingers
from headrace.runtime.plan import ONLY, Plan
from headrace.runtime.session import SessionSpec, close_session, open_session


class Records:
    """An element with its timestamp and pane, as bytes; its window is that of the buffer, or in the bytes, too.

    Args:
        element_coder: of the PCollection.
        window_coder: of its windows, if they merge: every element then has one of its own until they are grouped, and
            what is kept for one window never meets others. So buffers are in the global window.
    """

    def __init__(self, element_coder: coders.Coder, window_coder: coders.Coder | None = None) -> None:
        self._coder = coders.TupleCoder((element_coder, coders.FastPrimitivesCoder()))
        self.window_coder = window_coder

    def encode(self, element: Any, timestamp: Timestamp, pane: PaneInfo, window: bytes = b"") -> bytes:
        """The bytes; ``window`` is encoded already, and empty where it is the buffer's."""
        fields = None
        if pane is not None and pane != PANE_INFO_UNKNOWN:
            fields = (pane.is_first, pane.is_last, pane.timing, pane.index, pane.nonspeculative_index)
        encoded: bytes = self._coder.encode((element, (timestamp.micros, fields, window)))
        return encoded

    def decode(self, record: bytes, window: Any) -> WindowedValue:
        """The element in its place."""
        element, (micros, fields, own) = self._coder.decode(record)
        window = window if self.window_coder is None else self.window_coder.decode(own)
        pane = PANE_INFO_UNKNOWN if fields is None else PaneInfo(*fields)
        return WindowedValue(element, Timestamp(micros=micros), (window,), pane)


class Gather(beam.PTransform):
    """Gives lists of records, each of elements that are to be run as one batch.

    Every process that feeds the transform has a buffer of its own for each window, and one for each model, where the
    key decides on it, and for each bucket: the runner serialises what has one key of Beam's, so fewer buffers would
    leave processes idle, and more would fill more slowly.

    Args:
        spec: of the session whose batches they will be.
        records: how elements are kept.
    """

    def __init__(self, spec: SessionSpec, records: Records) -> None:
        super().__init__()
        self._spec = spec
        self._records = records

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        """A ParDo that chooses the buffers, and one that has them."""
        hints = self._spec.plan.handler.get_resource_hints()  # other hints would be another environment, never fused
        element_type: Any = pcoll.element_type or Any
        choose = (
            beam.ParDo(_ChooseBuffer(self._spec.plan))
            .with_resource_hints(**hints)
            .with_output_types(typehints.Tuple[str, element_type])
        )
        chosen = pcoll | "Choose" >> choose
        if self._records.window_coder is not None:
            apart = ParDoInto(_Apart(self._records.window_coder), Windowing(GlobalWindows()))
            pair = typehints.Tuple[element_type, bytes]
            chosen |= "Apart" >> apart.with_resource_hints(**hints).with_output_types(typehints.Tuple[str, pair])
        wait = beam.ParDo(_Wait(self._spec, self._records)).with_resource_hints(**hints)
        return chosen | "Wait" >> wait.with_output_types(typehints.List[bytes])


class _ChooseBuffer(beam.DoFn):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def process(self, element: Any) -> Iterable[tuple[str, Any]]:
        """The element with its buffer's name."""
        bounds = self._plan.batching.bucket_boundaries
        length_fn = self._plan.batching.length_fn
        bucket = bisect_right(bounds, _measured(self._plan, length_fn, element)) if bounds else 0
        yield f"{_process_name(os.getpid())} {_model_of(self._plan, element)!r} {bucket}", element


class ParDoInto(beam.ParDo):
    """A ParDo that puts what it emits into windows itself.

    Args:
        dofn: emits ``WindowedValue``.
        windowing: of these.
    """

    def __init__(self, dofn: beam.DoFn, windowing: Windowing) -> None:
        super().__init__(dofn)
        self._windowing = windowing

    def get_windowing(self, inputs: Any) -> Windowing:
        """As given, whatever the inputs'."""
        return self._windowing


class _Apart(beam.DoFn):
    """Takes an element's window for a part of the element."""

    def __init__(self, window_coder: coders.Coder) -> None:
        self._coder = window_coder

    def process(
        self,
        keyed: tuple[str, Any],
        window: Any = beam.DoFn.WindowParam,
        timestamp: Any = beam.DoFn.TimestampParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterable[WindowedValue]:
        """The element with its window as bytes, in the global window."""
        key, element = keyed
        yield WindowedValue((key, (element, self._coder.encode(window))), timestamp, (GlobalWindow(),), pane)


_RECORDS = beam.DoFn.StateParam(BagStateSpec("records", coders.BytesCoder()))
_GATHERED = beam.DoFn.StateParam(ReadModifyWriteStateSpec("gathered", coders.FastPrimitivesCoder()))
_DUE = TimerSpec("due", TimeDomain.REAL_TIME)
_WINDOW_END = TimerSpec("window_end", TimeDomain.WATERMARK)
_DUE_TIMER = beam.DoFn.TimerParam(_DUE)
_WINDOW_END_TIMER = beam.DoFn.TimerParam(_WINDOW_END)


class _Wait(beam.DoFn):
    """Keeps elements in a bag until they are enough for a batch, or the oldest has waited long enough.

    The timer for the latter holds the watermark at the timestamp of the element at which it is set, so it is set anew,
    to the same moment, whenever an earlier element comes: no element becomes late by waiting. What leaves has the
    earliest timestamp, for the same reason: it holds the watermark until all its elements have come out.
    """

    def __init__(self, spec: SessionSpec, records: Records) -> None:
        config = spec.plan.batching
        self._spec = spec
        self._records = records
        self._policy = GatherPolicy(config, measured=not spec.plan.preprocess)
        self._patience_secs = config.max_batch_duration_secs or 0.0
        self._clock = config.clock or time.time
        self._size_fn = config.element_size_fn or config.length_fn

    def setup(self) -> None:
        """Joins the session, which is usually that of the models, to know what it has learnt about sizes."""
        self._session = open_session(self._spec)

    def teardown(self) -> None:
        """Leaves the session."""
        close_session(self._session, linger=lingers(self._spec))

    def process(  # noqa: PLR0917 - what it needs of Beam
        self,
        keyed: tuple[str, Any],
        windowed: Any = WINDOWED,
        bag: Any = _RECORDS,
        state: Any = _GATHERED,
        due: Any = _DUE_TIMER,
        window_end: Any = _WINDOW_END_TIMER,
    ) -> Iterable[WindowedValue]:
        """Takes one element; gives what it completes."""
        element, own = keyed[1] if self._records.window_coder else (keyed[1], b"")
        window, timestamp = windowed.windows[0], windowed.timestamp  # with state, Beam calls once for each window
        size = _measured(self._spec.plan, self._size_fn, element)
        before = _read(state)
        if before is not None and not self._policy.fits(before, size):
            yield _leave(before, window, bag, state, due)
            before = None
        bag.add(self._records.encode(element, timestamp, windowed.pane_info, own))
        gathered = (before or self._begin(element, timestamp)).plus(size, timestamp.micros)
        if self._policy.is_full(gathered):
            yield _leave(gathered, window, bag, state, due)
            return
        state.write(tuple(gathered))
        if before is None:
            window_end.set(window.max_timestamp())
        if before is None or gathered.earliest < before.earliest:
            due.set(Timestamp.of(gathered.due))

    @on_timer(_DUE)
    def on_due(
        self,
        window: Any = beam.DoFn.WindowParam,
        bag: Any = _RECORDS,
        state: Any = _GATHERED,
        due: Any = _DUE_TIMER,
    ) -> Iterable[WindowedValue]:
        """The oldest element has waited long enough."""
        gathered = _read(state)
        return [] if gathered is None else [_leave(gathered, window, bag, state, due)]

    @on_timer(_WINDOW_END)
    def on_window_end(
        self,
        window: Any = beam.DoFn.WindowParam,
        bag: Any = _RECORDS,
        state: Any = _GATHERED,
        due: Any = _DUE_TIMER,
    ) -> Iterable[WindowedValue]:
        """Nobody else is to come in time."""
        gathered = _read(state)
        return [] if gathered is None else [_leave(gathered, window, bag, state, due)]

    def _begin(self, element: Any, timestamp: Timestamp) -> Gathered:
        sizes = self._session.sizes
        name = _model_of(self._spec.plan, element)
        controller = sizes[name] if name in sizes else next(iter(sizes.values()))
        return Gathered(controller.target(), self._clock() + self._patience_secs, timestamp.micros)


def _read(state: Any) -> Gathered | None:
    fields = state.read()
    return None if fields is None else Gathered(*fields)


def _leave(gathered: Gathered, window: Any, bag: Any, state: Any, due: Any) -> WindowedValue:
    leaving = list(bag.read())
    bag.clear()
    state.clear()
    due.clear()
    return WindowedValue(leaving, Timestamp(micros=gathered.earliest), (window,))


def _model_of(plan: Plan, element: Any) -> Any:
    """The name of the element's model, as far as it is known before preprocessing; for keeping company only."""
    if not plan.routed or plan.preprocess:
        return ONLY
    try:
        return plan.handler.cohort(element[0])
    except Exception:  # the element will fail, in its turn
        return ONLY


def _measured(plan: Plan, function: Callable[[Any], float] | None, element: Any) -> float:
    """The element's size or length, as far as it is known before preprocessing; else 1."""
    if function is None or plan.preprocess:
        return 1
    try:
        return max(0, function(element))
    except Exception:  # the element will fail, in its turn
        return 1


@functools.cache
def _process_name(_: int) -> str:
    """A name that no other process has; a forked process has another number."""
    return uuid.uuid4().hex


class GatheredInferenceDoFn(InferenceDoFn):
    """Runs a session over lists of records: a list is one batch, unless limits forbid, and is done when it is taken.

    Args:
        spec: of the session.
        records: how the lists' elements are kept.
        namespace: of the metrics.
    """

    def __init__(self, spec: SessionSpec, records: Records, namespace: str | None = None) -> None:
        super().__init__(spec, namespace)
        self._records = records

    def process(self, gathered: list[bytes], windowed: Any = WINDOWED) -> Iterable[Output]:
        """Takes the elements of one list; emits what becomes of them."""
        window = windowed.windows[0]
        for record in gathered:
            one = self._records.decode(record, window)
            yield from super().process(one.value, one)
        yield from self.finish_bundle()


def waiting_for_others(
    pcoll: beam.PCollection, spec: SessionSpec, namespace: str | None
) -> tuple[beam.PCollection, beam.ParDo]:
    """A PCollection and what is to run over it: where elements are unbounded and may wait, they come gathered."""
    if pcoll.is_bounded or not spec.plan.may_wait:
        return pcoll, beam.ParDo(InferenceDoFn(spec, namespace))
    spec = replace(spec, gathered=True)
    windows = pcoll.windowing.windowfn
    window_coder = windows.get_window_coder() if windows.is_merging() else None
    records = Records(coders.registry.get_coder(pcoll.element_type or Any), window_coder)
    dofn = GatheredInferenceDoFn(spec, records, namespace)
    return pcoll | "Gather" >> Gather(spec, records), ParDoInto(dofn, pcoll.windowing)

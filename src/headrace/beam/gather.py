"""Unbounded elements wait for others across bundles, in Beam's state, until they are enough for a batch."""

from __future__ import annotations

import functools
import os
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam import coders, typehints
from apache_beam.pvalue import AsSideInput
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.typehints.decorators import IOTypeHints
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from headrace.batching.batcher import Batcher
from headrace.batching.gather import Gathered, GatherPolicy
from headrace.beam.arguments import ArgumentsDoFn
from headrace.beam.chunks import Chunk, ChunkCoder, Part
from headrace.beam.dofn import WINDOWED, InferenceDoFn, Once, Output
from headrace.beam.refresh import AsTold, RefreshingDoFn, RefreshingInferenceDoFn
from headrace.runtime.plan import Plan
from headrace.runtime.session import SessionSpec, sizes_of

_LONGEST_CHUNK = 1000
"""Elements; what is done once for a chunk then costs next to nothing for each."""


class Gather(beam.PTransform):
    """Gives lists of parts of chunks, each of elements that are to be run as one batch.

    Every process that feeds the transform has a buffer of its own for each window, and one for each model, where the
    key decides on it, and for each bucket: the runner serialises what has one key of Beam's, so fewer buffers would
    leave processes idle, and more would fill more slowly.

    Args:
        spec: of the session whose batches they will be.
        coder: how elements are kept.
    """

    def __init__(self, spec: SessionSpec, coder: ChunkCoder) -> None:
        super().__init__()
        self._spec = spec
        self._coder = coder

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        """A ParDo that chooses the buffers, and one that has them."""
        hints = self._spec.plan.handler.get_resource_hints()  # other hints would be another environment, never fused
        choose = _Choose(self._spec.plan, self._coder)
        windowing = pcoll.windowing if self._coder.window_coder is None else Windowing(GlobalWindows())
        chosen = ParDoInto(choose, windowing).with_resource_hints(**hints).with_output_types(typehints.Tuple[str, Any])
        wait = beam.ParDo(_Wait(self._spec)).with_resource_hints(**hints)
        return pcoll | "Choose" >> chosen | "Wait" >> wait.with_output_types(typehints.List[Any])


class ParDoInto(beam.ParDo):
    """A ParDo that puts what it emits into windows itself.

    Args:
        dofn: emits ``WindowedValue``.
        windowing: of these.
        side: side inputs.
    """

    def __init__(self, dofn: beam.DoFn, windowing: Windowing, *side: AsSideInput) -> None:
        super().__init__(dofn, *side)
        self._windowing = windowing

    def get_windowing(self, inputs: Any) -> Windowing:
        """As given, whatever the inputs'."""
        return self._windowing


class _Choose(beam.DoFn):
    """Makes chunks of a bundle's elements, one after the other for each buffer, and says which buffer they go to.

    An element stays here until the bundle ends, and no longer than it may wait, if others come.
    """

    def __init__(self, plan: Plan, coder: ChunkCoder) -> None:
        config = plan.batching
        self._plan = plan
        self._coder = coder
        self._bounds = config.bucket_boundaries or ()
        self._size_fn = None if plan.preprocess else config.element_size_fn or config.length_fn
        self._patience_secs = config.max_batch_duration_secs or 0.0
        self._clock = config.clock or time.time

    def start_bundle(self) -> None:
        """Begins anew."""
        self._arrived = Batcher(lambda: _LONGEST_CHUNK, _LONGEST_CHUNK, max_bytes=self._plan.batching.lookahead_bytes)
        self._since: float | None = None

    def process(self, element: Any, windowed: Any = WINDOWED) -> Iterable[WindowedValue]:
        """Takes an element; gives what has become enough, or has been here for long."""
        batch = self._arrived.add(element, windowed)
        now = self._clock()
        if self._since is None:
            self._since = now
        if batch is None and now < self._since + self._patience_secs:
            return ()
        return self._leave((batch or self._arrived.flush()).tags)

    def finish_bundle(self) -> Iterable[WindowedValue]:
        """Gives the rest."""
        return self._leave(self._arrived.flush().tags)

    def default_type_hints(self) -> IOTypeHints:
        """None: the annotations here speak of windowed values, not of elements."""
        return IOTypeHints.empty()

    def _leave(self, arrived: Sequence[WindowedValue]) -> Iterator[WindowedValue]:
        since, self._since = self._since, None
        buffers: dict[tuple[int, int, Any], list[WindowedValue]] = {}
        for one in arrived:
            model, bucket = self._model(one.value), self._bucket(one.value)
            for own in one.windows:
                alone = one if len(one.windows) == 1 else WindowedValue(one.value, one.timestamp, (own,), one.pane_info)
                window = own if self._coder.window_coder is None else GlobalWindow()
                buffers.setdefault((model, bucket, window), []).append(alone)
        for (model, bucket, window), those in buffers.items():
            sizes = None if self._size_fn is None else [_measured(self._size_fn, one.value) for one in those]
            chunk = self._coder.encode(those, sizes, max(0, model), self._clock() - (since or 0))
            key = f"{_process_name(os.getpid())} {model} {bucket}"
            yield WindowedValue((key, tuple(chunk)), Timestamp(micros=min(chunk.micros)), Once((window,)))

    def _bucket(self, element: Any) -> int:
        if not self._bounds:
            return 0
        function = None if self._plan.preprocess else self._plan.batching.length_fn
        return bisect_right(self._bounds, 1 if function is None else _measured(function, element))

    def _model(self, element: Any) -> int:
        """The place of the element's model, as far as it is known before preprocessing; for keeping company only."""
        if not self._plan.routed or self._plan.preprocess:
            return 0
        try:
            return list(self._plan.models).index(self._plan.handler.cohort(element[0]))
        except Exception:  # the element will fail, in its turn
            return -1


def _measured(function: Callable[[Any], float], element: Any) -> float:
    try:
        return max(0, function(element))
    except Exception:  # the element will fail, in its turn
        return 1


_CHUNKS = beam.DoFn.StateParam(BagStateSpec("chunks", coders.FastPrimitivesCoder()))
_GATHERED = beam.DoFn.StateParam(ReadModifyWriteStateSpec("gathered", coders.FastPrimitivesCoder()))
_DUE = TimerSpec("due", TimeDomain.REAL_TIME)
_WINDOW_END = TimerSpec("window_end", TimeDomain.WATERMARK)
_DUE_TIMER = beam.DoFn.TimerParam(_DUE)
_WINDOW_END_TIMER = beam.DoFn.TimerParam(_WINDOW_END)


class _Wait(beam.DoFn):
    """Keeps elements in a bag until they are enough for a batch, or the oldest has waited long enough.

    The timer for the latter holds the watermark at the timestamp of the chunk at which it is set, which is that of its
    earliest element, so it is set anew, to the same moment, whenever an earlier element comes: no element becomes late
    by waiting. What leaves has the earliest timestamp, for the same reason: it holds the watermark until all its
    elements have come out.
    """

    def __init__(self, spec: SessionSpec) -> None:
        config = spec.plan.batching
        self._spec = spec
        self._policy = GatherPolicy(config, measured=not spec.plan.preprocess)
        self._patience_secs = config.max_batch_duration_secs or 0.0
        self._clock = config.clock or time.time

    def setup(self) -> None:
        """Has at hand what those who run the models, usually in this process, learn about sizes."""
        sizes = self._sizes = sizes_of(self._spec)
        self._controllers = [sizes[name] for name in self._spec.plan.models]

    def process(  # noqa: PLR0917 - what it needs of Beam
        self,
        keyed: tuple[str, tuple[Any, ...]],
        window: Any = beam.DoFn.WindowParam,
        bag: Any = _CHUNKS,
        state: Any = _GATHERED,
        due: Any = _DUE_TIMER,
        window_end: Any = _WINDOW_END_TIMER,
    ) -> Iterable[WindowedValue]:
        """Takes a chunk; gives what it completes. Only what is left then is touched in the state."""
        fields = keyed[1]
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
                yield WindowedValue(everybody, Timestamp(micros=gathered.earliest), (window,))
                if stored:
                    _forget(bag, state, due)
                stored = gathered = None
                here = []
        if gathered is not None:
            for part in here:
                bag.add(part)
            state.write(tuple(gathered))
            if stored is None:
                window_end.set(window.max_timestamp())
            if stored is None or gathered.earliest < stored.earliest:
                due.set(Timestamp.of(gathered.due))

    @on_timer(_DUE)
    def on_due(
        self,
        window: Any = beam.DoFn.WindowParam,
        bag: Any = _CHUNKS,
        state: Any = _GATHERED,
        due: Any = _DUE_TIMER,
    ) -> Iterable[WindowedValue]:
        """The oldest element has waited long enough."""
        return _all(window, bag, state, due)

    @on_timer(_WINDOW_END)
    def on_window_end(
        self,
        window: Any = beam.DoFn.WindowParam,
        bag: Any = _CHUNKS,
        state: Any = _GATHERED,
        due: Any = _DUE_TIMER,
    ) -> Iterable[WindowedValue]:
        """Nobody else is to come in time."""
        return _all(window, bag, state, due)

    def _take(self, gathered: Gathered, chunk: Chunk, start: int) -> tuple[Gathered, int]:
        sizes = None if chunk.sizes is None else chunk.sizes[start:]
        return self._policy.take(gathered, chunk.micros[start:], sizes)

    def _begin(self, chunk: Chunk, start: int) -> Gathered:
        due = self._clock() - chunk.waited_secs + self._patience_secs
        return Gathered(self._controllers[chunk.model].target(), due, chunk.micros[start])


def _read(state: Any) -> Gathered | None:
    fields = state.read()
    return None if fields is None else Gathered(*fields)


def _all(window: Any, bag: Any, state: Any, due: Any) -> list[WindowedValue]:
    gathered = _read(state)
    if gathered is None:
        return []
    leaving = WindowedValue(list(bag.read()), Timestamp(micros=gathered.earliest), (window,))
    _forget(bag, state, due)
    return [leaving]


def _forget(*cells: Any) -> None:
    for cell in cells:
        cell.clear()


@functools.cache
def _process_name(_: int) -> str:
    """A name that no other process has; a forked process has another number."""
    return uuid.uuid4().hex


class GatheredInferenceDoFn(InferenceDoFn):
    """Runs a session over lists of parts of chunks: a list is one batch, unless limits forbid, and done when taken.

    Args:
        spec: of the session.
        coder: how the elements are kept.
        namespace: of the metrics.
    """

    def __init__(self, spec: SessionSpec, coder: ChunkCoder, namespace: str | None = None) -> None:
        super().__init__(spec, namespace)
        self._coder = coder

    def start_bundle(self) -> None:
        """Begins anew."""
        super().start_bundle()
        self._last: tuple[Any, Any, list[WindowedValue]] = (None, None, [])

    def process(self, gathered: list[Part], windowed: Any = WINDOWED) -> Iterable[Output]:
        """Takes the elements of one list; emits what becomes of them."""
        window = windowed.windows[0]
        for fields, start, stop in gathered:
            for one in self._decoded(fields, window)[start:stop]:
                yield from super().process(one.value, one)
        yield from super().finish_bundle()

    def finish_bundle(self) -> Iterable[Output]:
        """Forgets what it has read."""
        self._last = (None, None, [])
        return super().finish_bundle()

    def _decoded(self, fields: tuple[Any, ...], window: Any) -> list[WindowedValue]:
        """A chunk's elements; one that is parted among batches comes several times in a row."""
        if fields is not self._last[0] or window != self._last[1]:
            self._last = (fields, window, self._coder.decode(Chunk(*fields), window))
        return self._last[2]


class RefreshingGatheredInferenceDoFn(RefreshingDoFn, GatheredInferenceDoFn):
    """The same with models that are refreshed."""

    def __init__(self, spec: SessionSpec, coder: ChunkCoder, namespace: str | None = None) -> None:
        GatheredInferenceDoFn.__init__(self, spec, coder, namespace)


def waiting_for_others(
    pcoll: beam.PCollection,
    spec: SessionSpec,
    namespace: str | None,
    refresh: AsTold | None = None,
    arguments: AsSideInput | None = None,
) -> tuple[beam.PCollection, beam.ParDo]:
    """A PCollection and what is to run over it: where elements are unbounded and may wait, they come gathered.

    Args:
        pcoll: the elements.
        spec: of the session.
        namespace: of the metrics.
        refresh: tells of newer models; None: there will be none.
        arguments: for the model's call, in place of those of ``spec``.
    """
    side: list[AsSideInput] = [one for one in (arguments, refresh) if one is not None]
    merging = pcoll.windowing.windowfn.is_merging()
    by_window = not all(_is_global(one.pvalue.windowing) for one in side)  # each element sees those of its own window
    refreshes = refresh is not None or spec.watch is not None
    make: Callable[[SessionSpec], InferenceDoFn]
    if pcoll.is_bounded or not spec.plan.may_wait or (merging and by_window):
        make = partial(InferenceDoFn, namespace=namespace)
        if refreshes:
            waits = pcoll.is_bounded and refresh is not None
            make = partial(RefreshingInferenceDoFn, namespace=namespace, waits=waits)
        return pcoll, beam.ParDo(_dofn(make, spec, arguments), *side)
    spec = replace(spec, gathered=True)
    mixed = merging or (_held_open(pcoll.windowing) and not by_window)
    window_coder = pcoll.windowing.windowfn.get_window_coder() if mixed else None
    coder = ChunkCoder(coders.registry.get_coder(pcoll.element_type or Any), window_coder)
    kind = RefreshingGatheredInferenceDoFn if refreshes else GatheredInferenceDoFn
    dofn = _dofn(partial(kind, coder=coder, namespace=namespace), spec, arguments)
    return pcoll | "Gather" >> Gather(spec, coder), ParDoInto(dofn, pcoll.windowing, *side)


def _held_open(windowing: Windowing) -> bool:
    """Whether state in these windows may hold the watermark at their end until nothing can come late.

    Flink's cleanup of state does that, and no window behind it would close in time. The global window has no such end.
    """
    return bool(windowing.allowed_lateness.micros) and not _is_global(windowing)


def _is_global(windowing: Windowing) -> bool:
    return isinstance(windowing.windowfn, GlobalWindows)


def _dofn(make: Callable[[SessionSpec], InferenceDoFn], spec: SessionSpec, arguments: AsSideInput | None) -> beam.DoFn:
    return make(spec) if arguments is None else ArgumentsDoFn(spec, make)

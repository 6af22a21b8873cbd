"""Unbounded elements wait for others across bundles, in Beam's state, until they are enough for a batch."""

from __future__ import annotations

import functools
import os
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam import coders, typehints
from apache_beam.options.pipeline_options import DebugOptions
from apache_beam.pvalue import AsSideInput
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.typehints.decorators import IOTypeHints
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from headrace.batching.batcher import Batcher
from headrace.beam.buffer import BufferDoFn, Key
from headrace.beam.chunks import Chunk, ChunkCoder, Misfit, Part
from headrace.beam.dofn import WINDOWED, Changes, InferenceDoFn, Output, UnmultipliedWindows, as_outputs
from headrace.beam.refresh import AsModelUpdates, ModelUpdates
from headrace.core.result import Caught, Stage
from headrace.runtime.devices import catches
from headrace.runtime.observers import FanOut
from headrace.runtime.plan import Plan
from headrace.runtime.spec import SessionSpec
from headrace.runtime.steps import Operations

_LONGEST_CHUNK = 1000
"""Elements; what is done once for a chunk then costs next to nothing for each."""
_NEVER_SPLIT = "prism_disable_sdf_split"
"""An experiment. Prism 2.77 splits slow bundles, runs a key in two of them at once, and loses what is in its state."""


class Gather(beam.PTransform):
    """Gives lists of parts of chunks, each of elements that are to be run as one batch.

    Every process that feeds the transform has a buffer of its own for each window, and one for each model, where the
    key decides on it, and for each bucket: the runner serialises what has one key of Beam's, so fewer buffers would
    leave processes idle, and more would fill more slowly.

    Args:
        spec: of the session whose batches they will be.
        coder: how elements are kept.
        window_coder: of the elements' windows, if only those of the same window are to wait together; what comes out is
            then in that window. None: any wait together, and what comes out is in the global window.
    """

    def __init__(self, spec: SessionSpec, coder: ChunkCoder, window_coder: coders.Coder | None) -> None:
        super().__init__()
        self._spec = spec
        self._coder = coder
        self._window_coder = window_coder

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        """A ParDo that chooses the buffers, and one that has them."""
        pcoll.pipeline.options.view_as(DebugOptions).add_experiment(_NEVER_SPLIT)  # other runners pass it over
        hints = self._spec.plan.handler.get_resource_hints()  # other hints would be another environment, never fused
        everywhere = Windowing(GlobalWindows())  # in their own windows a runner would drop what is late
        choose = ParDoInto(_Choose(self._spec.plan, self._coder, self._window_coder), everywhere)
        buffers = BufferDoFn(self._spec, self._window_coder)
        wait = ParDoInto(buffers, everywhere if self._window_coder is None else pcoll.windowing)
        keyed = typehints.Tuple[typehints.Tuple[str, bytes], Any]
        chosen = pcoll | "Choose" >> choose.with_resource_hints(**hints).with_output_types(keyed)
        return chosen | "Wait" >> wait.with_resource_hints(**hints).with_output_types(typehints.List[Any])


class ParDoInto(beam.ParDo):
    """A ParDo that puts what it emits into windows itself.

    Args:
        dofn: emits ``WindowedValue``.
        windowing: of these.
        side: side inputs; None where there is none.
    """

    def __init__(self, dofn: beam.DoFn, windowing: Windowing, *side: AsSideInput | None) -> None:
        super().__init__(dofn, *side)
        self._windowing = windowing

    def get_windowing(self, inputs: Any) -> Windowing:
        """As given, whatever the inputs'."""
        return self._windowing


class _Choose(beam.DoFn):
    """Makes chunks of a bundle's elements, one after the other for each buffer, and says which buffer they go to.

    An element stays here until the bundle ends, and no longer than it may wait, if others come.

    Args:
        plan: of the handler.
        coder: makes the chunks.
        window_coder: of the elements' windows, where each has buffers of its own; None: they share them.
    """

    def __init__(self, plan: Plan, coder: ChunkCoder, window_coder: coders.Coder | None = None) -> None:
        config = plan.batching
        self._plan = plan
        self._coder = coder
        self._window_coder = window_coder
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
                buffers.setdefault((model, bucket, self._window_coder and own), []).append(alone)
        for (model, bucket, window), those in buffers.items():
            sizes = None if self._size_fn is None else [_measured(self._size_fn, one.value) for one in those]
            chunk = self._coder.encode(those, sizes, max(0, model), self._clock() - (since or 0))
            place = b"" if self._window_coder is None else self._window_coder.encode(window)
            key: Key = f"{_process_name(os.getpid())} {model} {bucket}", place
            yield WindowedValue(
                (key, tuple(chunk)), Timestamp(micros=min(chunk.micros)), UnmultipliedWindows((GlobalWindow(),))
            )

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
        changes: as in ``InferenceDoFn``.
    """

    def __init__(
        self, spec: SessionSpec, coder: ChunkCoder, namespace: str | None = None, changes: Changes | None = None
    ) -> None:
        super().__init__(spec, namespace, changes)
        self._coder = coder

    def start_bundle(self) -> None:
        """Begins anew."""
        super().start_bundle()
        self._last: tuple[Any, Any, list[WindowedValue]] = (None, None, [])

    def process(
        self, gathered: list[Part], windowed: Any = WINDOWED, arguments: Any = None, updates: ModelUpdates | None = None
    ) -> Iterable[Output]:
        """Takes the elements of one list; emits what becomes of them."""
        window = windowed.windows[0]
        for fields, start, stop in gathered:
            for one in self._decoded(fields, window)[start:stop]:
                if type(one.value) is Misfit:
                    yield from self._refused(one.value, one)
                else:
                    yield from super().process(one.value, one, arguments, updates)
        yield from super().finish_bundle()

    def finish_bundle(self) -> Iterable[Output]:
        """Forgets what it has read."""
        self._last = (None, None, [])
        return super().finish_bundle()

    def _refused(self, misfit: Misfit, windowed: WindowedValue) -> Iterable[Output]:
        """The dead letter of the first operation, which was to have the element."""
        try:
            raise TypeError(misfit.problem)
        except TypeError as error:
            if not catches(self._spec, error):
                raise
            stage = Stage.PREPROCESSING if self._spec.plan.preprocess else Stage.INFERENCE
            operations = Operations(self._spec, FanOut())
            return as_outputs(operations.fail(windowed, stage, 0, misfit.text, Caught.of(error)))

    def _decoded(self, fields: tuple[Any, ...], window: Any) -> list[WindowedValue]:
        """A chunk's elements; one that is parted among batches comes several times in a row."""
        if fields is not self._last[0] or window != self._last[1]:
            self._last = (fields, window, self._coder.decode(Chunk(*fields), window))
        return self._last[2]


def build_inference_step(
    pcoll: beam.PCollection,
    spec: SessionSpec,
    namespace: str | None,
    refresh: AsModelUpdates | None = None,
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
    given: list[AsSideInput] = [one for one in (arguments, refresh) if one is not None]
    side = (arguments, refresh) if given else ()
    merging = pcoll.windowing.windowfn.is_merging()
    by_window = not all(_is_global(one.pvalue.windowing) for one in given)  # each element sees those of its own window
    waits = pcoll.is_bounded and refresh is not None
    changes = Changes(arguments is not None, waits) if given or spec.watch is not None else None
    if pcoll.is_bounded or not spec.plan.may_wait or (merging and by_window):
        return pcoll, beam.ParDo(InferenceDoFn(spec, namespace, changes), *side)
    spec = replace(spec, gathered=True)
    windowing = pcoll.windowing
    window_coder = None if _is_global(windowing) else windowing.windowfn.get_window_coder()
    mixed = merging or (bool(windowing.allowed_lateness.micros) and not by_window)  # late ones find company, too
    coder = ChunkCoder(coders.registry.get_coder(pcoll.element_type or Any), window_coder if mixed else None)
    gather = Gather(spec, coder, None if mixed else window_coder)
    dofn = GatheredInferenceDoFn(spec, coder, namespace, changes)
    return pcoll | "Gather" >> gather, ParDoInto(dofn, windowing, *side)


def _is_global(windowing: Windowing) -> bool:
    return isinstance(windowing.windowfn, GlobalWindows)

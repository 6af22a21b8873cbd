"""Unbounded elements wait across bundles, in Beam's state, until they fill a batch."""

from __future__ import annotations

import functools
import os
import time
import uuid
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam import coders, typehints
from apache_beam.options.pipeline_options import DebugOptions
from apache_beam.pvalue import AsIter, AsSideInput
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.typehints.decorators import IOTypeHints
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from headrace.batching.batcher import Batcher
from headrace.beam.buffer import BufferDoFn, BufferKey, Chunk, ChunkCoder, ChunkPart, Uncodable
from headrace.beam.dofn import WINDOWED, InferenceDoFn, Switching
from headrace.beam.outputs import LastInBundle, Output, ParDoInto, UnmultipliedWindows
from headrace.core.result import Caught, Stage
from headrace.runtime.observers import FanOut
from headrace.runtime.operations import Operations, catches
from headrace.runtime.plan import Plan
from headrace.runtime.spec import SessionSpec

_LONGEST_CHUNK = 1000
"""Elements; enough for the work per chunk to cost next to nothing per element."""
_NEVER_SPLIT = "prism_disable_sdf_split"
"""An experiment. Prism 2.77 splits slow bundles, runs a key in two of them at once, and loses what is in its state."""


def build_inference_step(
    pcoll: beam.PCollection,
    spec: SessionSpec,
    namespace: str | None,
    updates: AsIter | None = None,
    arguments: AsSideInput | None = None,
    *,
    counts: bool = False,
) -> tuple[beam.PCollection, beam.ParDo]:
    """The ParDo that runs the session, and its input; unbounded elements that may wait are gathered first.

    ``updates`` are newer models, ``arguments`` those of the model's call in place of the spec's. With ``counts`` the
    step emits counts for a threshold.
    """
    given: list[AsSideInput] = [one for one in (arguments, updates) if one is not None]
    side = (arguments, updates) if given else ()
    windowing = pcoll.windowing
    merging = windowing.windowfn.is_merging()
    by_window = not all(_is_global(one.pvalue.windowing) for one in given)  # each element sees those of its own window
    waits = pcoll.is_bounded and updates is not None
    switching = Switching(arguments is not None, waits) if given or spec.watch is not None else None
    if pcoll.is_bounded or not spec.plan.may_wait or (merging and by_window):
        return pcoll, LastInBundle(InferenceDoFn(spec, namespace, switching, counts=counts), *side)
    spec = replace(spec, gathered=True)
    window_coder = None if _is_global(windowing) else windowing.windowfn.get_window_coder()
    # Elements that may be late share buffers, so that late ones, too, find others to share a batch with.
    mixed = merging or (bool(windowing.allowed_lateness.micros) and not by_window)
    coder = ChunkCoder(coders.registry.get_coder(pcoll.element_type or Any), window_coder if mixed else None)
    gather = _gather(spec, coder, None if mixed else window_coder)
    dofn = GatheredInferenceDoFn(spec, coder, namespace, switching, counts=counts)
    return pcoll | "Gather" >> gather, ParDoInto(dofn, windowing, *side)


def _is_global(windowing: Windowing) -> bool:
    return isinstance(windowing.windowfn, GlobalWindows)


@beam.ptransform_fn
def _gather(
    pcoll: beam.PCollection, spec: SessionSpec, coder: ChunkCoder, window_coder: coders.Coder | None
) -> beam.PCollection:
    """Gives lists of chunk parts: the elements of a list form one batch.

    Every process that feeds the transform has a buffer of its own for each window, bucket and, if keys select it,
    model. A runner serialises what has one key of Beam's: with fewer buffers processes would be idle, more buffers
    would fill more slowly.

    With a ``window_coder`` only elements of one window wait together, and the output is in that window; else all wait
    together, and the output is in the global window.
    """
    pcoll.pipeline.options.view_as(DebugOptions).add_experiment(_NEVER_SPLIT)  # other runners ignore it
    hints = spec.resource_hints  # steps with different hints are never fused
    everywhere = Windowing(GlobalWindows())  # in their own windows a runner would drop late elements
    chunk = ParDoInto(ChunkDoFn(spec.plan, coder, window_coder), everywhere)
    wait = ParDoInto(BufferDoFn(spec, window_coder), everywhere if window_coder is None else pcoll.windowing)
    keyed = typehints.Tuple[typehints.Tuple[str, bytes], Any]
    chunks = pcoll | "Chunk" >> chunk.with_resource_hints(**hints).with_output_types(keyed)
    return chunks | "Wait" >> wait.with_resource_hints(**hints).with_output_types(typehints.List[Any])


class ChunkDoFn(beam.DoFn):
    """Collects a bundle's elements into chunks, each for one buffer and keyed by it.

    An element leaves when its bundle ends, or when the next element arrives after the longest wait. With a
    ``window_coder`` each window has buffers of its own.
    """

    def __init__(self, plan: Plan, coder: ChunkCoder, window_coder: coders.Coder | None = None) -> None:
        config = plan.batching
        self._plan = plan
        self._coder = coder
        self._window_coder = window_coder
        self._boundaries = config.bucket_boundaries or ()
        self._size_fn = None if plan.preprocess else config.element_size_fn or config.length_fn
        self._longest_wait_secs = config.max_batch_duration_secs or 0.0
        self._clock = config.clock or time.time

    def start_bundle(self) -> None:
        """Starts a new bundle."""
        self._arrived = Batcher(lambda: _LONGEST_CHUNK, _LONGEST_CHUNK, max_bytes=self._plan.batching.lookahead_bytes)
        self._since: float | None = None
        """When the first of the collected elements arrived."""

    def process(self, element: Any, windowed: Any = WINDOWED) -> Iterable[WindowedValue]:
        """Takes an element; emits chunks if enough elements are here, or the first has been here for long."""
        batch = self._arrived.add(element, windowed)
        now = self._clock()
        if self._since is None:
            self._since = now
        if batch is None and now < self._since + self._longest_wait_secs:
            return ()
        return self._chunks((batch or self._arrived.flush()).tags)

    def finish_bundle(self) -> Iterable[WindowedValue]:
        """Emits the remaining elements."""
        return self._chunks(self._arrived.flush().tags)

    def default_type_hints(self) -> IOTypeHints:
        """None: the annotations here are about windowed values, not about elements."""
        return IOTypeHints.empty()

    def _chunks(self, arrived: Sequence[WindowedValue]) -> Iterator[WindowedValue]:
        since, self._since = self._since, None
        buffers: defaultdict[tuple[int, int, Any], list[WindowedValue]] = defaultdict(list)
        for one in arrived:
            model, bucket = self._model(one.value), self._bucket(one.value)
            for own in one.windows:
                alone = one if len(one.windows) == 1 else WindowedValue(one.value, one.timestamp, (own,), one.pane_info)
                buffers[model, bucket, self._window_coder and own].append(alone)
        for (model, bucket, window), elements in buffers.items():
            sizes = None if self._size_fn is None else [_size(self._size_fn, one.value) for one in elements]
            chunk = self._coder.encode(elements, sizes, max(0, model), self._clock() - (since or 0))
            encoded_window = b"" if self._window_coder is None else self._window_coder.encode(window)
            key: BufferKey = f"{_process_name(os.getpid())} {model} {bucket}", encoded_window
            earliest = Timestamp(micros=min(chunk.micros))
            yield WindowedValue((key, tuple(chunk)), earliest, UnmultipliedWindows((GlobalWindow(),)))

    def _bucket(self, element: Any) -> int:
        if not self._boundaries:
            return 0
        length_fn = None if self._plan.preprocess else self._plan.batching.length_fn
        return bisect_right(self._boundaries, 1 if length_fn is None else _size(length_fn, element))

    def _model(self, element: Any) -> int:
        """The position of the element's model in the plan, as far as known before preprocessing; only a grouping."""
        if not self._plan.routed or self._plan.preprocess:
            return 0
        try:
            return list(self._plan.models).index(self._plan.handler.cohort(element[0]))
        except Exception:  # the element fails later, as an operation's input
            return -1


def _size(size_fn: Callable[[Any], float], element: Any) -> float:
    try:
        return max(0, size_fn(element))
    except Exception:  # the element fails later, as an operation's input
        return 1


@functools.cache
def _process_name(_: int) -> str:
    """A name unique to the process; a forked process has another id."""
    return uuid.uuid4().hex


class GatheredInferenceDoFn(InferenceDoFn):
    """Runs a session over lists of chunk parts: a list is one batch, unless limits split it, and finishes at once."""

    def __init__(
        self,
        spec: SessionSpec,
        coder: ChunkCoder,
        namespace: str | None = None,
        switching: Switching | None = None,
        *,
        counts: bool = False,
    ) -> None:
        super().__init__(spec, namespace, switching, counts=counts)
        self._coder = coder

    def start_bundle(self) -> None:
        """Starts a new bundle."""
        super().start_bundle()
        self._decoded: tuple[Any, Any, list[WindowedValue]] = (None, None, [])
        """The previous chunk's fields, its window and its elements: the parts of a chunk come one after the other."""

    def process(
        self,
        parts: list[ChunkPart],
        windowed: Any = WINDOWED,
        arguments: Any = None,
        updates: Iterable[tuple[int, Any]] | None = None,
    ) -> Iterable[Output]:
        """Takes the elements of one list; emits all of their outcomes."""
        (window,) = windowed.windows
        for fields, start, stop in parts:
            for one in self._decode(fields, window)[start:stop]:
                if type(one.value) is Uncodable:
                    yield from self._fail(one.value, one)
                else:
                    yield from super().process(one.value, one, arguments, updates)
        yield from super().finish_bundle()

    def finish_bundle(self) -> Iterable[Output]:
        """Emits the remaining outcomes, and frees the last chunk."""
        self._decoded = (None, None, [])
        return super().finish_bundle()

    def _fail(self, uncodable: Uncodable, windowed: WindowedValue) -> Iterable[Output]:
        """A dead letter of the first operation."""
        try:
            raise TypeError(uncodable.problem)
        except TypeError as error:
            if not catches(self._spec, error):
                raise
            stage = Stage.PREPROCESSING if self._spec.plan.preprocess else Stage.INFERENCE
            operations = Operations(self._spec, FanOut())
            if self._tally is not None:
                self._tally.count_element(windowed)
            return self._outputs([operations.fail(windowed, stage, 0, uncodable.text, Caught.of(error))])

    def _decode(self, fields: tuple[Any, ...], window: Any) -> list[WindowedValue]:
        if fields is not self._decoded[0] or window != self._decoded[1]:
            self._decoded = (fields, window, self._coder.decode(Chunk(*fields), window))
        return self._decoded[2]

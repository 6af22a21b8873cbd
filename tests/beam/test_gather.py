"""Unbounded elements wait across bundles: how long, with which others, and what they keep."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from headrace.beam import KeyedModelHandler, KeyModelMapping, RunInference
from headrace.beam.buffer import BufferDoFn, Chunk, ChunkCoder
from headrace.core.config import BatchingConfig
from headrace.runtime.prepare import InferenceRequest, prepare
from headrace.testing import FakeClock, SlowHandler
from toys import Acting, fixed

NOW = [0.0]
"""The current time in seconds, set by the stream's elements."""
SEEN: list = []
"""The outputs: (value, timestamp, start of the window), in seconds."""


SIZES = Acting(lambda batch: [(example, sorted(batch)) for example in batch])
"""Answers each example with its batch."""


def now():
    return NOW[0]


def set_clock(pair):
    """Sets the clock to the element's time, and returns the element."""
    NOW[0] = pair[1]
    return pair[0]


def see(value, timestamp=beam.DoFn.TimestampParam, where=beam.DoFn.WindowParam):
    start = None if isinstance(where, window.GlobalWindow) else float(where.start)
    SEEN.append((value, float(timestamp), start))


class Stream:
    """A stream of one-element bundles; ``wait`` advances processing time."""

    def __init__(self):
        self._stream = test_stream.TestStream().advance_watermark_to(0)
        self._now = 0

    def add(self, *elements):
        for element in elements:
            stamp = element if isinstance(element, int) else 0
            self._stream.add_elements([window.TimestampedValue((element, self._now), stamp)])
        return self

    def wait(self, seconds):
        self._now += seconds
        self._stream.advance_processing_time(seconds)
        return self

    def watermark(self, seconds):
        self._stream.advance_watermark_to(seconds)
        return self

    def run(self, transform, into=None, lateness=0):
        """The outputs in order: (value, timestamp, start of the window), in seconds."""
        SEEN.clear()
        options = PipelineOptions(streaming=True)
        with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
            elements = pipeline | self._stream.advance_watermark_to_infinity() | "Time" >> beam.Map(set_clock)
            windowed = elements | beam.WindowInto(into, allowed_lateness=lateness) if into else elements
            _ = windowed | transform | "See" >> beam.Map(see)
        return list(SEEN)


def waiting(count, seconds=5, handler=None, **options):
    batching = fixed(count, max_batch_duration_secs=seconds, clock=now, **options)
    return RunInference(handler or SIZES, batching=batching)


FIXED, SLIDING, SESSIONS = window.FixedWindows(10), window.SlidingWindows(10, 5), window.Sessions(10)
TOGETHER = {
    "across bundles": (Stream().add(*range(10)), waiting(4), {(None, 0, 1, 2, 3), (None, 4, 5, 6, 7), (None, 8, 9)}),
    "until the longest wait": (
        Stream().add(1).wait(3).add(2).wait(2).add(3).wait(4).add(4).wait(1).add(5),
        waiting(100),
        {(None, 1, 2), (None, 3, 4), (None, 5)},
    ),
    "before preprocessing": (
        Stream().add("a", "bb", "ccc"),
        waiting(2, handler=SIZES.with_preprocess_fn(len)),
        {(None, 1, 2), (None, 3)},
    ),
    "in buckets, by weight": (
        Stream().add("aa", "bbbbbb", "cc", "dddddd", "e", "ff"),
        waiting(2, length_fn=len, bucket_boundaries=[4], max_batch_weight=6),
        {(None, "aa", "cc"), (None, "e", "ff"), (None, "bbbbbb"), (None, "dddddd")},
    ),
    "in a window": (Stream().add(1, 11, 2, 12, 3, 15), waiting(3), {(0, 1, 2, 3), (10, 11, 12, 15)}, FIXED),
    "until the window ends": (
        Stream().add(1, 2).watermark(10).add(11).wait(1).add(12, 14),
        waiting(3, seconds=1000),
        {(0, 1, 2), (10, 11, 12, 14)},
        FIXED,
    ),
    "in each of two windows": (Stream().add(6, 7), waiting(2), {(0, 6, 7), (5, 6, 7)}, SLIDING),
    "in sessions, which are each element's own": (
        Stream().add(1, 2, 50, 3),
        waiting(2, seconds=1000),
        {(1, 1, 2), (2, 1, 2), (3, 3, 50), (50, 3, 50)},
        SESSIONS,
    ),
    "in any window if late ones count: else state would hold Flink's watermark until nothing can be late": (
        Stream().add(1, 11).watermark(25).add(2, 22),
        waiting(2, seconds=1000),
        {(0, 1, 11), (10, 1, 11), (0, 2, 22), (20, 2, 22)},
        FIXED,
        60,
    ),
}
"""For each a stream, the transform, the batches, each with the start of a window of its elements, and the windows."""


@pytest.mark.parametrize("case", TOGETHER.values(), ids=TOGETHER)
def test_elements_wait_together_and_keep_timestamp_and_window(case):
    stream, transform, expected, *windows = case
    seen = stream.run(transform, *windows)
    assert {(start, *batch) for (_, batch), _, start in seen} == expected
    assert all(stamp == example for (example, _), stamp, _ in seen if windows)
    assert len({(example, start) for (example, _), _, start in seen}) == len(seen)


INTO = [FIXED, SLIDING, SESSIONS]


@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("lateness", [0, 60])
@pytest.mark.parametrize("arguments", [False, True])
def test_state_is_in_the_global_window(into, lateness, arguments):
    """In any other window Flink drops late elements; the bundle-based direct runner does not."""
    pipeline = beam.Pipeline()
    side = pipeline | "Side" >> beam.Create([("a", 1)]) | "Side's" >> beam.WindowInto(window.FixedWindows(10))
    batching = BatchingConfig(max_batch_duration_secs=5)
    transform = RunInference(SIZES, batching=batching, inference_args=beam.pvalue.AsDict(side) if arguments else None)
    elements = pipeline | beam.Create([1])
    elements.is_bounded = False
    _ = elements | beam.WindowInto(into, allowed_lateness=lateness) | transform
    parts = pipeline.to_runner_api().components
    pardos = [step for step in parts.transforms.values() if step.spec.urn == common_urns.primitives.PAR_DO.urn]
    windows = []
    for step in pardos:
        if beam_runner_api_pb2.ParDoPayload.FromString(step.spec.payload).state_specs:
            (given_,) = step.inputs.values()
            strategy = parts.pcollections[given_].windowing_strategy_id
            windows.append(parts.windowing_strategies[strategy].window_fn.urn)
    waits = not (arguments and into == INTO[2])  # each element sees the arguments of its own window
    assert windows == [common_urns.global_windows.urn] * waits


@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("lateness", [0, 60])
def test_late_elements_come_out(into, lateness):
    """Whatever lateness is allowed: as without waiting, later steps decide what to do with them."""
    stream = Stream().add(1).watermark(100).add(2, 103, 3).watermark(101).wait(5).add(4)
    seen = stream.run(waiting(2, seconds=5), into, lateness=lateness)
    windows = {n: {one.start for one in into.assign(into.AssignContext(Timestamp(n)))} for n in (1, 2, 3, 4, 103)}
    assert sorted((example, stamp, start) for (example, _), stamp, start in seen) == sorted(
        (n, float(n), float(start)) for n, starts in windows.items() for start in starts
    )


def test_elements_that_are_batches_do_not_wait():
    seen = Stream().add((1, 2), (3,)).run(waiting(2, handler=SIZES.with_no_batching()))
    assert sorted(value for value, _, _ in seen) == [(1, [1, 2]), (2, [1, 2]), (3, [3])]


def test_sessions_merge_after_the_wait():
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        stamped = pipeline | beam.Create([1, 5, 14, 40]) | beam.Map(lambda n: window.TimestampedValue(n, n))
        stamped.is_bounded = False
        waited = stamped | beam.WindowInto(window.Sessions(10)) | waiting(3, seconds=1000)
        grouped = waited | beam.Map(lambda one: ("key", one[0])) | beam.GroupByKey()
        found = grouped | "At" >> beam.Map(lambda pair, where=beam.DoFn.WindowParam: (sorted(pair[1]), where))
        ends = [([1, 5, 14], 1, 24), ([40], 40, 50)]
        assert_that(found, equal_to([(n, window.IntervalWindow(start, end)) for n, start, end in ends]))


def test_elements_of_each_model_wait_together_and_one_without_a_model_is_a_dead_letter(run):
    elements = run.create([("a", 1), ("b", 2), ("a", 3), ("b", 4), ("c", 5)])
    elements.is_bounded = False
    handler = KeyedModelHandler([KeyModelMapping(["a"], SIZES), KeyModelMapping(["b"], Acting(SIZES.act))])
    good, dead = run.caught(elements, handler, batching=fixed(2, max_batch_duration_secs=1000))
    assert sorted(good) == [("a", (1, [1, 3])), ("a", (3, [1, 3])), ("b", (2, [2, 4])), ("b", (4, [2, 4]))]
    assert [element for element, _ in dead] == [[("c", 5)]]


def test_adaptive_size_is_learnt_across_bundles(run):
    """On FnApiRunner, which keeps a session across bundles, as engines do; its clock does not reach 1000."""
    clock = FakeClock()
    handler = SlowHandler(clock, fixed=1.0, each=0.01)
    batching = BatchingConfig(max_batch_duration_secs=1000)
    elements = run.create(range(100))
    elements.is_bounded = False
    predictions = run.infer(elements, handler, clock=clock, batching=batching)
    assert sorted(prediction.example for prediction in predictions) == list(range(100))
    sizes = [found for (_, name), found in run.metrics().items() if name == "inference_request_batch_size"]
    assert [(one.sum, one.min, one.max > 16) for one in sizes] == [(100, 1, True)]


class Timer:
    """A runner's timer: when it fires, and at which timestamp it holds the watermark."""

    def __init__(self):
        self.fires = self.holds = None
        self.at = None

    def set(self, moment):
        self.fires, self.holds = float(moment), self.at

    def clear(self):
        self.fires = self.holds = None


class Bag(list):
    add = list.append

    def read(self):
        return self


class Value(list):
    def read(self):
        return self[0] if self else None

    def write(self, value):
        self[:] = [value]


WHERE = window.IntervalWindow(0, 100)
WINDOW_CODER = window.FixedWindows(100).get_window_coder()
KEY = "buffer", WINDOW_CODER.encode(WHERE)


def chunk(coder, stamps, waited=0.0):
    arrived = [WindowedValue(stamp, Timestamp(stamp), (WHERE,)) for stamp in stamps]
    return coder.encode(arrived, None, 0, waited)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.floats(0, 4)), max_size=20),
    st.integers(1, 6),
)
def test_watermark_hold_is_the_earliest_element_and_the_timer_stays(arrivals, target):
    batching = fixed(target, max_batch_duration_secs=5, clock=now)
    wait = BufferDoFn(prepare(SIZES, InferenceRequest(batching=batching)), WINDOW_CODER)
    coder = ChunkCoder(beam.coders.VarIntCoder())
    wait.setup()
    bag, state, due, window_end = Bag(), Value(), Timer(), Timer()
    NOW[0] = 1000.0
    kept, left, first, first_of_all = [], [], 0.0, 0
    for stamps, pause in arrivals:
        NOW[0] += pause
        if due.fires is not None and due.fires <= NOW[0]:
            left += wait.on_due(KEY, bag, state, due)
            kept = []
        due.at = window_end.at = min(stamps)
        together = [*kept, *stamps]
        rest = together[len(together) // target * target :]
        first = first if kept and len(rest) == len(together) else NOW[0]
        began_here, kept = len(rest) <= len(stamps), rest
        left += wait.process((KEY, tuple(chunk(coder, stamps))), bag, state, due, window_end)
        assert (due.fires, due.holds is None) == (pytest.approx(first + 5) if kept else None, not kept)
        if kept:
            first_of_all = min(stamps) if began_here else min(first_of_all, *stamps)
            assert first_of_all <= due.holds <= min(kept)  # a split chunk holds it for all of its elements
            assert window_end.fires == pytest.approx(100, abs=0.001)
    left += wait.on_due(KEY, bag, state, due)
    assert (due.fires, wait.on_due(KEY, bag, state, due)) == (None, [])
    lists = [
        [one.value for fields, start, stop in several.value for one in coder.decode(Chunk(*fields), WHERE)[start:stop]]
        for several in left
    ]
    assert [one for several in lists for one in several] == [stamp for stamps, _ in arrivals for stamp in stamps]
    assert [float(one.timestamp) for one in left] == [min(several) for several in lists]
    wait.teardown()


@pytest.mark.parametrize("waits_secs", [None, 5])
def test_prism_must_not_split_bundles_if_elements_wait(waits_secs):
    pipeline = beam.Pipeline()
    elements = pipeline | test_stream.TestStream().advance_watermark_to_infinity()
    _ = elements | RunInference(SIZES, batching=BatchingConfig(max_batch_duration_secs=waits_secs))
    assert bool(pipeline.options.view_as(DebugOptions).lookup_experiment("prism_disable_sdf_split")) == bool(waits_secs)

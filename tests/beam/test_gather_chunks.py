"""A bundle's elements become chunks, each for one buffer: none is lost, reordered or kept for long."""

from __future__ import annotations

from collections import Counter, defaultdict

import apache_beam as beam
from apache_beam.coders import registry
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from headrace.beam import KeyedModelHandler, KeyModelMapping, RunInference
from headrace.beam.buffer import Chunk, ChunkCoder
from headrace.beam.gather import _LONGEST_CHUNK, ChunkDoFn
from headrace.core.config import BatchingConfig
from headrace.runtime.plan import make_plan
from headrace.testing import DoublingHandler, FakeClock
from toys import Acting, each

WINDOWS = [window.IntervalWindow(start, start + 10) for start in (0, 5, 10)]
CODER = ChunkCoder(registry.get_coder(object))
WINDOW_CODER = window.SlidingWindows(10, 5).get_window_coder()


def chunks_of(elements, *, handler=None, pauses=(), **options):
    """The chunks of (value, timestamp, windows) elements: (buffer's name, its window, elements, timestamp)."""
    clock = FakeClock()
    batching = BatchingConfig(max_batch_duration_secs=5, clock=clock.seconds, **options)
    choose = ChunkDoFn(make_plan(handler or DoublingHandler(), batching), CODER, WINDOW_CODER)
    choose.start_bundle()
    left = []
    for place, (value, stamp, windows) in enumerate(elements):
        clock.advance(pauses[place] if place < len(pauses) else 0)
        left += choose.process(value, WindowedValue(value, Timestamp(stamp), windows))
    left += choose.finish_bundle()
    assert {one.windows for one in left} <= {(window.GlobalWindow(),)}  # nothing is late there
    parts = [(*one.value[0], Chunk(*one.value[1]), float(one.timestamp)) for one in left]
    wheres = [WINDOW_CODER.decode(place) for _, place, *_ in parts]
    return [
        (name, where, CODER.decode(chunk, where), stamp)
        for (name, _, chunk, stamp), where in zip(parts, wheres, strict=True)
    ]


@given(
    st.lists(
        st.tuples(
            st.tuples(st.sampled_from("abc"), st.integers(0, 9)),
            st.integers(0, 14),
            st.lists(st.sampled_from(WINDOWS), min_size=1, unique=True).map(tuple),
        )
    )
)
def test_chunk_is_for_one_buffer_and_keeps_the_order(elements):
    handler = KeyedModelHandler([KeyModelMapping([key], DoublingHandler()) for key in "ab"])
    left = chunks_of(elements, handler=handler, length_fn=lambda pair: pair[1], bucket_boundaries=[5])
    found = defaultdict(list)
    for name, where, chunk, stamp in left:
        assert stamp == min(float(one.timestamp) for one in chunk)
        assert len({(one.value[0], one.value[1] >= 5) for one in chunk}) == 1
        found[name, where] += [(one.value, float(one.timestamp), one.windows) for one in chunk]
    given_ = defaultdict(list)
    for value, stamp, windows in elements:
        for where in windows:
            given_[value[0], value[1] >= 5, where].append((value, float(stamp), (where,)))
    assert sorted(map(repr, found.values())) == sorted(map(repr, given_.values()))


def test_chunks_leave_before_a_long_bundle_ends():
    elements = [(n, n, (WINDOWS[0],)) for n in range(2 * _LONGEST_CHUNK + 1)]
    assert [len(chunk) for _, _, chunk, _ in chunks_of(elements)] == [_LONGEST_CHUNK, _LONGEST_CHUNK, 1]


def test_chunks_of_large_elements_are_short():
    elements = [(bytes(1000), 0, (WINDOWS[0],))] * 10
    assert max(len(chunk) for _, _, chunk, _ in chunks_of(elements, lookahead_bytes=3000)) <= 4


def test_elements_that_waited_long_leave_with_the_next_element():
    elements = [(n, n, (WINDOWS[0],)) for n in range(4)]
    left = chunks_of(elements, pauses=[0, 3, 3, 1])
    assert [[one.value for one in chunk] for _, _, chunk, _ in left] == [[0, 1, 2], [3]]


def test_bundle_of_many_chunks_comes_out_in_all_windows():
    count = 2 * _LONGEST_CHUNK + 7
    handler = Acting(each(lambda n: -n), min_batch_size=700, max_batch_duration_secs=1000)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        elements = pipeline | beam.Create([0]) | beam.FlatMap(lambda _: range(count))
        elements.is_bounded = False
        stamped = elements | beam.Map(lambda n: window.TimestampedValue(n, n % 20))
        results = stamped | beam.WindowInto(window.SlidingWindows(10, 5)) | RunInference(handler)
        seen = results | beam.Map(
            lambda n, stamp=beam.DoFn.TimestampParam, where=beam.DoFn.WindowParam: (
                -n % 20 == int(stamp),
                int(where.start),
            )
        )
        starts = Counter(start for n in range(count) for start in range(-5, 20, 5) if start <= n % 20 < start + 10)
        assert_that(seen | beam.combiners.Count.PerElement(), equal_to([((True, s), n) for s, n in starts.items()]))

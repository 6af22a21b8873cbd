"""A bundle's elements become chunks, each for one buffer: none is lost, and what is decoded is what was encoded."""

from __future__ import annotations

from collections import defaultdict

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.coders import registry
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from headrace.beam import KeyedModelHandler, KeyModelMapping, RunInference
from headrace.beam.buffer import Chunk, ChunkCoder
from headrace.beam.gather import _LONGEST_CHUNK, ChunkDoFn
from headrace.core.config import BatchingConfig
from headrace.runtime.plan import make_plan
from headrace.testing import DoublingHandler, FakeClock
from pipelines import by_second
from toys import Acting, Unloadable

WHERE = window.IntervalWindow(0, 10)
PANE = PaneInfo(True, False, 1, 3, 2)


class Undumpable:
    """Refuses to be pickled."""

    def __reduce__(self):
        raise StopIteration("cannot be sent")


def round_trip(coder, arrived):
    """The elements after a chunk has crossed a runner."""
    chunk = coder.encode(arrived, None, 0, 0.0)
    wire = beam.coders.FastPrimitivesCoder()
    return coder.decode(Chunk(*wire.decode(wire.encode(tuple(chunk)))), WHERE)


@pytest.mark.parametrize("pane", [PANE, PANE_INFO_UNKNOWN])
@pytest.mark.parametrize(
    ("element_type", "window_coder", "other"),
    [
        (str, None, WHERE),
        (beam.typehints.Any, None, WHERE),
        (str, window.Sessions(10).get_window_coder(), window.IntervalWindow(1, 11)),
    ],
)
def test_elements_keep_timestamp_window_and_pane(element_type, window_coder, other, pane):
    arrived = [
        WindowedValue("x", Timestamp(micros=1234567), (WHERE,), pane),
        WindowedValue("y", Timestamp(1), (other,), PANE_INFO_UNKNOWN),
    ]
    assert round_trip(ChunkCoder(registry.get_coder(element_type), window_coder), arrived) == arrived


ARRAYS = st.sampled_from(["f8", np.dtype("f8", metadata={"unit": "m"}), ">f4", "i2", "?", "c16", "O", "U2", "M8[s]"])


@given(st.lists(st.tuples(ARRAYS, st.lists(st.integers(0, 2), max_size=2)), max_size=3), ARRAYS, st.integers(0, 3))
def test_arrays_travel_as_if_each_were_pickled(others, dtype, length):
    kinds = [*others, (dtype, [length])] if len(others) > 1 else [(dtype, [length])] * 4
    rows = [
        (np.arange(np.prod(shape, dtype=int)) + n).reshape(shape).astype(kind) for n, (kind, shape) in enumerate(kinds)
    ]
    rows[0] = rows[0][..., ::-1] if rows[0].ndim else rows[0]
    coder = ChunkCoder(registry.get_coder(object))
    found = [one.value for one in round_trip(coder, [WindowedValue(row, Timestamp(0), (WHERE,)) for row in rows])]
    alone = beam.coders.PickleCoder()
    expected = [alone.decode(alone.encode(row)) for row in rows]
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape, one.tolist()) == (other.dtype, other.shape, other.tolist())
        assert (type(one), one.dtype.metadata) == (type(other), other.dtype.metadata)
        assert (one.flags.writeable, one.flags.c_contiguous) == (other.flags.writeable, other.flags.c_contiguous)
    if found[0].size:
        found[0][...] = np.zeros((), found[0].dtype)
        assert [one.tolist() for one in found[1:]] == [one.tolist() for one in expected[1:]]


@pytest.mark.parametrize("element_type", [object, beam.typehints.Tuple[str, object]])
def test_uncodable_elements_leave_the_others_intact(element_type):
    values = [("a", 1), ("b", Unloadable()), ("c", ValueError("an element")), ("d", Undumpable()), ("e", 5)]
    found = round_trip(
        ChunkCoder(registry.get_coder(element_type)),
        [WindowedValue(value, Timestamp(n), (WHERE,)) for n, value in enumerate(values)],
    )
    assert [one.timestamp for one in found] == list(map(Timestamp, range(5)))
    assert [found[n].value for n in (0, 4)] == [("a", 1), ("e", 5)]
    assert found[2].value[1].args == ("an element",)
    unloadable, undumpable = found[1].value, found[3].value
    assert unloadable.text == "<tuple>"
    assert "of type tuple cannot be decoded" in unloadable.problem
    assert "no number" in unloadable.problem
    assert undumpable.text.startswith("('d', <")
    assert "of type tuple cannot be encoded" in undumpable.problem
    assert "cannot be sent" in undumpable.problem


class LenientCoder(beam.coders.Coder):
    """Decodes whatever has a length."""

    def encode(self, value):
        return value.encode()

    def decode(self, encoded):
        return len(encoded)


def test_uncodable_element_is_not_decoded_by_a_lenient_coder():
    arrived = [WindowedValue(value, Timestamp(0), (WHERE,)) for value in ("abc", 5, "d")]
    first, second, third = (one.value for one in round_trip(ChunkCoder(LenientCoder()), arrived))
    assert (first, second.text, third) == (3, "5", 1)


SORTED = Acting(lambda batch: [sorted(batch)] * len(batch))
WAITING = BatchingConfig(min_batch_size=3, max_batch_size=3, max_batch_duration_secs=1000)


@pytest.fixture
def elements(run):
    """The second of six cannot be decoded; nothing has encoded it yet."""
    places = by_second(run, "places", [(place, 1) for place in range(6)])
    places.is_bounded = False
    return places | beam.Map(lambda place: Unloadable() if place == 1 else place)


@pytest.mark.parametrize("prepared", [False, True])
def test_uncodable_element_becomes_the_only_dead_letter(run, elements, prepared):
    handler = SORTED.with_preprocess_fn(abs) if prepared else SORTED
    predictions, dead = elements | RunInference(handler, batching=WAITING).with_exception_handling()
    failed = dead.failed_preprocessing[0] if prepared else dead.failed_inferences
    batches, dead_letters = run.values(out=predictions, dead=failed)
    assert sorted(batches) == [[0, 2]] * 2 + [[3, 4, 5]] * 3
    text = "<toys.Unloadable>"
    [(element, error)] = dead_letters
    assert element == (text if prepared else [text])
    assert error[0] is TypeError
    assert "Unloadable cannot be decoded" in error[1]


def test_uncodable_element_raises_an_error_that_names_type_and_cure(run, elements):
    with pytest.raises(TypeError, match=r"Unloadable cannot be decoded, .*no number.*make its class one that pickles"):
        run.infer(elements, SORTED, batching=WAITING)


def test_uncodable_element_counts_as_an_element_for_the_threshold(run, elements):
    with pytest.raises(Exception, match=r"exceeded threshold: 1 / 6 = 0.16"):
        run.caught(elements, SORTED, {"threshold": 0.1}, batching=WAITING)


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

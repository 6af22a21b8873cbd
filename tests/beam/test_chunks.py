"""A decoded chunk has the elements that were encoded: value, timestamp, window, pane."""

from __future__ import annotations

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.coders import registry
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from headrace.beam.buffer import Chunk, ChunkCoder
from toys import Unloadable

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


@pytest.mark.parametrize("element_type", [str, beam.typehints.Any])
@pytest.mark.parametrize("panes", [(PANE, PANE_INFO_UNKNOWN), (PANE_INFO_UNKNOWN, PANE_INFO_UNKNOWN)])
def test_elements_keep_timestamp_window_and_pane(element_type, panes):
    arrived = [
        WindowedValue("x", Timestamp(micros=1234567), (WHERE,), panes[0]),
        WindowedValue("y", Timestamp(1), (WHERE,), panes[1]),
    ]
    assert round_trip(ChunkCoder(registry.get_coder(element_type)), arrived) == arrived


def test_merging_windows_stay_each_elements_own():
    sessions = window.Sessions(10)
    arrived = [WindowedValue(n, Timestamp(n), (window.IntervalWindow(n, n + 10),)) for n in (1, 5)]
    assert round_trip(ChunkCoder(registry.get_coder(int), sessions.get_window_coder()), arrived) == arrived


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

"""A decoded chunk has the elements that were encoded: value, timestamp, window, pane."""

from __future__ import annotations

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.coders import registry
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, WindowedValue

from headrace.beam.chunks import Chunk, ChunkCoder, Uncodable
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


def test_objects_of_any_type_are_decoded():
    rows = [np.arange(3.0), {"a": (1, "b")}, None]
    found = round_trip(
        ChunkCoder(registry.get_coder(object)), [WindowedValue(row, Timestamp(0), (WHERE,)) for row in rows]
    )
    assert (found[0].value.tolist(), found[1].value, found[2].value) == ([0, 1, 2], {"a": (1, "b")}, None)


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


def test_uncodable_element_among_other_types_is_named_by_its_own():
    rows = [1, Unloadable(), "x"]
    found = round_trip(
        ChunkCoder(registry.get_coder(object)), [WindowedValue(row, Timestamp(0), (WHERE,)) for row in rows]
    )
    assert [found[0].value, found[2].value] == [1, "x"]
    assert found[1].value.text == "<toys.Unloadable>"


class LenientCoder(beam.coders.Coder):
    """Decodes whatever has a length."""

    def encode(self, value):
        return value.encode()

    def decode(self, encoded):
        return len(encoded)


def test_uncodable_element_is_not_decoded_by_a_lenient_coder():
    arrived = [WindowedValue(value, Timestamp(0), (WHERE,)) for value in ("abc", 5, "d")]
    first, second, third = (one.value for one in round_trip(ChunkCoder(LenientCoder()), arrived))
    assert (first, third) == (3, 1)
    assert type(second) is Uncodable
    assert second.text == "5"

"""Sets of places say the same as sets of integers."""

import numpy
from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.row_ranges import RowRanges
from headrace.rows.blocks import place_at

RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 9)), max_size=30)


def both(runs):
    starts = [place_at(source, number) for source, number, _ in runs]
    places = RowRanges(starts, [start + rows for start, (_, _, rows) in zip(starts, runs)])
    return places, {start + n for start, (_, _, rows) in zip(starts, runs) for n in range(rows)}


@given(RUNS, RUNS)
def test_it_is_a_set(some, others):
    places, expected = both(some)
    more, more_expected = both(others)
    for found, wanted in ((places, expected), (places | more, expected | more_expected)):
        assert len(found) == len(wanted)
        assert {
            p for source in range(4) for p in range(place_at(source, 0), place_at(source, 60)) if p in found
        } == wanted
        assert all(start > stop for start, stop in zip(found.starts[1:], found.stops))


@given(RUNS, st.integers(0, 3), st.integers(0, 50), st.integers(0, 60))
def test_what_is_missing(runs, source, start, stop):
    places, expected = both(runs)
    ranges = list(places.missing(source, start, stop))
    found = [n for begin, end in ranges for n in range(begin, end)]
    assert found == [n for n in range(start, stop) if place_at(source, n) not in expected]
    assert all(begin < end for begin, end in ranges)


@given(RUNS)
def test_gaps_are_where_something_before_is_missing(runs):
    places, expected = both(runs)
    number = (1 << 40) - 1
    assert places.gaps() == sorted(p for p in expected if p & number and p - 1 not in expected)


@given(RUNS, st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), min_size=1))
def test_how_many_are_before_a_place(runs, some):
    places, expected = both(runs)
    where = [place_at(*one) for one in some]
    assert places.rank(numpy.array(where)).tolist() == [sum(other < place for other in expected) for place in where]


def test_of_many_rows_it_is_small():
    places = RowRanges(range(0, 100_000_000, 1_000_000), range(1_000_000, 100_000_001, 1_000_000))
    assert len(places) == 100_000_000
    assert len(places.starts) == 1

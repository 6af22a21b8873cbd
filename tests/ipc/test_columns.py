"""Which rows go in columns, and in which; both processes have the same ones."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy
import pytest

from headrace.ipc.codec import decode, encode
from headrace.ipc.columns import KnownColumns, RowEncoder


class Pair(NamedTuple):
    left: Any
    right: Any


def form(rows):
    """How rows are sent."""
    return RowEncoder(rows, KnownColumns(None, None, len(rows)), {}).form[0]


def sent(rows):
    """A message's columns, and what was read from it."""
    message = encode(None, rows)
    content = bytearray(message.nbytes)
    message.write(memoryview(content))
    return message.columns, decode(memoryview(content), own=True)


def round_trip(rows):
    return sent(rows)[1].rows


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["a", "b"], "list"),
        ([{"a": 1}, {"a": 2}], "list"),  # a pickle is faster
        ([{"a": numpy.zeros(2)}, {"a": numpy.zeros(2)}], "dicts"),
        ([{"a": numpy.zeros(2)}, {"b": numpy.zeros(2)}], "list"),
        ([{"a": numpy.zeros(2)}, {numpy.str_("a"): numpy.zeros(2)}], "list"),
        ([{1: numpy.zeros(2)}, {True: numpy.zeros(2)}], "list"),
        ([("a", 1), ("b", 2)], "tuples"),
        ([("a", 1), ("b",)], "list"),
        ([("a", 1), ["b", 2]], "list"),
        ([("a", 1), Pair("b", 2)], "list"),
        ([{}, {}], "list"),
        ([Pair(1, 2), Pair(3, 4)], "named"),
        ([tuple(range(1000))], "list"),  # a thousand columns of one value each
        ([None, None], "same"),
        ([numpy.zeros(2), numpy.zeros(3)], "list"),
        ([numpy.zeros(2), None], "list"),
    ],
)
def test_rows_go_in_columns_where_that_is_right_and_pays(rows, expected):
    assert form(rows) == expected
    arrived = round_trip(rows)
    assert repr(arrived) == repr(rows)
    assert [list(map(type, row)) for row in arrived if isinstance(row, dict)] == [
        list(map(type, row)) for row in rows if isinstance(row, dict)
    ]


class WithAttributes(namedtuple("Base", "x")):
    pass


class Counting(NamedTuple):
    x: int

    def __len__(self):
        return 3


class Reduced(NamedTuple):
    x: int

    def __reduce__(self):
        return Pair, (self[0], "reduced")


def test_a_named_tuple_with_a_mind_of_its_own_stays_whole():
    rows = [WithAttributes(1), WithAttributes(2)]
    rows[1].note = "kept"
    assert round_trip(rows)[1].note == "kept"
    assert list(round_trip([Counting(1), Counting(2)])[1]) == [2]
    assert round_trip([Reduced(1), Reduced(2)]) == [Pair(1, "reduced"), Pair(2, "reduced")]


def test_deep_rows_are_taken_apart_only_so_far():
    rows = [((((((i,),),),),),) for i in range(3)]
    assert round_trip(rows) == rows
    assert len(encode(None, rows).columns) == 5


def test_columns_do_not_change_with_the_rows():
    rows = ["a", "b"]
    owner, host = sent(rows)
    rows.clear()
    host.rows.clear()
    assert owner == host.columns == [["a", "b"]]

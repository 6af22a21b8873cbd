"""Messages: what lies side by side, whose memory it becomes, and what comes back as an index."""

from __future__ import annotations

import gc
import mmap
import tracemalloc
from collections import namedtuple
from typing import Any, NamedTuple

import numpy
import pytest

from headrace import PredictionResult
from headrace.ipc.codec import Columns, decode, encode
from headrace.ipc.columns import KnownColumns, RowEncoder

RNG = numpy.random.default_rng(3)


def written(message) -> memoryview:
    memory = memoryview(mmap.mmap(-1, message.nbytes))
    message.write(memory)
    return memory


def request(rows) -> tuple[Columns, Any]:
    """What the owner knows of a request, and what arrives in the host."""
    message = encode(None, rows)
    return message.columns, decode(written(message), own=False)


def round_trip(rows):
    return decode(written(encode(None, rows)), own=True).rows


def vectors(count: int, length: int = 1000) -> list[Any]:
    return list(RNG.normal(size=(count, length)))


# What is sent


def test_equal_arrays_are_one_piece_of_memory():
    arrays = vectors(500, 10)
    message = encode("head", arrays)
    assert 0 <= message.nbytes - 500 * 10 * 8 < 300
    head, rows, _ = decode(written(message), own=False)
    assert head == "head"
    assert numpy.array_equal(rows, arrays)


# Whose memory it is


@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: [a]], ids=["stacked", "pickled"])
def test_views_are_aligned_and_on_the_memory(wrap):
    memory = written(encode("odd", [wrap(array) for array in vectors(3, 1001)]))
    for row in decode(memory, own=False).rows:
        array = row[0] if isinstance(row, list) else row
        assert numpy.shares_memory(array, memory)
        assert array.flags.writeable
        assert array.ctypes.data % (8 if wrap(0) == 0 else 64) == 0
    frozen = decode(memory.toreadonly(), own=False).rows[0]
    assert not (frozen[0] if isinstance(frozen, list) else frozen).flags.writeable


def test_memory_is_free_as_soon_as_no_view_of_it_is_left():
    rows = [({"x": array}, [array]) for array in vectors(4)]
    message = encode(None, rows)
    content = bytearray(message.nbytes)
    gc.disable()
    try:
        message.write(memoryview(content))
        decoded = decode(memoryview(content), own=False)
        answer = encode(None, [(row, [row]) for row in decoded.rows], known=decoded.columns)
        with pytest.raises(BufferError):
            content.clear()
        del decoded, answer
        content.clear()
    finally:
        gc.enable()


def test_a_large_array_is_not_copied_before_it_is_written():
    array = numpy.zeros(10_000)
    for rows in ([array], [[array]], [[array.reshape(100, 100).T]]):
        message = encode(None, rows)
        array[:] = RNG.normal(size=10_000)
        arrived = decode(written(message), own=True).rows[0]
        arrived = arrived[0] if isinstance(arrived, list) else arrived
        assert numpy.array_equal(arrived.ravel("K"), array)


@pytest.mark.parametrize("wrap", [lambda content: content, lambda content: (1, content)], ids=["alone", "in a tuple"])
@pytest.mark.parametrize(
    "contents",
    [[bytes(1_000_000)], [bytes(1_000_000)] * 2, [bytes(1_000_000), b"", None, "x"]],
    ids=["one", "same", "several"],
)
def test_large_bytes_are_not_copied_before_they_are_written(wrap, contents):
    rows = list(map(wrap, contents))
    encode(None, rows)  # the first one loads the plug-ins
    tracemalloc.start()
    try:
        message = encode(None, rows)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
    assert decode(written(message), own=True).rows == rows


# Answers


def test_mutable_elements_return_as_they_are_now_except_as_examples():
    rows = [{"a": numpy.full(3, i)} for i in range(5)]
    owner, host = request(rows)
    for row in host.rows:
        row["a"] += 1
        row["b"] = 2
    message = encode(None, [PredictionResult(row, row) for row in host.rows], known=host.columns)
    arrived = decode(written(message), known=owner, own=True).rows
    for number, (result, row) in enumerate(zip(arrived, rows, strict=True)):
        assert result.example is row
        assert repr(result.inference) == repr({"a": numpy.full(3, number + 1), "b": 2})


# What is refused


def test_positions_and_rows_have_the_same_length():
    with pytest.raises(ValueError, match="2 positions were given for 1 rows"):
        encode(None, ["a"], positions=[0, 1])


# Which rows go in columns


class Pair(NamedTuple):
    left: Any
    right: Any


def form(rows):
    """How rows are sent."""
    return RowEncoder(rows, KnownColumns(None, None, len(rows)), {}).form[0]


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


def test_rows_of_any_depth_arrive():
    rows = [((((((i,),),),),), {"a": {"b": {"c": {"d": {"e": {"f": [i]}}}}}}) for i in range(3)]
    assert round_trip(rows) == rows


def test_columns_do_not_change_with_the_rows():
    rows = ["a", "b"]
    owner, host = request(rows)
    rows.clear()
    host.rows.clear()
    assert owner == host.columns == [["a", "b"]]

"""Columns get types that hold everything that was seen in them."""

import io
import json
from itertools import pairwise

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.jobs.parquet_tables import write_parquet
from output_rows import output_table


def written(*chunks):
    """What a file holds after chunks of rows were seen and written."""
    file = io.BytesIO()
    write_parquet(file, lambda: map(output_table, chunks), lambda: None)
    return pyarrow.parquet.read_table(pyarrow.BufferReader(file.getvalue()))


def values(*chunks):
    return [row["x"] for row in written(*([{"x": value} for value in chunk] for chunk in chunks)).to_pylist()]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (([1, 2], [3]), [1, 2, 3]),
        (([None], [1], [None]), [None, 1, None]),
        (([1], [0.5]), [1.0, 0.5]),
        (([2**53], [0.5]), [float(2**53), 0.5]),
        (([2**53 + 1], [0.5]), ["9007199254740993", "0.5"]),
        (([0.5], [2**60 + 1]), ["0.5", "1152921504606846977"]),
        (([2**63],), [2**63]),
        (([2**63], [-1]), [str(2**63), "-1"]),
        (([[1], ["a"]],), ["[1]", '["a"]']),
        (([[1]], [["a"]]), ["[1]", '["a"]']),
        (([[1, "a"]], [[2]]), ['[1, "a"]', "[2]"]),
        (([{"a": 1}], [{"a": [1]}]), ['{"a": 1}', '{"a": [1]}']),
        (([{"a": 2**53 + 1}], [{"a": 0.5}]), ['{"a": 9007199254740993}', '{"a": 0.5}']),
        (([[2**70]], [[1]]), [f"[{2**70}]", "[1]"]),
        (([{"a": {}}], [{"a": None}]), ['{"a": {}}', '{"a": null}']),
        (([{"a": {}}], [{"a": {"b": 1}}]), [{"a": {"b": None}}, {"a": {"b": 1}}]),
        ((["\ud800"], ["é"]), ["\\ud800", "é"]),
        (([["\ud800"]], [["é"]]), ['["\\ud800"]', '["\\u00e9"]']),
        (([1], ["a"], [None]), ["1", "a", None]),
        (([1, "a"],), ["1", "a"]),
        (([True], [1]), ["true", "1"]),
        (([2**70],), [str(2**70)]),
        (([[1]], [[0.5, None]], [[]]), [[1.0], [0.5, None], []]),
        (([[1]], [2]), ["[1]", "2"]),
        (([{"a": 1}], [{"b": "c"}]), [{"a": 1, "b": None}, {"a": None, "b": "c"}]),
        (([{}], [{}]), ["{}", "{}"]),
        (([[{}]],), ["[{}]"]),
        (([{"a": 1}], ["text"]), ['{"a": 1}', "text"]),
    ],
    ids=repr,
)
def test_types_that_hold_everything(chunks, expected):
    assert values(*chunks) == expected


def test_columns_stand_in_the_order_in_which_they_came():
    table = written([{"b": 1, "a": 2}], [{"c": 3, "a": 4}])
    assert table.column_names == ["b", "a", "c"]
    assert table.to_pylist()[1] == {"b": None, "a": 4, "c": 3}


@pytest.mark.parametrize("distinct", [1000, 1001])
def test_objects_that_are_mappings_are_text(distinct):
    """Not a column for each word that somebody counted."""
    found = values([{f"word {n}": n} for n in range(600)], [{f"word {n}": n} for n in range(500, distinct)])
    assert type(found[0]) is (dict if distinct == 1000 else str)


def test_what_is_nested_deeply_is_text():
    deep = [1]
    for _ in range(300):
        deep = [deep]
    assert values([deep], [[1]]) == [json.dumps(deep), "[1]"]


def test_names_that_are_no_utf8():
    assert written([{"\ud800": 1, "": 3}]).to_pylist() == [{"\\ud800": 1, "": 3}]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=[]), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(JSON, min_size=1, max_size=12), st.randoms(use_true_random=False), st.data())
def test_the_type_is_the_same_however_rows_are_cut_and_ordered(column, random, data):
    """And nothing that was seen raises."""
    whole = written([{"x": value} for value in column])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(column)), max_size=4)))
    ends = [0, *cuts, len(column)]
    cut = written(*([{"x": value} for value in column[start:stop]] for start, stop in pairwise(ends)))
    assert cut.to_pylist() == whole.to_pylist()
    assert cut.schema == whole.schema
    shuffled = column[:]
    random.shuffle(shuffled)
    assert sorted_fields(written([{"x": value} for value in shuffled]).schema.field("x").type) == sorted_fields(
        whole.schema.field("x").type
    )


def sorted_fields(kind):
    """A type; objects without the order of their fields."""
    if pyarrow.types.is_struct(kind):
        return {field.name: sorted_fields(field.type) for field in kind}
    return [sorted_fields(kind.value_type)] if pyarrow.types.is_list(kind) else kind

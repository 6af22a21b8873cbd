"""Rows make frames in which each has the values and dtypes that it would have alone."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import NamedTuple

import apache_beam
import numpy
import pandas
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.handlers.data_frames import bytes_of, examples_of, frame_of_rows, predict_examples
from headrace.rows.blocks import TypedRow

UTC = datetime.timezone.utc
VALUES = [
    *(1, 2**63, 2**70, -(2**63), True, 0.5, float("nan"), float("inf"), None, "", "text", b"bytes"),
    *(datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3), datetime.datetime(2026, 1, 2, tzinfo=UTC)),
    *(datetime.time(3), datetime.timedelta(1), Decimal("1.50"), [1, 2], [], {"a": 1}, (1,), numpy.float32(0.5)),
]
TYPES = ["int", "float", "str", "bool", "date", "datetime", "mixed", "list"]


def seen(frame):
    """What a model sees of each row: columns, dtypes and values."""
    dtypes = list(map(str, frame.dtypes))
    return [repr([*zip(frame.columns, dtypes, row, strict=True)]) for row in frame.itertuples(index=False)]


def typed(values):
    """Rows of columns a and b that are known to hold what their types say."""
    return [TypedRow({"a": a, "b": b}, {"a": kind}) for a, b, kind in values]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from(VALUES)] * 2), min_size=1, max_size=20), st.sampled_from([None, *TYPES]))
def test_each_row_is_what_it_is_alone(pairs, kind):
    rows = typed((*pair, kind) for pair in pairs)
    assert predict_examples(rows, seen) == [text for row in rows for text in seen(frame_of_rows([row]))]


@pytest.mark.parametrize("kind", ["int64", "int8", "float32", "bool", "string", "date32[day]", "timestamp[us, tz=UTC]"])
def test_a_record_batch_is_what_its_rows_are(kind):
    made = {"bool": True, "string": "x", "date32[day]": VALUES[12], "timestamp[us, tz=UTC]": VALUES[14]}
    types = {"date32[day]": pyarrow.date32(), "timestamp[us, tz=UTC]": pyarrow.timestamp("us", "UTC")}
    column = pyarrow.array([made.get(kind, 1), None] * 4, types.get(kind, kind))
    batch = pyarrow.record_batch({"a": column, "b": range(8), "c": [True, True, None, None] * 2})
    wide = batch.set_column(0, "a", column.cast({"int8": "int64", "float32": "float64"}.get(kind, column.type)))
    names = {"int64": "int", "int8": "int", "float32": "float", "string": "str", "timestamp[us, tz=UTC]": "datetime"}
    alone = [predict_examples([wide.slice(place, 1)], seen)[0] for place in range(8)]
    assert list(predict_examples([wide], seen)) == alone
    if "timestamp" not in kind:
        rows = [TypedRow(row, {"a": names.get(kind, kind)}) for row in wide.to_pylist()]
        assert predict_examples(rows, seen) == alone


class Person(NamedTuple):
    age: int
    city: str


def test_rows_of_all_kinds():
    rows = [{"age": 1, "city": "Bern"}, Person(1, "Bern"), apache_beam.Row(age=1, city="Bern")]
    frame = pandas.DataFrame([{"age": 1, "city": "Bern"}])
    assert len(set(predict_examples([*rows, frame], seen))) == len(set(predict_examples(rows, seen))) == 1
    assert all(frame.equals(made) for made in examples_of([*rows, frame], rows_too=False))
    assert examples_of(rows, rows_too=True) == rows


def test_frames_of_several_kinds():
    frame = pandas.DataFrame({"a": [1], "b": ["x"]})
    frames = [frame, frame.astype({"a": float}), frame[["b", "a"]], frame.assign(c=1), frame, frame.astype("category")]
    assert predict_examples(frames, seen) == [seen(one)[0] for one in frames]


def test_a_batch_of_frames_is_one_call():
    sizes = []
    frames = [pandas.DataFrame({"a": [n], "b": ["x"]}) for n in range(5)]
    predict_examples(frames, lambda frame: sizes.append(len(frame)) or list(frame["a"]))
    predict_examples([{"a": n} for n in range(5)], lambda frame: sizes.append(len(frame)) or list(frame["a"]))
    numbers = typed((a, 0, "float") for a in (1, 1.5, None, 2, -3))
    predict_examples(numbers, lambda frame: sizes.append(len(frame)) or list(frame["a"]))
    assert sizes == [5, 5, 5]


def test_arrays_come_back_in_the_order_of_the_rows_and_surplus_predictions_stay():
    batch = pyarrow.record_batch({"a": [1, None, 3, None], "n": range(4)})
    found = predict_examples([batch], lambda frame: frame[["n", "n"]].to_numpy())
    assert isinstance(found, numpy.ndarray)
    assert found.tolist() == [[n, n] for n in range(4)]
    for answer in (lambda frame: numpy.zeros(len(frame) + 1), lambda frame: [0] * (len(frame) + 1)):
        assert len(predict_examples([batch], answer)) == 6


def test_bytes_of_many_are_estimated():
    one = {"a": 1, "b": "x" * 1000}
    assert bytes_of([one] * 1000) == 1000 * bytes_of([one])
    assert bytes_of([pandas.DataFrame([one])]) == bytes_of([one])
    assert bytes_of([]) == 0

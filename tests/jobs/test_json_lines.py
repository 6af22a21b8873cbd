"""Lines of JSON hold values of all kinds; their rows are those of Python's ``json``, however they are read."""

import datetime
import decimal
import json
from datetime import timedelta

import numpy as np
import pandas
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.jobs.files import Source
from headrace.jobs.json_lines import JsonEncodeError, as_line, read_json_blocks
from headrace.rows.blocks import Block, BrokenLine


class Modelled:  # as pydantic's objects are
    def model_dump(self):
        return {"text": "hello", "usage": {"tokens": 1}}


class OfTensorflow:  # as its tensors are: without ``tolist``
    def numpy(self):
        return np.array([[1.0, np.nan]])


class Strange:
    def __repr__(self):
        return "strange"


def through_json(value):
    line = as_line({"value": value})
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line)["value"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(Modelled(), {"text": "hello", "usage": {"tokens": 1}}, id="modelled"),
        (float("nan"), None),
        ([1.5, float("inf"), {"x": -float("inf")}], [1.5, None, {"x": None}]),
        (np.float64("nan"), None),
        (np.array([[1.0, np.nan], [2.0, 3.0]]), [[1.0, None], [2.0, 3.0]]),
        (np.array([1, 2]), [1, 2]),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.datetime64("2024-05-06"), "2024-05-06"),
        pytest.param(OfTensorflow(), [[1.0, None]], id="of TensorFlow"),
        (b"\x00\xff", "AP8="),
        ((1, (2,)), [1, [2]]),
        ({1, 1}, [1]),
        (datetime.datetime(2024, 5, 6, 7, tzinfo=datetime.timezone.utc), "2024-05-06T07:00:00+00:00"),
        (decimal.Decimal("1.10"), "1.10"),
        (Strange(), "strange"),
        (np.ndarray, "<class 'numpy.ndarray'>"),
        ({(1, 2): 3, None: 4, 5: np.nan}, {"(1, 2)": 3, "None": 4, "5": None}),
        ("line\nends and \u2028 and ü", "line\nends and \u2028 and ü"),
        ("lone \ud800 surrogate", "lone \ud800 surrogate"),
        (None, None),
    ],
    ids=repr,
)
def test_every_value_has_a_form_in_json(value, expected):
    assert through_json(value) == expected


@pytest.mark.large
def test_tensors_have_a_form_in_json():
    import torch

    assert through_json(torch.tensor([1, 2])) == [1, 2]
    assert through_json(torch.tensor(0.5, requires_grad=True)) == 0.5


def itself():
    """A dict that contains itself, twice."""
    value = {}
    value.update(y=value, z=[value])
    return value


class Raises:
    def tolist(self):
        raise RuntimeError("no list")


class RaisesAsText:
    def __str__(self):
        raise LookupError("no text")


class Endless:
    def tolist(self):
        return [Endless()]


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (itself(), "ValueError: it contains itself"),
        (Endless(), "ValueError: it contains itself"),
        (Raises(), "RuntimeError: no list"),
        ([float("nan"), Raises()], "RuntimeError: no list"),
        ({RaisesAsText(): 1}, "LookupError: no text"),
        (10**5000, "ValueError: Exceeds the limit"),
        ({None: np.nan, "None": 2}, "ValueError: two keys have the same text"),
    ],
    ids=["itself", "endless", "raises", "raises slowly", "raises as text", "digits", "keys"],
)
def test_what_cannot_be_written(value, cause):
    with pytest.raises(JsonEncodeError) as caught:
        as_line({"prediction": value})
    reason = caught.value.__cause__
    assert f"{type(reason).__name__}: {reason}".startswith(cause)


FINE = np.array(["2020-01-02T03:04:05.123456789", "2021-01-01", "NaT"], "datetime64[ns]")
TOOK = FINE - FINE[1]


@pytest.mark.parametrize(
    ("prediction", "text"),
    [
        (FINE[0], '"2020-01-02T03:04:05.123456789"'),
        (FINE[1], '"2021-01-01T00:00:00"'),
        (FINE[2], "null"),
        (FINE[0].astype("datetime64[us]"), '"2020-01-02T03:04:05.123456"'),
        (FINE[0].astype("datetime64[D]"), '"2020-01-02"'),
        (np.datetime64("20000-01-01", "s"), '"20000-01-01T00:00:00"'),
        (TOOK[0], '"-31524954876543211 nanoseconds"'),
        (TOOK[1], '"P0DT0H0M0S"'),
        (TOOK[2], "null"),
        (np.timedelta64(90, "m"), '"P0DT1H30M0S"'),
        (FINE, '["2020-01-02T03:04:05.123456789", "2021-01-01T00:00:00", null]'),
        (FINE[:2].reshape(2, 1), '[["2020-01-02T03:04:05.123456789"], ["2021-01-01T00:00:00"]]'),
        (np.array(FINE[1]), '"2021-01-01T00:00:00"'),
        (pandas.Series(FINE), '["2020-01-02T03:04:05.123456789", "2021-01-01T00:00:00", null]'),
        (pandas.Series(FINE[1:2]).dt.tz_localize("UTC"), '["2021-01-01T00:00:00+00:00"]'),
        (pandas.Timedelta(TOOK[0]), '"-365 days +03:04:05.123456789"'),
        (pandas.NaT, "null"),
        (timedelta(1, 7384, 5), '"P1DT2H3M4.000005S"'),
        (timedelta(microseconds=-1), '"-P0DT0H0M0.000001S"'),
        (timedelta.min, '"-P999999999DT0H0M0S"'),
        ({"at": FINE[1], "took": [TOOK[1]]}, '{"at": "2021-01-01T00:00:00", "took": ["P0DT0H0M0S"]}'),
    ],
    ids=repr,
)
def test_times_of_numpy_and_pandas_are_iso_text(prediction, text):
    assert as_line({"prediction": prediction}).decode() == f'{{"prediction": {text}}}\n'


NAMES = st.sampled_from(["a", "b", "é", 'quoted "', ""])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)


@pytest.fixture
def source(tmp_path):
    """Writes lines into a file."""

    def write(lines):
        (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return Source(str(tmp_path / "in.jsonl"), "jsonl")

    return write


def rows(piece):
    return Block(0, 0, batch=piece).rows() if isinstance(piece, pyarrow.RecordBatch) else piece


def read(source):
    return [row for piece in read_json_blocks(source) for row in rows(piece)]


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=6), st.integers(1, 40))
def test_rows_are_those_of_json(source, objects, times):
    lines = [json.dumps(one, ensure_ascii=n % 2 == 0) for n, one in enumerate(objects * times)]
    found = read(source(lines))
    assert list(map(repr, found)) == list(map(repr, map(json.loads, lines)))


@pytest.mark.parametrize(
    "odd",
    [
        '{"a": 1.0}',
        '{"a": 10000000000000000000}',
        '{"a": "x"}',
        '{"a": 1, "a": 1}',
        '{"b": 1}',
        "{}",
        '{"a": 01}',
        '{"a": NaN}',
        '{"a": "\\ud800"}',
        "[1]",
        "",
    ],
)
def test_an_odd_line_is_read_by_itself(source, odd):
    lines = ['{"a": 1}'] * 200 + [odd] + ['{"a": 2}'] * 200
    pieces = list(read_json_blocks(source(lines)))
    assert [type(piece) for piece in pieces] == [pyarrow.RecordBatch, list, pyarrow.RecordBatch]
    assert [rows(piece) for piece in pieces[::2]] == [[{"a": 1}] * 200, [{"a": 2}] * 200]
    assert all(isinstance(row, BrokenLine) or repr(row) == repr(json.loads(odd)) for row in pieces[1])
    assert [row.number for row in pieces[1] if isinstance(row, BrokenLine)] in ([], [201])

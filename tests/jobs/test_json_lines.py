"""Values of all kinds become lines of JSON; nothing is lost, and what has no form says so."""

import datetime
import decimal
import json

import numpy as np
import pytest

from headrace.jobs.json_lines import JsonEncodeError, as_line


class Modelled:
    """As pydantic's objects are."""

    def model_dump(self):
        return {"text": "hello", "usage": {"tokens": 1}}


class OfTensorflow:
    """As its tensors are: without ``tolist``."""

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


def test_text_stays_readable():
    assert as_line({"ä": "ö"}) == '{"ä": "ö"}\n'.encode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({1: "a", "1": "b"}, {"1_": "a", "1": "b"}),
        ({"1": "b", "1_": "c", 1: "a"}, {"1": "b", "1_": "c", "1__": "a"}),
        ({True: 1, "true": 2, 1.5: 3, "1.5": 4}, {"true_": 1, "true": 2, "1.5_": 3, "1.5": 4}),
        ({None: 1, "null": 2}, {"None": 1, "null": 2}),
        ({(1, 2): np.nan, "(1, 2)": 3}, {"(1, 2)_": None, "(1, 2)": 3}),
        ({float("nan"): 1, float("nan"): 2, "nan": 3}, {"nan_": 1, "nan__": 2, "nan": 3}),
        ({None: np.nan, "None": 2}, {"None_": None, "None": 2}),
        ([{"x": ({"y": {2: 1, "2": 2}},)}], [{"x": [{"y": {"2_": 1, "2": 2}}]}]),
        (np.array([{1: 1, "1": 2}, 5], object), [{"1_": 1, "1": 2}, 5]),
        ({None: 1, 5: 2, 1.5: 3, "a": 4}, {"null": 1, "5": 2, "1.5": 3, "a": 4}),
    ],
    ids=repr,
)
def test_keys_of_one_text_stay_apart(value, expected):
    assert through_json(value) == expected
    assert json.loads(as_line({"a": 1, "prediction": value})) == {"a": 1, "prediction": expected}


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
    ],
    ids=["itself", "endless", "raises", "raises slowly", "raises as text", "digits"],
)
def test_what_cannot_be_written(value, cause):
    with pytest.raises(JsonEncodeError) as caught:
        as_line({"prediction": value})
    reason = caught.value.__cause__
    assert f"{type(reason).__name__}: {reason}".startswith(cause)

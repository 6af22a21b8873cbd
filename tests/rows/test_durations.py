"""Lengths of time as text."""

from datetime import timedelta

import numpy
import pandas
import pytest

from headrace.jobs.json_lines import as_line
from headrace.rows.durations import duration_text


@pytest.mark.parametrize(
    ("value", "nanoseconds", "text"),
    [
        (timedelta(0), 0, "P0DT0H0M0S"),
        (timedelta(1, 7384), 0, "P1DT2H3M4S"),
        (timedelta(microseconds=5), 0, "P0DT0H0M0.000005S"),
        (timedelta(microseconds=5), 60, "P0DT0H0M0.000005060S"),
        (timedelta(microseconds=-1), 0, "-P0DT0H0M0.000001S"),
        (timedelta(microseconds=-1), 999, "-P0DT0H0M0.000000001S"),
        (timedelta.max, 0, "P999999999DT23H59M59.999999S"),
        (timedelta.min, 0, "-P999999999DT0H0M0S"),
    ],
)
def test_every_digit_is_there(value, nanoseconds, text):
    assert duration_text(value, nanoseconds) == text


def test_output_has_them():
    assert as_line({"took": timedelta(seconds=1.5)}) == b'{"took": "P0DT0H0M1.500000S"}\n'


FINE = numpy.array(["2020-01-02T03:04:05.123456789", "2021-01-01", "NaT"], "datetime64[ns]")
TOOK = FINE - FINE[1]


@pytest.mark.parametrize(
    ("prediction", "text"),
    [
        (FINE[0], '"2020-01-02T03:04:05.123456789"'),
        (FINE[1], '"2021-01-01T00:00:00"'),
        (FINE[2], "null"),
        (FINE[0].astype("datetime64[us]"), '"2020-01-02T03:04:05.123456"'),
        (FINE[0].astype("datetime64[D]"), '"2020-01-02"'),
        (numpy.datetime64("20000-01-01", "s"), '"20000-01-01T00:00:00"'),
        (TOOK[0], '"-P364DT20H55M54.876543211S"'),
        (TOOK[1], '"P0DT0H0M0S"'),
        (TOOK[2], "null"),
        (numpy.timedelta64(90, "m"), '"P0DT1H30M0S"'),
        (FINE, '["2020-01-02T03:04:05.123456789", "2021-01-01T00:00:00", null]'),
        (FINE[:2].reshape(2, 1), '[["2020-01-02T03:04:05.123456789"], ["2021-01-01T00:00:00"]]'),
        (numpy.array(FINE[1]), '"2021-01-01T00:00:00"'),
        (pandas.Series(FINE), '["2020-01-02T03:04:05.123456789", "2021-01-01T00:00:00", null]'),
        (pandas.Series(FINE[1:2]).dt.tz_localize("UTC"), '["2021-01-01T00:00:00+00:00"]'),
        (pandas.Timedelta(TOOK[0]), '"-P364DT20H55M54.876543211S"'),
        (pandas.NaT, "null"),
        ({"at": FINE[1], "took": [TOOK[1]]}, '{"at": "2021-01-01T00:00:00", "took": ["P0DT0H0M0S"]}'),
    ],
    ids=repr,
)
def test_times_of_numpy_and_pandas_are_iso_text(prediction, text):
    assert as_line({"prediction": prediction}).decode() == f'{{"prediction": {text}}}\n'

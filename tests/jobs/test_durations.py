"""Lengths of time as text."""

from datetime import timedelta

import pytest

from headrace.jobs.durations import duration_text
from headrace.jobs.json_lines import as_line


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

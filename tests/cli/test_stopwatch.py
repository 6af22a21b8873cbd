"""Seconds count from the start of the process, as far as that can be known."""

import subprocess
import sys
import time

import pytest

from headrace.cli import stopwatch
from headrace.cli.stopwatch import Seconds, process_start

LATE = """
import time
began = time.monotonic()
from headrace.cli.stopwatch import process_start
print(began - process_start(), time.process_time())
"""


def test_phases_add_up():
    seconds = Seconds(2.0, 1.0, 3.5, 0.5)
    assert seconds.total == 7.0
    assert seconds.text() == "2.00 start and imports, 1.00 loading, 3.50 rows, 0.50 writing"


def test_a_process_starts_before_its_first_import():
    done = subprocess.run([sys.executable, "-c", LATE], check=True, capture_output=True, text=True)
    before, used = map(float, done.stdout.split())
    assert before > 0
    assert used < before + 60


@pytest.mark.parametrize("age", [None, -5.0, 1e9])
def test_cpu_time_stands_for_a_start_that_cannot_be(monkeypatch, age):
    """As of a shell that has waited for hours and then became this process."""
    monkeypatch.setattr(stopwatch, "_age", lambda: age)
    monkeypatch.setattr(stopwatch, "_CPU_BEFORE", 3.0)
    assert process_start() == stopwatch._IMPORTED - 3.0


def test_a_plausible_start_is_believed(monkeypatch):
    monkeypatch.setattr(stopwatch, "_CPU_BEFORE", 3.0)
    monkeypatch.setattr(stopwatch, "_age", lambda: time.monotonic() - stopwatch._IMPORTED + 5.0)
    assert process_start() == pytest.approx(stopwatch._IMPORTED - 5.0, abs=0.5)

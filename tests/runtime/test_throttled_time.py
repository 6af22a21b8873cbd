"""For how long an endpoint was throttled."""

from __future__ import annotations

from headrace.runtime.throttled_time import ThrottledTime


def test_throttled_times_are_added_up():
    time = ThrottledTime()
    for now, is_throttled in ((1.0, True), (2.0, True), (3.0, False), (9.0, False), (10.0, True)):
        time.note(now, is_throttled=is_throttled)
    assert time.secs(10.5) == 2.5


def test_throttled_time_is_zero_at_first():
    assert ThrottledTime().secs(5.0) == 0

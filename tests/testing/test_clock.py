"""The fake clock stands still until a test advances it."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import BatchingConfig
from headrace.testing import FakeClock


def test_clock_moves_only_when_advanced():
    clock = FakeClock()
    start = clock.time_ns()
    assert clock.time_ns() == start
    clock.advance(1.5)
    assert clock.time_ns() - start == 1_500_000_000


def test_every_clock_starts_at_the_same_moment():
    assert FakeClock().time_ns() == FakeClock().time_ns() > 0


def test_seconds_and_nanoseconds_agree():
    clock = FakeClock()
    clock.advance(2)
    assert clock.seconds() == clock.time_ns() / 1e9


def test_seconds_serve_as_the_clock_of_batching():
    clock = FakeClock()
    config = BatchingConfig(clock=clock.seconds)
    before = config.clock()
    clock.advance(3)
    assert config.clock() - before == 3


def test_clock_does_not_run_backwards():
    with pytest.raises(ValueError, match=r"advance\(-1\)"):
        FakeClock().advance(-1)


def test_advances_from_several_threads_add_up():
    clock = FakeClock()
    start = clock.time_ns()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: clock.advance(0.001), range(400)))
    assert clock.time_ns() - start == 400_000_000


def test_a_pickled_copy_goes_on_by_itself():
    clock = FakeClock()
    clock.advance(5)
    copied = pickle.loads(pickle.dumps(clock))
    assert copied.time_ns() == clock.time_ns()
    copied.advance(1)
    assert copied.time_ns() - clock.time_ns() == 1_000_000_000

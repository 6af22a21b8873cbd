"""A load that fails, hangs or kills its host is repeated rarely, and meanwhile fails every batch at once."""

from __future__ import annotations

import pytest

from headrace.core.errors import HostDiedError
from headrace.failures.breaker import LoadPolicy, survive_one_death
from headrace.hosts.provider import DeviceLostInHostError, HostFailure, load_error
from headrace.testing import FakeClock

ERROR, ANOTHER = RuntimeError("one"), RuntimeError("another")


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def record(clock):
    return LoadPolicy(clock.time_ns)


def test_one_death_is_forgiven_and_two_are_not(record):
    assert record.failed(ERROR, 1.0, timed_out=False)
    assert record.current_error() is None
    assert not record.failed(ANOTHER, 1.0, timed_out=False)
    assert repr(record.current_error()) == repr(ANOTHER)


def test_a_timeout_is_not_forgiven(record):
    assert not record.failed(ERROR, 1.0, timed_out=True)
    assert repr(record.current_error()) == repr(ERROR)


@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_the_error_is_kept_for_ten_times_the_last_attempt(record, clock, seconds):
    record.failed(ERROR, seconds, timed_out=True)
    clock.advance(10 * seconds - 0.001)
    assert repr(record.current_error()) == repr(ERROR)
    clock.advance(0.002)
    assert record.current_error() is None


def test_a_death_is_forgiven_again_after_the_backoff(record, clock):
    record.failed(ERROR, 1.0, timed_out=True)
    clock.advance(11)
    assert record.failed(ERROR, 1.0, timed_out=False)
    assert not record.failed(ANOTHER, 2.0, timed_out=False)
    clock.advance(19)
    assert repr(record.current_error()) == repr(ANOTHER)


def test_a_success_clears_all_failures(record):
    record.failed(ERROR, 1.0, timed_out=False)
    record.loaded()
    assert record.failed(ERROR, 1.0, timed_out=False)
    record.failed(ERROR, 1.0, timed_out=False)
    record.loaded()
    assert record.current_error() is None


def test_a_load_that_keeps_raising_is_tried_ever_more_rarely(record, clock):
    pauses = []
    for _ in range(12):
        record.raised(ERROR, 0.01)
        begun = clock.time_ns()
        while repr(record.current_error()) == repr(ERROR):
            clock.advance(0.5)
        pauses.append((clock.time_ns() - begun) / 1e9)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    record.loaded()
    record.raised(ERROR, 0.5)
    clock.advance(4.9)
    assert repr(record.current_error()) == repr(ERROR)
    clock.advance(0.2)
    assert record.current_error() is None


@pytest.mark.parametrize(("results", "outcome"), [("g", "g"), ("dg", "g"), ("dd", "d"), ("ddg", "d"), ("gd", "g")])
def test_an_attempt_survives_one_death(results, outcome):
    assert survive_one_death(iter(results).__next__, lambda result: result == "d") == outcome


def lost(timed_out=False, **options):
    return HostFailure(None, timed_out, "was killed by SIGKILL", **options)


@pytest.mark.parametrize(
    ("loss", "kind", "text"),
    [
        (lost(), HostDiedError, "the host was killed by SIGKILL while it was loading the model of M."),
        (lost(timed_out=True), TimeoutError, "loading the model of M took longer than 5 s."),
        (lost(device_lost=True), DeviceLostInHostError, "the host was killed by SIGKILL while it was loading"),
    ],
)
def test_a_load_error_says_how_the_host_was_lost(loss, kind, text):
    error = load_error(loss, "M", 5)
    assert type(error) is kind
    assert str(error).startswith(text)

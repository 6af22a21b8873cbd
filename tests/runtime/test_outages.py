"""Endpoints that fail, under a clock of their own: outages lose nothing, and bad requests cost only themselves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.core.errors import EndpointError
from virtual_requests import EACH, LATENCY, Failed, Scene
from virtual_time import Loop

_BEGINS, _ENDS = 4.0, 34.0
"""Of an outage."""


def status(*codes):
    """Errors in turn."""
    return lambda before: Failed(codes[before % len(codes)])


def cut(before):
    return ConnectionResetError()


def during_outage(error, begins=_BEGINS, poison=()):
    """Everything fails for half a minute; what is poison always does."""
    return lambda element, now, before: error(before) if begins <= now < _ENDS or element in poison else None


@pytest.mark.parametrize(
    "error", [status(500), status(502), cut, status(500, 503, 502), status(500, 429), status(500, 500, 500, 429)]
)
def test_outage_loses_nothing_is_hardly_probed_and_is_soon_over(error):
    found = Scene(during_outage(error), num_retries=1).play(2000)
    assert not found.failed
    probes = found.times(_BEGINS + 2, _ENDS)
    assert 20 <= len(probes) <= 29
    assert min(later - earlier for earlier, later in pairwise(probes)) >= 1
    assert len(found.times(_ENDS, _ENDS + 2)) > 100
    assert found.secs < 45


def test_outage_is_over_although_probes_are_poison():
    poison = set(range(100, 300, 2))
    found = Scene(during_outage(status(500), poison=poison), patience=600.0).play(1000)
    assert set(found.failed) == poison
    assert len(found.times(_ENDS, _ENDS + 5)) > 100


def test_outage_longer_than_the_patience_costs_what_waited_for_so_long():
    found = Scene(during_outage(status(500)), patience=10.0).play(2000)
    assert all(_BEGINS - 1 < element * EACH < _ENDS for element in found.failed)
    assert all(found.ended[element][0] - element * EACH < 25 for element in found.failed)
    assert len(found.failed) < 1200


@pytest.mark.parametrize("every", [100, 10, 3])
def test_requests_that_are_bad_themselves_hold_up_nobody(every):
    found = Scene(lambda element, now, before: Failed(500) if element % every == 1 else None).play(1000)
    assert set(found.failed) == {element for element in range(1000) if element % every == 1}
    assert all(when - element * EACH < 1 for element, (when, _) in found.ended.items() if element % every != 1)
    assert max(found.failed.values()) in (5, 6)  # fewer once the tokens are spent


def test_requests_that_are_answered_when_they_are_repeated_are_repeated_however_many_they_are():
    left = set(range(1, 2000, 3))

    def error(element, now, before):
        if element in left:
            left.remove(element)
            return Failed(500)
        return None

    assert Scene(error).play(2000).failed == {}


@pytest.mark.parametrize(("count", "secs"), [(300, 60), (1000, 400)])
def test_bad_requests_that_follow_each_other_cost_no_others(count, secs):
    bad = set(range(2000, 2000 + count))
    found = Scene(lambda element, now, before: Failed(500) if element in bad else None).play_bundle(2500 + count)
    assert set(found.failed) == bad
    assert found.secs < secs


@pytest.mark.parametrize("code", [401, 500])
def test_requests_go_one_at_a_time_until_one_is_answered_although_others_have_many_in_flight(code):
    found = Scene(lambda element, now, before: Failed(code) if before < 4 else None, limit=100).play_bundle(50)
    times = [when for when, _ in found.sent]
    assert all(after - before > 0.9 * LATENCY for before, after in pairwise(times[:5]))
    assert times[-1] < 2


class Timer:
    """As uvloop's, of a class of its own."""

    def __init__(self, timer):
        self.cancel, self.when = timer.cancel, timer.when


@pytest.mark.parametrize("kind", [Timer, lambda timer: timer], ids=["uvloop's", "asyncio's"])
def test_others_wait_while_the_first_request_pauses_whatever_the_loops_timers_are(kind, monkeypatch):
    call_later = Loop.call_later
    monkeypatch.setattr(Loop, "call_later", lambda self, *args: kind(call_later(self, *args)))
    found = Scene(lambda element, now, before: Failed(503) if before < 4 else None).play_bundle(10)
    assert [element for _, element in found.sent[:5]] == [0] * 5


def test_endpoint_that_never_works_is_not_asked_for_ever():
    found = Scene(lambda element, now, before: Failed(500)).play_bundle(3000)
    assert len(found.failed) == 3000
    assert found.secs < 900


def test_outage_much_longer_than_the_patience_costs_little_more_than_what_waits():
    found = Scene(lambda element, now, before: Failed(500) if 0.5 <= now < 300 else None).play_bundle(3000)
    assert len(found.failed) < 1000
    assert found.secs < 330


def test_request_that_may_not_be_repeated_is_not_repeated_in_an_outage():
    found = Scene(during_outage(status(500)), num_retries=0).play(2000)
    assert set(found.failed.values()) == {1}
    assert len(found.failed) < 50
    assert len(found.sent) == 2000


def test_outage_leaves_all_but_the_probes_to_a_fallback():
    found = Scene(during_outage(status(500)), has_fallback=True).play(1000)
    assert len(found.times(_BEGINS + 2, _ENDS)) <= 15
    waited = [when - element * EACH for element, (when, _) in found.ended.items() if element in found.failed]
    assert max(waited) < 3
    assert len(found.failed) > 700


def test_host_that_goes_away_fails_what_waited_for_too_long():
    away = lambda element, now, before: ConnectionRefusedError("gone") if now >= 1 else None  # noqa: E731
    found = Scene(away, patience=10.0).play(100)
    errors = {type(call.error) for element, (_, call) in found.ended.items() if element in found.failed}
    assert errors == {ConnectionRefusedError}
    assert 1 < len({id(found.ended[element][1].error) for element in found.failed}) == len(found.failed) < 100


@pytest.mark.parametrize("error", [OSError("the client has failed"), Failed(500)], ids=["no status", "as LiteLLM's"])
def test_host_that_was_never_there_is_known_from_the_error_that_the_clients_own_was_raised_after(error):
    def refuse(element, now, before):
        error.__context__ = ConnectionRefusedError("gone")
        return error

    found = Scene(refuse, patience=10.0).play(5)
    assert {type(call.error) for _, call in found.ended.values()} == {EndpointError}


def test_log_says_once_that_an_endpoint_is_down_and_once_that_it_answers_again(caplog):
    Scene(during_outage(status(503))).play(2000)
    assert caplog.messages == [
        "H.request: the endpoint is down (virtual_requests.Failed: status 503). Requests wait until it answers.",
        "H.request: the endpoint answers again.",
    ]


def test_endpoint_that_asks_all_to_wait_is_waited_for_and_the_log_says_so(caplog):
    """For longer than the patience: who has asked to wait fails nothing meanwhile, sent or not."""
    asks = lambda element, now, before: Failed(429, 200) if 1 <= now < 190 else None  # noqa: E731
    found = Scene(asks).play(300)
    assert not found.failed
    assert 200 < found.secs < 250
    (said,) = caplog.messages
    why = "virtual_requests.Failed: status 429"
    assert said == f"H.request: the endpoint asks to wait for 200 s ({why}); such requests wait."


@pytest.mark.parametrize("delay", [99_999_999, 10**400])
def test_request_that_is_asked_to_wait_for_too_long_is_given_up_alone(delay, caplog):
    found = Scene(lambda element, now, before: Failed(429, delay) if element == 5 else None).play(100)
    assert found.failed == {5: 1}
    assert found.secs < 10
    assert "such requests are given up: RetryConfig(max_retry_after_secs=300) is less" in caplog.text


def test_longest_wait_that_an_endpoint_may_ask_for_is_an_option():
    asks = lambda element, now, before: Failed(429, 400) if not before else None  # noqa: E731
    assert Scene(asks, max_retry_after_secs=300.0).play(3).failed == {0: 1}
    assert not Scene(asks, max_retry_after_secs=400.0).play(3).failed


def test_endpoint_that_asks_all_to_wait_for_too_long_fails_them_soon():
    found = Scene(lambda element, now, before: Failed(429, 99_999_999)).play(300)
    assert len(found.failed) == 300
    assert found.secs < 60

"""Every element is answered once and in order, however calls fail; and the attempts are bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import HostDiedError, PredictionCountError, RetryConfig
from headrace.core.result import Caught
from headrace.failures.breaker import TIMEOUTS, CircuitBreaker
from headrace.failures.recovery import Action, PartResult, RecoveryPolicy, recover
from headrace.failures.retry import RetryBudget
from headrace.failures.search import NOTHING_KNOWN, FailureSearch, probe
from headrace.testing import FakeClock


class Model:
    """Answers a call with its elements' places.

    Args:
        bad: places whose calls fail for good.
        ceiling: how many elements a call may have for the memory.
        passing: in which calls, counted from 0, the connection is lost.
    """

    def __init__(self, bad=(), ceiling=10**9, passing=()):
        self.bad, self._ceiling, self._passing = set(bad), ceiling, set(passing)
        self.calls = []

    def __call__(self, start, stop):
        self.calls.append((start, stop))
        if len(self.calls) - 1 in self._passing:
            return Caught.of(ConnectionResetError())
        if stop - start > self._ceiling:
            return Caught.of(MemoryError())
        return Caught.of(ValueError()) if self.bad & set(range(start, stop)) else list(range(start, stop))


def policy(clock=None, *, caught=Exception, attempts=3, timeout_secs=45.0, breaker=None, billed=False):
    clock = clock or FakeClock()
    budget = RetryBudget(RetryConfig(attempts, timeout_secs), clock.time_ns, clock.sleep, lambda: 0.5)
    return RecoveryPolicy(caught, budget, breaker or CircuitBreaker(), billed=billed, free=lambda: None)


def answers(size, model, chosen=None):
    """Positions with a prediction, positions without, and all parts."""
    first = model(0, size)
    parts = [PartResult(0, size, first, 1)]
    if isinstance(first, Caught):
        chosen = chosen or policy()
        parts = [part for found in recover(size, first, model, chosen.choose, chosen.probes) for part in found]
    good = [place for part in parts if not isinstance(part.answer, Caught) for place in part.answer]
    bad = [place for part in parts if isinstance(part.answer, Caught) for place in range(part.start, part.stop)]
    return good, bad, parts


BATCHES = st.integers(1, 60).flatmap(
    lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)), st.integers(1, 60))
)


@given(BATCHES)
def test_no_good_element_is_lost(case):
    size, bad, ceiling = case
    good, failed, parts = answers(size, Model(bad, ceiling))
    assert (good, failed) == (sorted(set(range(size)) - bad), sorted(bad))
    assert [place for part in parts for place in range(part.start, part.stop)] == list(range(size))


@given(BATCHES, st.integers(0, 60), st.booleans())
def test_a_wrong_count_fails_its_whole_call_and_is_never_repeated(case, passes_below, retryable):
    size, bad, ceiling = case

    class Wrong(Model):
        def __call__(self, start, stop):
            answer = super().__call__(start, stop)
            is_wrong = not isinstance(answer, Caught) and stop - start > passes_below
            return Caught.of(PredictionCountError("wrong")) if is_wrong else answer

    model = Wrong(bad, ceiling)
    clock = FakeClock()
    budget = RetryBudget(RetryConfig(3, retryable=lambda error: retryable), clock.time_ns, clock.sleep, lambda: 0.5)
    chosen = RecoveryPolicy(Exception, budget, CircuitBreaker(), free=lambda: None)
    _, _, parts = answers(size, model, chosen)
    assert [place for part in parts for place in range(part.start, part.stop)] == list(range(size))
    wrong = [
        (one.start, one.stop) for one in parts if isinstance(getattr(one.answer, "error", None), PredictionCountError)
    ]
    assert all(model.calls.count(call) == 1 for call in wrong)
    inner = [
        (a, b) for a, b in model.calls for start, stop in wrong if start <= a < b <= stop and (a, b) != (start, stop)
    ]
    assert inner == []


def test_a_wrong_count_that_is_not_caught_is_raised():
    with pytest.raises(PredictionCountError):
        answers(2, lambda start, stop: Caught.of(PredictionCountError("wrong")), policy(caught=KeyError))


@given(BATCHES, st.sets(st.integers(0, 200)))
def test_every_element_has_one_answer_and_transient_errors_cost_no_good_one_unless_tries_run_out(case, passing):
    size, bad, ceiling = case
    model = Model(bad, ceiling, passing)
    good, failed, _ = answers(size, model, policy(attempts=500, timeout_secs=1e9))
    assert (good, failed) == (sorted(set(range(size)) - bad), sorted(bad))


@given(BATCHES, st.sets(st.integers(0, 20)))
def test_tries_are_the_calls_that_an_element_was_in(case, passing):
    size, bad, ceiling = case
    model = Model(bad, ceiling, passing)
    for part in answers(size, model)[2]:
        assert sum(start <= part.start < stop for start, stop in model.calls) == part.tries


def test_one_bad_element_in_1024_costs_twenty_calls_more():
    model = Model(bad=[700])
    answers(1024, model)
    assert len(model.calls) == 1 + 2 * 10


def test_the_size_that_fits_memory_is_learnt_once_per_batch():
    model = Model(ceiling=5)
    answers(32, model)
    assert model.calls == [(0, 32), (0, 16), (0, 8), *[(n, n + 4) for n in range(0, 32, 4)]]


def test_transient_errors_within_a_search_are_retried_too():
    model = Model(bad=[0], passing=[3])  # the batch, its first half, the bad element, its neighbour
    assert answers(4, model)[:2] == ([1, 2, 3], [0])
    assert model.calls == [(0, 4), (0, 2), (0, 1), (1, 2), (1, 2), (2, 4)]


def test_an_outage_ends_at_the_limit_of_tries():
    model = Model(passing=range(1000))
    assert answers(1, model)[1] == [0]
    assert len(model.calls) == 3


def test_an_outage_ends_at_the_time_limit():
    clock, model = FakeClock(), Model(passing=range(10_000))
    before = clock.seconds()
    answers(64, model, policy(clock, attempts=1000, timeout_secs=30))
    assert clock.seconds() - before <= 30


def test_uncaught_errors_are_raised_as_soon_as_nothing_helps():
    model = Model(bad=[3], ceiling=4)
    with pytest.raises(ValueError, match=r"^$"):
        answers(8, model, policy(caught=()))
    assert model.calls == [(0, 8), (0, 4)]
    with pytest.raises(ConnectionResetError):
        answers(8, Model(passing=range(9)), policy(caught=()))
    assert answers(8, Model(passing=[0], ceiling=2), policy(caught=()))[0] == list(range(8))


def test_uncaught_errors_end_a_search_too():
    model = Model(bad=[0], passing=range(1, 9))
    with pytest.raises(ConnectionResetError):
        answers(4, model, policy(caught=ValueError))


def test_billed_calls_are_never_repeated():
    for model in (Model(bad=[1]), Model(ceiling=2), Model(passing=[0])):
        assert answers(4, model, policy(billed=True))[1] == [0, 1, 2, 3]
        assert model.calls == [(0, 4)]


def open_breaker():
    breaker = CircuitBreaker(1)
    breaker.record(succeeded=False)
    return breaker


@pytest.mark.parametrize(
    ("model", "calls"),
    [
        (Model(bad=[0]), [(0, 4), (0, 1), (1, 2), (2, 4)]),
        (Model(bad=[0, 3]), [(0, 4), (0, 1), (1, 2), (2, 4), (2, 3), (3, 4)]),
        (Model(ceiling=2), [(0, 4), (0, 1), (1, 4), (1, 2), (2, 4)]),
        (Model(passing=[0]), [(0, 4), (0, 4)]),
        (Model(bad=[0], passing=[2]), [(0, 4), (0, 1), (1, 2), (1, 2), (2, 4)]),
        (Model(bad=range(4)), [(0, 4), (0, 1), (1, 2), (2, 3), (3, 4)]),
    ],
)
def test_probes_go_on_until_one_succeeds_while_everything_fails(model, calls):
    good, failed, parts = answers(4, model, policy(breaker=open_breaker()))
    assert (good, failed) == (sorted(set(range(4)) - model.bad), sorted(model.bad))
    assert model.calls == calls
    assert [place for part in parts for place in range(part.start, part.stop)] == list(range(4))


@pytest.mark.parametrize(
    ("error", "at_first", "later"),
    [(ValueError(), 1000, 3), (HostDiedError(), 32, 3), (ConnectionError(), 32, 1), (TimeoutError(), 3, 1)],
    ids=repr,
)
def test_probes_are_fewer_the_more_they_cost(error, at_first, later):
    chosen = policy(breaker=open_breaker())
    assert [len(chosen.probes(at_first, error)) for _ in range(2)] == [at_first, later]


def test_the_rest_is_given_up_with_the_error_of_the_batch_if_all_probes_fail():
    breaker = open_breaker()
    breaker.probes(TIMEOUTS.at_first, TIMEOUTS)
    batch, one = Caught.of(TimeoutError("all")), Caught.of(TimeoutError("one"))
    chosen, calls = policy(breaker=breaker), []

    def attempt(start, stop):
        calls.append((start, stop))
        return one if stop - start == 1 else batch

    [parts] = recover(100, batch, attempt, chosen.choose, chosen.probes)
    again, (place, end), twice = calls
    assert (again, twice) == ((0, 100), (place, end))
    assert end == place + 1
    assert parts == [PartResult(0, place, batch, 2), PartResult(place, end, one, 4), PartResult(end, 100, batch, 2)]


@given(BATCHES, st.sets(st.integers(0, 59)))
def test_one_good_element_among_the_probes_saves_all_others(case, places):
    size, bad, ceiling = case
    model, places = Model(bad, ceiling), sorted(place for place in places if place < size)
    search = FailureSearch(model, lambda _: False, NOTHING_KNOWN)
    parts = list(probe(0, size, places, model, Caught.of(ValueError()), search=search.among))
    assert [place for start, stop, _ in parts for place in range(start, stop)] == list(range(size))
    good = [place for _, _, answer in parts if not isinstance(answer, Caught) for place in answer]
    assert good == ([] if set(places) <= bad else sorted(set(range(size)) - bad))
    if set(places) <= bad:
        assert model.calls == [(place, place + 1) for place in places]


def test_parts_that_fit_memory_are_found_without_catching_even_while_everything_fails():
    breaker = CircuitBreaker(1)
    breaker.record(succeeded=False)
    assert answers(4, Model(ceiling=1), policy(caught=(), breaker=breaker))[0] == [0, 1, 2, 3]


def test_a_single_element_that_exceeds_memory_fails():
    assert answers(1, Model(ceiling=0))[1] == [0]
    assert policy().choose(0, 1, MemoryError(), 1) is Action.SEARCH


@pytest.mark.parametrize(("attempts", "saved"), [(1, []), (2, [0])])
def test_transient_errors_are_retried_once_without_a_pause_while_everything_fails(attempts, saved):
    clock = FakeClock()
    before = clock.seconds()
    chosen = policy(clock, attempts=attempts, breaker=open_breaker())
    assert answers(1, Model(passing=[0]), chosen)[0] == saved
    assert clock.seconds() == before

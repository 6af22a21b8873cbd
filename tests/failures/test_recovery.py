"""Every element is answered once, however calls fail; and the attempts are bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import HostDiedError, PredictionCountError, RetryConfig
from headrace.core.result import Caught
from headrace.failures.breaker import TIMEOUTS, CircuitBreaker
from headrace.failures.recovery import HOST_TIMED_OUT, Recovery
from headrace.failures.retry import RetryBudget
from headrace.testing import FakeClock
from toys import with_attributes


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

    def __call__(self, positions):
        self.calls.append((positions[0], positions[-1] + 1))
        if len(self.calls) - 1 in self._passing:
            return Caught.of(ConnectionResetError())
        if len(positions) > self._ceiling:
            return Caught.of(MemoryError())
        return Caught.of(ValueError()) if self.bad & set(positions) else list(positions)


def recovery(model, clock=None, *, attempts=3, timeout_secs=45.0, breaker=None, retryable=None, **options):
    clock = clock or FakeClock()
    config = RetryConfig(attempts, timeout_secs, retryable=retryable)
    budget = RetryBudget(config, clock.time_ns, clock.sleep, lambda: 0.5)
    options = {"caught": Exception, "free": lambda: None, **options}
    return Recovery(model, budget, breaker or CircuitBreaker(), **options)


def answers(size, model, *given, **options):
    """Positions with a prediction, positions without, and all parts; none is lost or doubled."""
    first = model(range(size))
    if not isinstance(first, Caught):
        return first, [], []
    parts = list(recovery(model, *given, **options).results(size, first))
    assert sorted(place for part in parts for place in part.positions) == list(range(size))
    good = [place for part in parts if not isinstance(part.answer, Caught) for place in part.answer]
    bad = [place for part in parts if isinstance(part.answer, Caught) for place in part.positions]
    return sorted(good), sorted(bad), parts


BATCHES = st.integers(1, 60).flatmap(
    lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)), st.integers(1, 60))
)


@given(BATCHES, st.integers(0, 60), st.booleans())
def test_a_wrong_count_fails_its_whole_call_and_is_never_repeated(case, passes_below, retryable):
    size, bad, ceiling = case

    class Wrong(Model):
        def __call__(self, positions):
            answer = super().__call__(positions)
            is_wrong = not isinstance(answer, Caught) and len(positions) > passes_below
            return Caught.of(PredictionCountError("wrong")) if is_wrong else answer

    model = Wrong(bad, ceiling)
    _, _, parts = answers(size, model, retryable=lambda error: retryable)
    errors = [(one.positions, getattr(one.answer, "error", None)) for one in parts]
    wrong = [(places[0], places[-1] + 1) for places, error in errors if isinstance(error, PredictionCountError)]
    assert all(model.calls.count(call) == 1 for call in wrong)
    inner = [
        (a, b) for a, b in model.calls for start, stop in wrong if start <= a < b <= stop and (a, b) != (start, stop)
    ]
    assert inner == []


def test_a_wrong_count_that_is_not_caught_is_raised():
    with pytest.raises(PredictionCountError):
        answers(2, lambda positions: Caught.of(PredictionCountError("wrong")), caught=KeyError)


@given(BATCHES, st.sets(st.integers(0, 200)))
def test_every_element_has_one_answer_and_transient_errors_cost_no_good_one_unless_tries_run_out(case, passing):
    size, bad, ceiling = case
    model = Model(bad, ceiling, passing)
    good, failed, _ = answers(size, model, attempts=500, timeout_secs=1e9)
    assert (good, failed) == (sorted(set(range(size)) - bad), sorted(bad))


@given(BATCHES, st.sets(st.integers(0, 20)))
def test_tries_are_the_calls_that_an_element_was_in(case, passing):
    size, bad, ceiling = case
    model = Model(bad, ceiling, passing)
    for part in answers(size, model)[2]:
        assert sum(start <= part.positions[0] < stop for start, stop in model.calls) == part.tries


@pytest.mark.parametrize(("bad", "calls"), [(0, 20), (700, 14), (1023, 11)])
def test_one_bad_element_in_1024_costs_a_call_or_two_for_each_halving(bad, calls):
    """If a first half is answered, the second one is to blame, and is not tried whole."""
    model = Model(bad=[bad])
    answers(1024, model)
    assert len(model.calls) == 1 + calls


def test_the_size_that_fits_memory_is_learnt_once_per_batch():
    model = Model(ceiling=5)
    answers(32, model)
    assert model.calls == [(0, 32), (0, 16), (0, 8), *[(n, n + 4) for n in range(0, 32, 4)]]


def test_an_outage_ends_at_the_limit_of_tries():
    model = Model(passing=range(1000))
    assert answers(1, model)[1] == [0]
    assert len(model.calls) == 3


def test_an_outage_ends_at_the_time_limit():
    clock, model = FakeClock(), Model(passing=range(10_000))
    before = clock.seconds()
    answers(64, model, clock, attempts=1000, timeout_secs=30)
    assert clock.seconds() - before <= 30


def test_uncaught_errors_are_raised_as_soon_as_nothing_helps():
    model = Model(bad=[3], ceiling=4)
    with pytest.raises(ValueError, match=r"^$"):
        answers(8, model, caught=())
    assert model.calls == [(0, 8), (0, 4)]
    with pytest.raises(ConnectionResetError):
        answers(8, Model(passing=range(9)), caught=())
    assert answers(8, Model(passing=[0], ceiling=2), caught=())[0] == list(range(8))


def test_billed_calls_are_never_repeated():
    for model in (Model(bad=[1]), Model(ceiling=2), Model(passing=[0])):
        assert answers(4, model, billed=True)[1] == [0, 1, 2, 3]
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
    good, failed, _ = answers(4, model, breaker=open_breaker())
    assert (good, failed) == (sorted(set(range(4)) - model.bad), sorted(model.bad))
    assert model.calls == calls


@pytest.mark.parametrize(
    ("error", "at_first", "later"),
    [(ValueError(), 1000, 3), (HostDiedError(), 32, 3), (ConnectionError(), 32, 1), (TimeoutError(), 3, 1)],
    ids=repr,
)
def test_probes_are_fewer_the_more_they_cost(error, at_first, later):
    with_attributes(error, retryable=isinstance(error, ConnectionError))
    breaker, calls = open_breaker(), []

    def attempt(positions):
        calls.append(len(positions))
        return Caught.of(error)

    for _ in range(2):
        list(recovery(attempt, breaker=breaker, attempts=1).results(2000, Caught.of(error)))
    assert calls == [1] * (at_first + later)


def test_the_rest_is_given_up_with_the_error_of_the_batch_if_all_probes_fail():
    breaker = open_breaker()
    breaker.probes(TIMEOUTS.at_first, TIMEOUTS)
    batch, one = Caught.of(TimeoutError("all")), Caught.of(TimeoutError("one"))
    calls = []

    def attempt(positions):
        calls.append(len(positions))
        return one if len(positions) == 1 else batch

    first, rest = recovery(attempt, breaker=breaker).results(100, batch)
    assert calls == [100, 1, 1]
    assert (len(first.positions), first.answer, first.tries) == (1, one, 4)
    assert (len(rest.positions), rest.answer, rest.tries) == (99, batch, 2)


def test_parts_that_fit_memory_are_found_without_catching_even_while_everything_fails():
    assert answers(4, Model(ceiling=1), caught=(), breaker=open_breaker())[0] == [0, 1, 2, 3]


@pytest.mark.parametrize(("attempts", "saved"), [(1, []), (2, [0])])
def test_transient_errors_are_retried_once_without_a_pause_while_everything_fails(attempts, saved):
    clock = FakeClock()
    before = clock.seconds()
    assert answers(1, Model(passing=[0]), clock, attempts=attempts, breaker=open_breaker())[0] == saved
    assert clock.seconds() == before


def test_a_batch_that_was_too_large_for_the_time_limit_is_reported():
    def attempt(positions):
        if len(positions) <= 8:
            return list(positions)
        overran.append(positions)
        return Caught.of(with_attributes(TimeoutError(), retryable=False, **{HOST_TIMED_OUT: True}))

    overran, too_large = [], []
    good, _, _ = answers(64, attempt, too_large=too_large.append)
    assert good == list(range(64))
    assert list(map(len, too_large)) == list(map(len, overran)) == [64]


def test_what_is_not_caught_fails_no_element_while_the_breaker_is_open():
    """A call without memory is cut as ever, and each element gets its own error."""
    breaker = CircuitBreaker(1)
    breaker.record(succeeded=False)
    breaker.probes = lambda size, cost: [0]
    _, bad, parts = answers(8, Model(range(8), ceiling=1), breaker=breaker, caught=ValueError)
    assert bad == [*range(8)]
    assert {type(part.answer.error) for part in parts} == {ValueError}

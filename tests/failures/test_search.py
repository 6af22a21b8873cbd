"""Of elements that time out together only those that hang fail, at the cost of few time limits."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace import RetryConfig
from headrace.core.errors import HostDiedError
from headrace.core.result import Caught
from headrace.failures.breaker import CircuitBreaker
from headrace.failures.fatal_search import MAX_TIMEOUTS
from headrace.failures.recovery import RecoveryPolicy, recover
from headrace.failures.retry import RetryBudget
from headrace.failures.search import Overruns, is_overrun, overrun
from headrace.testing import FakeClock


class Model:
    """Answers a call with its elements' places.

    Args:
        endless: places whose calls overrun.
        bad: places whose calls raise.
        ceiling: how many elements a call may have for the time limit.
    """

    def __init__(self, endless=(), bad=(), ceiling=10**9):
        self._endless, self._bad, self._ceiling = set(endless), set(bad), ceiling
        self.overran = 0

    def __call__(self, start, stop):
        places = set(range(start, stop))
        if self._bad & places and min(self._bad & places) < min(self._endless & places, default=math.inf):
            return Caught.of(ValueError())
        if self._endless & places or len(places) > self._ceiling:
            self.overran += 1
            error = overrun("too long")
            vars(error)["retryable"] = False
            return Caught.of(error)
        return sorted(places)


def answers(size, model, parts=lambda count: count):
    """Positions with a prediction; by position, the errors of the others; and the sizes reported as too large."""
    first, told = model(0, size), []
    if not isinstance(first, Caught):
        return first, {}, told
    clock = FakeClock()
    policy = RecoveryPolicy(
        Exception, RetryBudget(RetryConfig(), clock.time_ns, clock.sleep), CircuitBreaker(), free=lambda: None
    )
    overruns = Overruns(parts, lambda start, stop: told.append((start, stop)))
    found = recover(size, first, model, policy.choose, policy.probes, overruns=overruns)
    everything = [part for parts in found for part in parts]
    assert [place for part in everything for place in range(part.start, part.stop)] == list(range(size))
    good = [place for part in everything if not isinstance(part.answer, Caught) for place in part.answer]
    failed = {
        place: part.answer.error
        for part in everything
        for place in range(part.start, part.stop)
        if isinstance(part.answer, Caught)
    }
    return good, failed, told


CASES = st.integers(1, 60).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.sets(st.integers(0, size - 1), max_size=1 + MAX_TIMEOUTS),
        st.sets(st.integers(0, size - 1), max_size=5),
        st.integers(1, 9),
    )
)


@given(CASES)
def test_no_good_element_is_lost_while_few_hang(case):
    size, endless, bad, count = case
    bad -= endless
    good, failed, _ = answers(size, Model(endless, bad), lambda size: min(size, 1 + count))
    if len(endless) <= MAX_TIMEOUTS:
        assert {place for place, error in failed.items() if is_overrun(error)} == endless
        assert (sorted(good), failed.keys()) == (sorted({*range(size)} - endless - bad), endless | bad)


@given(st.integers(1, 60), st.data())
def test_hanging_elements_cost_few_time_limits(size, data):
    model = Model(data.draw(st.sets(st.integers(0, size - 1))), data.draw(st.sets(st.integers(0, size - 1))))
    answers(size, model)
    assert model.overran <= 2 * (2 + MAX_TIMEOUTS)


def test_one_hanging_element_costs_two_time_limits():
    model = Model({13})
    good, failed, told = answers(64, model)
    assert (len(good), list(failed), model.overran, told) == (63, [13], 2, [])


def test_a_batch_that_was_too_large_is_reported():
    model = Model(ceiling=8)
    assert answers(64, model, lambda _: 8) == (list(range(64)), {}, [(0, 64)])
    assert model.overran == 1


def test_other_timeouts_are_no_overruns():
    assert not is_overrun(TimeoutError("of a socket"))


class Deadly:
    """Hosts die of some elements; counts the calls."""

    def __init__(self, lethal):
        self._lethal, self.calls = set(lethal), 0

    def __call__(self, start, stop):
        self.calls += 1
        places = set(range(start, stop))
        if not self._lethal & places:
            return sorted(places)
        error = HostDiedError("died")
        vars(error)["retryable"] = False
        return Caught.of(error)


def test_a_model_that_dies_of_everything_costs_few_hosts():
    model = Deadly(range(64))
    good, failed, _ = answers(64, model)
    assert (good, len(failed)) == ([], 64)
    assert model.calls <= 40


def test_good_elements_behind_many_lethal_ones_are_found():
    model = Deadly(range(24))
    good, failed, _ = answers(64, model)
    assert (good, list(failed)) == (list(range(24, 64)), list(range(24)))

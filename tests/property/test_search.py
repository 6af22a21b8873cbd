"""Whatever kills or hangs hosts: no element is lost or doubled, good ones are answered, and the search ends."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.core.result import Stage
from headrace.failures.search import (
    LETHAL_IN_A_ROW,
    LETHAL_PROBES,
    MAX_TIMEOUTS,
    FailureSearch,
    InjectedFailure,
    LostBatch,
)

PRE, RUN, POST = Stage.PREPROCESSING, Stage.INFERENCE, Stage.POSTPROCESSING


def isolate_fatal(positions, first, attempt, **options):
    return FailureSearch(attempt, **options).among(positions, first)


class Fault(NamedTuple):
    """What an operation does to the host when it gets a certain element."""

    stage: Stage
    index: int
    hangs: bool

    is_hungry: bool = False
    """Whether it dies for want of memory."""

    def strike(self, position: int) -> LostBatch:
        error = TimeoutError("overran") if self.hangs else RuntimeError("died")
        too_large = self.is_hungry and not self.hangs and self.stage is RUN
        return LostBatch(error, self.hangs, self.stage, None if self.stage is RUN else position, self.index, too_large)


class Host:
    """Answers {position: "good" or its injected error}, unless an element or an outsider ends the host.

    Args:
        faults: the culprits, by position.
        kills: which of its runs an outsider ends, counted from 0; None stands for no place in particular, a number
            for the element (of the batch, counted around) whose preprocessing happens to run. An outsider strikes
            no element twice that stands alone, and hits somebody's own operation only where a death is forgiven.
    """

    def __init__(self, faults: dict[int, Fault], kills: dict[int, int | None] | None = None) -> None:
        self.faults = faults
        self.kills = kills or {}
        self.runs = 0
        self.deaths = 0
        self.struck_alone: set[int] = set()

    def __call__(self, part: Any, fatal: Any) -> Any:
        answer = self._outsider(part) or self._run(part, fatal)
        self.runs += 1
        self.deaths += isinstance(answer, LostBatch) and not answer.timed_out
        return answer

    def _outsider(self, part: Any) -> LostBatch | None:
        alone = len(part) == 1
        if self.runs not in self.kills or (alone and part[0] in self.struck_alone):
            return None
        self.struck_alone.update(part if alone else ())
        at = self.kills[self.runs]
        if at is None or (self.deaths and not alone):
            return LostBatch(RuntimeError("killed"), timed_out=False, stage=RUN)
        return LostBatch(RuntimeError("killed"), timed_out=False, stage=PRE, position=part[at % len(part)])

    def _run(self, part: Any, fatal: Any) -> Any:
        answer: dict[int, Any] = {}
        for stage in (PRE, RUN, POST):
            for position in part:
                fault, injected_failure = self.faults.get(position), fatal.get(position)
                if position in answer:
                    continue
                if injected_failure is not None and injected_failure.stage is stage:
                    answer[position] = injected_failure.error
                elif fault is not None and fault.stage is stage:
                    return fault.strike(position)
        return {position: answer.get(position, "good") for position in part}


faults = st.builds(Fault, st.sampled_from(Stage), st.integers(0, 2), st.booleans(), st.booleans())
batches = st.lists(st.integers(0, 500), unique=True, min_size=1, max_size=80)


@st.composite
def hosts(draw, kills=st.just({})):
    """Positions, and a host with no more culprits among them than the search isolates one by one."""
    positions = draw(batches)
    culprits = draw(st.dictionaries(st.sampled_from(positions), faults, max_size=LETHAL_IN_A_ROW - 1))
    # A timeout in inference shows first in a group and then alone.
    assume(sum(1 + (fault.stage is RUN) for fault in culprits.values() if fault.hangs) <= 1 + MAX_TIMEOUTS)
    return positions, Host(culprits, draw(kills))


outsiders = st.dictionaries(st.integers(0, 40), st.none() | st.integers(0, 500), max_size=20)


def becomes_of(positions, host, gives_up_single=False):
    """The outcome of each element: "good" or its error. Fails if one is lost or doubled, or its number blamed."""
    first = host(positions, {})
    assume(isinstance(first, LostBatch))
    fates: dict[int, Any] = {}
    too_large = []
    options = {"gives_up_single": gives_up_single, "too_large": too_large.append}
    for part, answer in isolate_fatal(positions, first, host, **options):
        assert fates.keys().isdisjoint(part)
        assert len(set(part)) == len(part) > 0
        fates.update(dict.fromkeys(part, answer.error) if isinstance(answer, LostBatch) else answer)
    assert fates.keys() == set(positions)
    assert too_large == []
    return fates


@settings(max_examples=200)
@given(hosts() | hosts(outsiders), st.booleans())
def test_every_culprit_fails_and_no_other_element_even_if_outsiders_kill(case, gives_up_single):
    positions, host = case
    fates = becomes_of(positions, host, gives_up_single)
    assert {position for position, fate in fates.items() if fate != "good"} == host.faults.keys()
    for position, fault in host.faults.items():
        assert host.kills or isinstance(fates[position], TimeoutError if fault.hangs else RuntimeError)
    assert host.runs - 1 <= 6 * len(positions)


@given(st.integers(2, 2000), st.integers(1, 50))
def test_elements_that_time_out_only_together_are_all_answered_and_their_size_is_reported(size, most):
    assume(size > most)
    positions = list(range(size))
    lost = LostBatch(TimeoutError("overran"), timed_out=True, stage=RUN)
    too_large = []
    attempt = lambda part, _: lost if len(part) > most else "answer"  # noqa: E731 - one line
    answers = isolate_fatal(positions, lost, attempt, too_large=lambda part: too_large.append(len(part)))
    assert [position for part, answer in answers if answer == "answer" for position in part] == positions
    assert too_large == sorted(too_large)
    assert too_large[-1] == size
    assert min(too_large) > most


@given(st.integers(1, 3000), st.data())
def test_one_element_that_is_fatal_in_inference_costs_two_attempts_per_level(size, data):
    culprit = data.draw(st.integers(0, size - 1))
    host = Host({culprit: Fault(RUN, 0, hangs=False)})
    becomes_of(range(size), host)
    assert host.runs - 1 <= 2 * math.ceil(math.log2(size)) + 3


@given(st.integers(1, 3000), st.data(), faults)
def test_a_fault_in_an_elements_own_operation_costs_no_search(size, data, fault):
    assume(fault.stage is not RUN)
    host = Host({data.draw(st.integers(0, size - 1)): fault})
    becomes_of(range(size), host)
    assert host.runs - 1 == (1 if fault.hangs else 2)


@given(st.integers(1, 3000), faults)
def test_a_model_that_loses_everything_costs_little_more_for_more_elements(size, fault):
    host = Host(dict.fromkeys(range(size), fault))
    fates = becomes_of(range(size), host)
    assert "good" not in fates.values()
    assert host.runs - 1 <= 4 * (LETHAL_IN_A_ROW + LETHAL_PROBES) + math.ceil(math.log2(size))


losses = st.builds(
    LostBatch,
    error=st.just(RuntimeError("lost")),
    timed_out=st.booleans() | st.just(False),
    stage=st.sampled_from(Stage),
    position=st.none() | st.integers(-1, 80),
    index=st.integers(-1, 3),
)


@given(
    st.lists(st.integers(0, 80), unique=True, min_size=1, max_size=60),
    losses,
    st.lists(st.none() | losses, min_size=1, max_size=100),
    st.booleans(),
)
def test_the_search_ends_whatever_attempts_return(positions, first, answers, gives_up_single):
    left, attempts = set(positions), 0

    def attempt(part, fatal):
        nonlocal attempts
        attempts += 1
        assert left.issuperset(part)
        assert set(fatal) <= set(part)
        assert all(isinstance(injected_failure, InjectedFailure) for injected_failure in fatal.values())
        return answers[attempts % len(answers)]

    for part, _ in isolate_fatal(positions, first, attempt, gives_up_single=gives_up_single):
        assert left.issuperset(part)
        assert len(set(part)) == len(part) > 0
        left.difference_update(part)
    assert left == set()
    assert attempts <= 6 * len(positions)


@given(st.integers(1, 60), losses.filter(lambda lost: not lost.timed_out))
def test_the_bound_holds_when_the_host_survives_just_often_enough(size, lost):
    """Dies of everything but fatal elements and every tenth element alone, which resets the count."""
    attempts = 0

    def attempt(part, fatal):
        nonlocal attempts
        attempts += 1
        return "answer" if set(part) <= set(fatal) or (len(part) == 1 and part[0] % 10 == 9) else lost

    parts = [part for part, _ in isolate_fatal(range(size), lost, attempt)]
    assert sorted(position for part in parts for position in part) == list(range(size))
    assert attempts <= 6 * size

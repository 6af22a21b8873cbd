"""Which calls follow each kind of host loss, and in which order; each rule with the attempts it costs."""

from __future__ import annotations

import pytest

from headrace.core.result import Stage
from headrace.failures.breaker import CircuitBreaker
from headrace.failures.search import FailureSearch, LostBatch

PRE, RUN = Stage.PREPROCESSING, Stage.INFERENCE


def died(stage=RUN, position=None, index=0):
    return LostBatch(RuntimeError("died"), timed_out=False, stage=stage, position=position, index=index)


def overran():
    return LostBatch(TimeoutError("overran"), timed_out=True)


def isolate_fatal(positions, first, attempt, **options):
    return FailureSearch(attempt, **options).among(positions, first)


class Script:
    """Gives the answers in turn; records which elements were tried, and with which injected failures."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.tried = []
        self.injected_failures = []

    def __call__(self, part, fatal):
        self.tried.append(list(part))
        self.injected_failures.append(dict(fatal))
        return self.answers.pop(0)

    def play(self, positions, first, **options):
        """The outcomes; every answer of the script must have been used."""
        pairs = [(list(part), answer) for part, answer in isolate_fatal(positions, first, self, **options)]
        assert self.answers == []
        return pairs


def test_the_fourth_further_timeout_fails_unanswered_elements():
    last = overran()
    script = Script("zero", overran(), "1 failed", overran(), "2 failed", overran(), "3 failed", last)
    pairs = script.play(range(9), overran())
    assert pairs[:-1] == [([0], "zero"), ([1], "1 failed"), ([2], "2 failed"), ([3], "3 failed")]
    assert pairs[-1] == ([4, 5, 6, 7, 8], last)


def test_a_group_without_a_hanging_element_was_too_large_and_others_are_cut_as_small():
    """Few elements are tried one by one, many in as many parts as there are in each."""
    script, too_large = Script(overran(), *map(str, range(36))), []
    pairs = script.play(range(36), overran(), gives_up_single=True, too_large=too_large.append)
    assert script.tried == [[0, 1, 2, 3, 4, 5], *([n] for n in range(36))]
    assert [answer for _, answer in pairs] == [*map(str, range(36))]
    assert [list(positions) for positions in too_large] == [[0, 1, 2, 3, 4, 5], list(range(36))]


def test_a_fatal_element_that_is_lost_among_others_is_given_up_without_them():
    last = died(PRE, 1, index=1)
    script = Script(died(PRE, 1), last, "others")
    assert script.play(range(3), died(PRE, 1)) == [([1], last), ([0, 2], "others")]
    assert script.tried[-1] == [0, 2]
    assert script.injected_failures[-1] == {}


@pytest.mark.parametrize("lost", [died(), overran()], ids=["died", "overran"])
def test_an_element_alone_without_preprocessing_is_given_up_at_once(lost):
    script = Script(*[lost] * (1 if lost.timed_out else 2), "one")
    first = overran()
    assert script.play([0, 1], first, gives_up_single=True) == [([0], lost), ([1], "one")]


@pytest.mark.parametrize("gives_up_single", [False, True])
@pytest.mark.parametrize(
    "bad",
    [range(20), range(80, 100), range(17, 60), [n for n in range(100) if n % 4], range(1, 17)],
    ids=["first", "last", "amid", "most", "after a good one"],
)
def test_lethal_neighbours_do_not_fail_the_others(bad, gives_up_single):
    def host(part, fatal):
        return died() if set(part) & set(bad) - set(fatal) else [one for one in part if one not in fatal]

    answers = [answer for _, answer in isolate_fatal(range(100), died(), host, gives_up_single=gives_up_single)]
    good = [one for answer in answers if not isinstance(answer, LostBatch) for one in answer]
    assert sorted(good) == [n for n in range(100) if n not in bad]


def probed(script, count, first, good="good"):
    """The outcomes while the breaker is open; one good answer closes it. The second half is probed first."""
    breaker = CircuitBreaker(1)
    breaker.record(succeeded=False)
    breaker.probes = lambda size, cost: range(size - count, size)
    pairs = []
    for part, answer in FailureSearch(script, breaker=breaker).among(range(6), first):
        pairs.append((list(part), answer))
        if answer == good:
            breaker.record(succeeded=True)
    assert script.answers == []
    return pairs


def test_the_rest_fails_as_the_batch_did_if_no_probe_succeeds():
    """Deaths of probes prove nothing about them."""
    first, late = died(), overran()
    assert probed(Script(died(), late, died()), 3, first) == [([4], late), ([0, 1, 2, 3, 5], first)]


def test_an_answer_without_a_success_does_not_close_the_breaker():
    first = overran()
    assert probed(Script("raised", "raised"), 2, first)[2] == ([0, 1, 2, 3], first)


def test_the_rest_is_tried_and_searched_once_a_probe_succeeds():
    script = Script(died(), "good", "others")
    assert probed(script, 3, died()) == [([4], "good"), ([0, 1, 2, 3, 5], "others")]
    script = Script(overran(), "good", overran(), *"0123")
    pairs = probed(script, 2, overran())
    assert [part for part, _ in pairs] == [[4], [5], [0], [1], [2], [3]]
    assert script.tried == [[4], [5], [0, 1, 2, 3], [0], [1], [2], [3]]

"""Which elements are probed when a batch loses its host while everything has been failing."""

from __future__ import annotations

from headrace.core.result import Stage
from headrace.failures.fatal_search import LostBatch
from headrace.failures.isolate_fatal import isolate_fatal, probe_hosts


def died():
    return LostBatch(RuntimeError("died"), timed_out=False, stage=Stage.INFERENCE, position=None, index=0)


def overran():
    return LostBatch(TimeoutError("overran"), timed_out=True, stage=Stage.INFERENCE, position=None, index=0)


class Script:
    """Gives the answers in turn; records the attempts."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.tried = []

    def __call__(self, part, fatal):
        self.tried.append(list(part))
        return self.answers.pop(0)


def probed(script, places, first, *, good="good"):
    """The outcomes; one good answer closes the breaker."""
    hope = []

    def search(positions, lost):
        return isolate_fatal(positions, lost, script)

    tried = probe_hosts(places, range(6), first, script, search=search, is_hopeless=lambda: not hope)
    pairs = []
    for part, answer in tried:
        pairs.append((list(part), answer))
        hope += [answer] if answer == good else []
    assert script.answers == []
    return pairs


def test_the_rest_fails_as_the_batch_did_if_no_probe_succeeds():
    first, one, other = died(), died(), died()
    script = Script(one, other)
    assert probed(script, [1, 4], first) == [([1], one), ([4], other), ([0, 2, 3, 5], first)]


def test_an_answer_without_a_success_does_not_close_the_breaker():
    first = overran()
    assert probed(Script("raised", "raised"), [1, 4], first)[2] == ([0, 2, 3, 5], first)


def test_the_rest_is_tried_and_searched_once_a_probe_succeeds():
    dead = died()
    script = Script(died(), "good", dead, "others")
    assert probed(script, [1, 4, 5], died()) == [([4], "good"), ([1], dead), ([0, 2, 3, 5], "others")]
    assert script.tried == [[1], [4], [1], [0, 2, 3, 5]]
    script = Script("good", overran(), *"12345")
    assert probed(script, [0, 3], overran()) == [([0], "good"), *(([int(one)], one) for one in "12345")]
    assert script.tried == [[0], [1, 2, 3, 4, 5], [1], [2], [3], [4], [5]]


def test_an_outside_kill_does_not_make_a_probed_element_fatal():
    script = Script(died(), "good", "good, too", "others")
    pairs = [([4], "good"), ([1], "good, too"), ([0, 2, 3, 5], "others")]
    assert probed(script, [1, 4], died()) == pairs


def test_an_element_that_timed_out_alone_is_not_tried_again():
    late = overran()
    script = Script(late, "good", "others")
    assert probed(script, [1, 4], overran()) == [([1], late), ([4], "good"), ([0, 2, 3, 5], "others")]


def test_every_element_may_be_probed():
    script = Script(*"abcdef")
    assert [part for part, _ in probed(script, range(6), died())] == [[0], [1], [2], [3], [4], [5]]

"""Which copy of an engine gets a request: one that is up, that has its prefix, and that is not much more loaded."""

from __future__ import annotations

import heapq
from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime import engines
from headrace.runtime.engines import PrefixRouter

BLOCK = engines._BLOCK
DOCUMENTS = [letter * 10 * BLOCK for letter in "abcdefgh"]
BOTH = [True, True]


@st.composite
def histories(draw):
    """A router's copies and slack, and a list of requests: the prompt, whether a copy is up, and answers meanwhile."""
    copies = draw(st.integers(1, 5))
    up = st.lists(st.booleans(), min_size=copies, max_size=copies)
    answered = st.lists(st.integers(0, 3), min_size=copies, max_size=copies)
    prompts = st.text(st.sampled_from("xy"), max_size=3).map(lambda text: "".join(one * BLOCK for one in text))
    return copies, draw(st.integers(0, 4)), draw(st.lists(st.tuples(prompts, up, answered), max_size=40))


@given(histories())
def test_lost_copies_get_nothing_and_no_copy_is_much_more_loaded_than_another(history):
    copies, slack, requests = history
    router, loads = PrefixRouter(copies, slack), [0] * copies
    for prompt, up, answered in requests:
        chosen = router.choose(prompt, loads, up)
        candidates = [copy for copy in range(copies) if up[copy]] or [*range(copies)]
        assert chosen in candidates
        assert loads[chosen] <= min(loads[copy] for copy in candidates) + slack
        loads[chosen] += 1
        loads = [max(0, load - ended) for load, ended in zip(loads, answered, strict=True)]


@given(st.lists(st.sampled_from(DOCUMENTS), max_size=60), st.randoms(use_true_random=False))
def test_prompts_that_begin_alike_stay_together_while_there_is_room(documents, random):
    router, loads, found = PrefixRouter(3, slack=len(documents)), [0, 0, 0], {}
    for document in documents:
        chosen = router.choose(document + random.choice("xyz") * 3 * BLOCK, loads, [True] * 3)
        assert found.setdefault(document, chosen) == chosen
        loads[chosen] += 1


def test_of_copies_that_are_up_the_one_with_the_longest_beginning_is_chosen():
    router = PrefixRouter(2, slack=9)
    first = router.choose("a" * 4 * BLOCK, [0, 0], BOTH)
    second = router.choose(
        "a" * 2 * BLOCK + "b" * 2 * BLOCK, [9, 0] if first == 0 else [0, 9], [first == 1, first == 0]
    )
    assert {first, second} == {0, 1}
    assert router.choose("a" * 2 * BLOCK + "b" * 3 * BLOCK, [0, 0], BOTH) == second
    assert router.choose("a" * 5 * BLOCK, [0, 0], BOTH) == first


def test_prompts_with_nothing_in_common_but_a_preamble_go_to_the_least_loaded():
    router = PrefixRouter(2, slack=9)
    preamble = "You are a helpful assistant, and answer briefly. " * 2
    first = router.choose(preamble + DOCUMENTS[0], [0, 0], BOTH)
    for document in DOCUMENTS[1:]:
        assert router.choose(preamble + document, [1, 0] if first == 0 else [0, 1], BOTH) != first


@pytest.mark.parametrize("prefix", ["", "short", "\ud800" * 10])
def test_what_has_no_beginning_goes_to_copies_in_turn(prefix):
    router = PrefixRouter(3, slack=9)
    assert sorted(router.choose(prefix, [0] * 3, [True] * 3) for _ in range(6)) == [0, 0, 1, 1, 2, 2]


def test_what_is_remembered_is_bounded_and_common_beginnings_are_forgotten_last(monkeypatch):
    monkeypatch.setattr(engines, "_REMEMBERED", 12)
    router = PrefixRouter(2, slack=1000)
    first = router.choose(DOCUMENTS[0], [0, 0], BOTH)
    for document in DOCUMENTS[1:6]:
        router.choose(DOCUMENTS[0][: 5 * BLOCK] + document, [0, 0], BOTH)
    assert router.choose(DOCUMENTS[0][: 5 * BLOCK], [1, 1], BOTH) == first
    assert max(map(len, router._known)) == 12


@pytest.mark.parametrize("size", [3, 10, 30])
def test_while_all_copies_are_busy_nearly_every_beginning_is_computed_once(size):
    """In virtual time: two copies take 64 requests each, and compute 16 of them at a time."""
    random = Random(size)
    prompts = [document + "?" * question for document in map(_document, range(600 // size)) for question in range(size)]
    router, loads, waiting, known = PrefixRouter(2, slack=16), [0, 0], [[], []], [set(), set()]
    left, ends, hits = deque(sorted(prompts)), [], 0
    now = 0.0
    while left or ends:
        while left and sum(loads) < 128:
            prompt = left.popleft()
            chosen = router.choose(prompt, loads, BOTH)
            hits += prompt[: 10 * BLOCK] in known[chosen]
            known[chosen].add(prompt[: 10 * BLOCK])
            loads[chosen] += 1
            waiting[chosen].append(prompt)
        for copy in (0, 1):
            while waiting[copy] and sum(one == copy for _, one in ends) < 16:
                waiting[copy].pop()
                heapq.heappush(ends, (now + random.uniform(0.5, 1.5), copy))
        now, copy = heapq.heappop(ends)
        loads[copy] -= 1
    assert hits >= 0.97 * (len(prompts) - len(prompts) // size)
    assert now < len(prompts) / 16 * 0.55


def _document(number):
    return f"{number:08}" * (10 * BLOCK // 8)

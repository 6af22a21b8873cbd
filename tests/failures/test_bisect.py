"""The bisection finds every bad element, loses none, and costs no more calls than it promises."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.result import Caught
from headrace.failures.search import bisect


class Model:
    """Fails for every part in which a bad element stands; counts its calls."""

    def __init__(self, bad):
        self.bad = bad
        self.calls = 0

    def __call__(self, start, stop):
        self.calls += 1
        found = sorted(n for n in self.bad if start <= n < stop)
        return Caught.of(ValueError(found)) if found else list(range(start, stop))


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_every_element_has_its_answer_in_order(case):
    size, bad = case
    parts = list(bisect(0, size, Model(bad), Caught.of(ValueError())))
    assert [n for start, stop, _ in parts for n in range(start, stop)] == list(range(size))
    failed = [start for start, stop, answer in parts if isinstance(answer, Caught)]
    assert failed == sorted(bad)
    assert all(stop - start == 1 for start, stop, answer in parts if isinstance(answer, Caught))
    good = [n for _, _, answer in parts if not isinstance(answer, Caught) for n in answer]
    assert good == [n for n in range(size) if n not in bad]


@given(st.integers(2, 2000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_one_bad_element_costs_two_calls_a_level(case):
    size, bad = case
    model = Model({bad})
    list(bisect(0, size, model, Caught.of(ValueError())))
    assert model.calls <= 2 * math.ceil(math.log2(size))


def test_a_single_element_is_not_tried_again():
    model = Model({0})
    error = Caught.of(ValueError("first"))
    assert list(bisect(0, 1, model, error)) == [(0, 1, error)]
    assert model.calls == 0


def test_an_error_of_the_whole_batch_ends_the_search_of_a_part():
    def wrong(start, stop):
        return Caught.of(KeyError(start) if start == 0 else ValueError(start))

    parts = list(bisect(0, 8, wrong, Caught.of(ValueError()), lambda error: isinstance(error, KeyError)))
    assert [(start, stop) for start, stop, _ in parts] == [(0, 4), *((n, n + 1) for n in range(4, 8))]
    error = Caught.of(KeyError())
    assert list(bisect(0, 8, wrong, error, lambda error: isinstance(error, KeyError))) == [(0, 8, error)]


def test_a_part_that_fails_only_together_loses_nothing():
    def fussy(start, stop):
        return Caught.of(ValueError("too many")) if stop - start > 2 else list(range(start, stop))

    parts = list(bisect(0, 9, fussy, Caught.of(ValueError())))
    assert [n for _, _, answer in parts for n in answer] == list(range(9))

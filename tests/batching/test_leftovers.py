"""Leftovers of bundles become full batches, or leave at their deadline; none is lost, no limit is exceeded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.batcher import Batch
from headrace.batching.lookahead import Leftover, Leftovers, Measured, leftovers_for
from headrace.batching.size import FixedSize
from headrace.core.config import BatchingConfig


def leftover(owner, sizes, due=0):
    return Leftover(owner, Batch([(owner, size) for size in sizes], list(range(len(sizes))), sum(sizes)), due)


def pool(target, leftovers, **options):
    made = Leftovers(BatchingConfig(**options), lambda: target)
    for one in leftovers:
        made.add(one)
    return made


def taken(made):
    return [(part.owner, list(part.batch.tags)) for part in made.take()]


def test_a_leftover_is_split_to_fill_a_batch():
    made = pool(4, [leftover("a", [1] * 3, 5), leftover("b", [1] * 3, 6)])
    assert taken(made) == [("a", [0, 1, 2]), ("b", [0])]
    assert made.due == 6
    assert taken(made) == [("b", [1, 2])]
    assert made.due is None


def test_a_weighed_leftover_stays_whole():
    made = pool(
        9, [leftover("a", [3]), leftover("b", [4, 2]), leftover("c", [1])], max_batch_size=8, element_size_fn=len
    )
    assert [taken(made), taken(made)] == [[("a", [0])], [("b", [0, 1]), ("c", [0])]]


@pytest.mark.parametrize(
    ("target", "now", "others", "due"),
    [(3, 4, True, False), (3, 5, True, True), (3, 4, False, True), (2, 4, True, True)],
)
def test_a_batch_leaves_when_full_or_due(target, now, others, due):
    made = pool(target, [leftover("a", [1], 5), leftover("b", [1], 6)])
    assert made.is_due(now, others_may_come=others) is due


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1),
    st.integers(1, 12),
    st.integers(1, 9),
    st.booleans(),
)
def test_every_element_leaves_once_in_order_and_no_limit_is_exceeded(sizes, target, most, weighs):
    options = {"element_size_fn": len} if weighs else {}
    made = pool(target, [leftover(n, several) for n, several in enumerate(sizes)], max_batch_size=most, **options)
    batches = []
    while made.is_due(0, others_may_come=False):
        batches.append([element for part in made.take() for element in part.batch.elements])
    assert [e for batch in batches for e in batch] == [(n, size) for n, several in enumerate(sizes) for size in several]
    for batch in batches[:-1] if not weighs else ():
        assert len(batch) == min(target, most)
    for batch in batches:
        owners = {owner for owner, _ in batch}
        assert len(owners) == 1 or not weighs or (sum(s for _, s in batch) <= most and len(batch) <= most)


def sorted_leftover(owner, lengths, due=0):
    return Leftover(
        owner, Batch([], [], measured=[Measured((owner, n), at, n, n) for at, n in enumerate(lengths)]), due
    )


def sorted_pool(target, leftovers, **options):
    config = BatchingConfig(length_fn=len, **options)
    made = leftovers_for(config, FixedSize(target))
    for one in leftovers:
        made.add(one)
    return made


def test_leftovers_are_sorted_together():
    made = sorted_pool(12, [sorted_leftover("a", [1, 6]), sorted_leftover("b", [2, 5])])
    assert [taken(made), taken(made)] == [[("a", [1]), ("b", [1])], [("b", [0]), ("a", [0])]]
    assert made.due is None


def test_sorted_leftovers_of_an_owner_are_forgotten():
    made = sorted_pool(12, [sorted_leftover("a", [6, 1]), sorted_leftover("b", [4])])
    made.forget("a")
    assert taken(made) == [("b", [0])]


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=6), min_size=1, max_size=8),
    st.integers(1, 60),
    st.integers(1, 9),
    st.integers(1, 60),
    st.integers(0, 8),
)
def test_every_sorted_element_leaves_once_in_time_and_no_limit_is_exceeded(lengths, target, most, heaviest, now):
    leftovers = [sorted_leftover(n, several, due=n) for n, several in enumerate(lengths)]
    made = sorted_pool(target, leftovers, max_batch_size=most, max_batch_weight=heaviest, bucket_boundaries=[5, 10])
    left = []
    while made.is_due(now, others_may_come=True):
        left.append([element for part in made.take() for element in part.batch.elements])
    assert {owner for owner, several in enumerate(lengths) if owner <= now} <= {o for batch in left for o, _ in batch}
    assert made.due is None or made.due > now
    while made.is_due(now, others_may_come=False):
        left.append([element for part in made.take() for element in part.batch.elements])
    assert sorted(one for batch in left for one in batch) == sorted(
        (n, one) for n, s in enumerate(lengths) for one in s
    )
    for batch in left:
        longest = max(length for _, length in batch)
        assert len(batch) <= most
        assert len(batch) == 1 or longest * len(batch) <= heaviest
        assert len({(length >= 5) + (length >= 10) for _, length in batch}) == 1

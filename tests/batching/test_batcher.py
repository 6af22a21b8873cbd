"""Batches keep their bounds and the order of their elements."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.batcher import Batch, Batcher

weights = st.lists(st.integers(min_value=0, max_value=12), max_size=60)
targets = st.lists(st.integers(min_value=1, max_value=15), min_size=1)


def always(size):
    return lambda: size


def cut_by_weight(batcher, elements):
    batches = []
    for element in elements:
        batches += batcher.add_weighed(element, f"tag {element}", element)
    rest = batcher.flush()
    return [*batches, rest] if rest.elements else batches


@given(weights, targets, st.integers(1, 10), st.none() | st.integers(1, 20), st.booleans())
def test_batches_keep_their_bounds_and_lose_nothing(elements, sizes, max_count, max_weight, target_is_weight):
    plan = iter(sizes * 100)
    batcher = Batcher(lambda: next(plan), max_count, max_weight, target_is_weight=target_is_weight)
    batches = cut_by_weight(batcher, elements)
    assert [element for batch in batches for element in batch.elements] == elements
    assert [tag for batch in batches for tag in batch.tags] == [f"tag {element}" for element in elements]
    for batch in batches:
        assert 1 <= len(batch.elements) <= max_count
        assert max_weight is None or sum(batch.elements) <= max_weight or len(batch.elements) == 1


@given(st.integers(0, 50), st.integers(1, 10), st.integers(1, 10))
def test_the_fast_path_without_weights_equals_the_weighed_one(count, target, max_count):
    fast, slow = Batcher(always(target), max_count), Batcher(always(target), max_count)
    quick = [batch for n in range(count) if (batch := fast.add(n, n))]
    weighed = [batch for n in range(count) for batch in slow.add_weighed(n, n, 1)]
    assert [batch[:2] for batch in quick] == [batch[:2] for batch in weighed]
    assert fast.flush()[:2] == slow.flush()[:2]
    assert all(len(batch.elements) == min(target, max_count) for batch in quick)


def test_the_target_is_asked_once_per_batch_and_not_before_its_first_element():
    asked = []

    def target():
        asked.append(None)
        return 2

    batcher = Batcher(target, 10)
    assert asked == []
    for n in range(4):
        batcher.add(n, n)
    assert len(asked) == 2


def test_parts_keep_their_keys_in_the_cache():
    batch = Batch(["a", "b", "c"], [0, 1, 2], cache_keys=[b"A", None, b"C"])
    assert batch.part(1, 3).cache_keys == [None, b"C"]
    assert batch.pick([2, 0])[0].cache_keys == [b"C", b"A"]
    assert Batch(["a"], [0]).part(0, 0).cache_keys == Batch(["a"], [0]).pick([0])[0].cache_keys == ()

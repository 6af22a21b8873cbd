"""Batches keep their bounds and the order of their elements, whose bytes are estimated; so do gathered elements."""

from __future__ import annotations

import sys
from itertools import cycle
from statistics import median
from types import SimpleNamespace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.batcher import Batch, Batcher, Gathered, GatherPolicy, WaitingBytes, footprint
from headrace.core.config import BatchingConfig

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
    assert batch.pick([2, 0])[0].cache_keys == [b"C", b"A"]
    assert Batch(["a"], [0]).pick([0])[0].cache_keys == ()


MEGABYTE = numpy.zeros(1_000_000, dtype=numpy.uint8)


class Unruly:
    """Refuses to tell its size."""

    @property
    def nbytes(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (MEGABYTE, 1e6, 1e6),
        (memoryview(MEGABYTE), 1e6, 1e6),
        (b"x" * 1000, 1000, 1100),
        ({"a": MEGABYTE, "b": MEGABYTE}, 2e6, 2.01e6),
        (("key", MEGABYTE), 1e6, 1.01e6),
        ([1.5] * 100_000, 3e6, 4e6),
        (SimpleNamespace(image=MEGABYTE), 1e6, 1.01e6),
        ([[[[[MEGABYTE]]]]], 1, 1e4),
        (None, 1, 100),
        (Unruly(), 1, 100),
    ],
    ids=lambda value: type(value).__name__,
)
def test_footprint_estimates_bytes(value, least, most):
    assert least <= footprint(value) <= most


def test_footprint_does_not_follow_cycles():
    circle = []
    circle.append(circle)
    assert footprint(circle) < 1000 * sys.getsizeof(circle)


def weighed(elements, bound):
    """The estimated and the real bytes waiting when the bound was reached, or at the end; and the number of looks."""
    waiting, growing, looks = WaitingBytes(bound), [], 0
    for element in elements:
        growing.append(element)
        if len(growing) >= waiting.next_measurement:
            waiting.measure(growing)
            looks += 1
        if waiting.bytes >= bound:
            break
    return waiting.bytes, sum(map(footprint, growing)), looks


def test_a_few_large_ones_among_many_small_ones_are_bounded_on_average():
    large, small = bytes(1_000_000), bytes(10)
    found = [weighed([large if n % 50 == at else small for n in range(100_000)], 8_000_000)[1] for at in range(50)]
    assert median(found) < 16_000_000
    assert max(found) < 160_000_000


def test_small_elements_are_rarely_measured():
    estimated, real, looks = weighed(range(64_000), 64_000_000)
    assert looks < 520
    assert estimated == pytest.approx(real, rel=0.01)


def batches(sizes, target, cuts=(3,), *, measured=True, **options):
    """The batches that leave when elements of these sizes arrive, so many at a time in turn, and the rest."""
    policy = GatherPolicy(BatchingConfig(**options), measured=measured)
    leaving, waiting, gathered, turns = [], [], None, cycle(cuts)
    while sizes:
        now = sizes[: next(turns)]
        known = None if set(now) == {1} else now
        gathered, count = policy.take(gathered or Gathered(target, 0.0, 100), [7] * len(now), known)
        waiting, sizes = [*waiting, *now[:count]], sizes[count:]
        assert (gathered.elements, gathered.total, gathered.earliest) == (len(waiting), sum(waiting), 7)
        if count < len(now) or policy.is_full(gathered):
            leaving.append(waiting)
            waiting, gathered = [], None
    return leaving, waiting


@pytest.mark.parametrize(
    ("sizes", "target", "options", "leaving", "waiting"),
    [
        ([1] * 5, 2, {}, [[1, 1], [1, 1]], [1]),
        ([1] * 5, 9, {"max_batch_size": 2}, [[1, 1], [1, 1]], [1]),
        ([3, 3, 3, 9, 1], 6, {"max_batch_size": 8, "element_size_fn": len}, [[3, 3], [3], [9]], [1]),
        ([1, 1, 5, 2], 9, {"max_batch_weight": 8, "element_size_fn": len}, [[1, 1], [5]], [2]),
        ([1, 1, 4, 2], 9, {"max_batch_weight": 8, "element_size_fn": len}, [[1, 1], [4, 2]], []),
        ([1, 1, 1, 1], 2, {"min_batch_size": 3, "length_fn": len}, [[1, 1, 1]], [1]),
        ([5, 1, 1, 1], 2, {"min_batch_size": 2, "max_batch_size": 2, "length_fn": len}, [[5, 1], [1, 1]], []),
    ],
)
def test_gathered_elements_leave_when_they_are_enough(sizes, target, options, leaving, waiting):
    assert batches(sizes, target, **options) == (leaving, waiting)


options = st.fixed_dictionaries(
    {"max_batch_size": st.integers(1, 9)},
    optional={"element_size_fn": st.just(len), "length_fn": st.just(len), "lookahead": st.integers(1, 9)},
)


@given(
    st.lists(st.integers(0, 9)),
    st.integers(1, 20),
    st.lists(st.integers(1, 7), min_size=1),
    options,
    st.booleans(),
    st.none() | st.integers(1, 12),
)
def test_gathering_exceeds_no_limit_and_loses_no_element(sizes, target, cuts, options, measured, weight):
    if weight is not None and len(options) > 1 and ("element_size_fn" in options or "length_fn" in options):
        options["max_batch_weight"] = weight
    config = BatchingConfig(**options)
    leaving, waiting = batches(sizes, target, cuts, measured=measured, **options)
    assert (leaving, waiting) == batches(sizes, target, [1], measured=measured, **options)
    assert [size for batch in (*leaving, waiting) for size in batch] == sizes
    most = config.lookahead if config.learns_from_weights and not measured else config.max_batch_size
    for batch in (*leaving, waiting):
        assert len(batch) <= most
        if measured and config.max_batch_weight is not None and len(batch) > 1:
            assert len(batch) * max(batch) <= config.max_batch_weight
        if measured and config.sizes_are_weights and len(batch) > 1:
            assert sum(batch) <= config.max_batch_size

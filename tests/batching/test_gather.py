"""Gathered elements never exceed a limit, and leave as soon as they are enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.batcher import Gathered, GatherPolicy
from headrace.core.config import BatchingConfig


def batches(sizes, target, *, measured=True, **options):
    """The batches that leave when elements of these sizes arrive in turn, and the rest."""
    policy = GatherPolicy(BatchingConfig(**options), measured=measured)
    leaving, waiting, gathered = [], [], None
    for size in sizes:
        if gathered is not None and not policy.fits(gathered, size):
            leaving.append(waiting)
            waiting, gathered = [], None
        gathered = (gathered or Gathered(target, 0.0, 0)).plus(size, 0)
        waiting.append(size)
        if policy.is_full(gathered):
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
    optional={
        "element_size_fn": st.just(len),
        "length_fn": st.just(len),
        "lookahead": st.integers(1, 9),
    },
)


@given(st.lists(st.integers(0, 9)), st.integers(1, 20), options, st.booleans(), st.none() | st.integers(1, 12))
def test_gathering_exceeds_no_limit_and_loses_no_element(sizes, target, options, measured, weight):
    if weight is not None and len(options) > 1 and ("element_size_fn" in options or "length_fn" in options):
        options["max_batch_weight"] = weight
    config = BatchingConfig(**options)
    leaving, waiting = batches(sizes, target, measured=measured, **options)
    assert [size for batch in (*leaving, waiting) for size in batch] == sizes
    most = config.lookahead if config.learns_from_weights and not measured else config.max_batch_size
    for batch in (*leaving, waiting):
        assert len(batch) <= most
        if measured and config.max_batch_weight is not None and len(batch) > 1:
            assert len(batch) * max(batch) <= config.max_batch_weight
        if measured and config.sizes_are_weights and len(batch) > 1:
            assert sum(batch) <= config.max_batch_size


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), min_size=1),
    st.integers(1, 20),
    options,
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(1, 7), min_size=1),
)
def test_adding_several_elements_equals_adding_them_one_by_one(elements, target, options, measured, counted, cuts):
    policy = GatherPolicy(BatchingConfig(**options), measured=measured)
    elements = [(1 if counted else size, stamp) for size, stamp in elements]
    expected = batches([size for size, _ in elements], target, measured=measured, **options)
    leaving, waiting, gathered, rest, turn = [], [], None, elements, 0
    while rest:
        now, turn = rest[: cuts[turn % len(cuts)]], turn + 1
        sizes, stamps = map(list, zip(*now, strict=True))
        unmeasured = counted and not ({"element_size_fn", "length_fn"} & options.keys())
        gathered, count = policy.take(gathered or Gathered(target, 0.0, 100), stamps, None if unmeasured else sizes)
        waiting += now[:count]
        rest = rest[count:]
        assert gathered.earliest == min(stamp for _, stamp in waiting)
        if count < len(now) or policy.is_full(gathered):
            leaving.append([size for size, _ in waiting])
            waiting, gathered = [], None
    assert (leaving, [size for size, _ in waiting]) == expected

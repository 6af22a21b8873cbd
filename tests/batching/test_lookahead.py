"""Elements of similar length share a batch, longest first, within all limits; none is lost or starves."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.lookahead import Lookahead
from headrace.batching.size import SizeController, size_controller
from headrace.core.config import BatchingConfig

LENGTHS = st.lists(st.integers(0, 300), max_size=60)


class Sizes(SizeController):
    """Sizes as a test wants them."""

    def __init__(self, target=math.inf, most=math.inf, overhead=math.inf):
        super().__init__(target)
        self.max_size, self.overhead = lambda: most, lambda: overhead


def sorting(lengths, sizes, **options):
    """A lookahead with elements of these lengths."""
    lookahead = Lookahead(BatchingConfig(length_fn=abs, **options), sizes)
    for place, length in enumerate(lengths):
        lookahead.hold(length, place)
    return lookahead


def cut(lengths, target=math.inf, **options):
    """The batches, each as a list of lengths; and the batches themselves."""
    lookahead = sorting(lengths, Sizes(target), **options)
    assert len(lookahead) == len(lengths)
    batches = list(lookahead.all())
    assert len(lookahead) == 0
    assert list(lookahead.all()) == []
    return [batch.elements for batch in batches], batches


@given(
    LENGTHS,
    st.integers(1, 8),
    st.integers(0, 20),
    st.none() | st.integers(1, 900),
    st.integers(0, 900),
    st.none() | st.lists(st.integers(1, 300), min_size=1, max_size=3).map(sorted),
)
def test_batches_keep_all_limits_and_lose_nothing(lengths, smallest, more, heaviest, target, boundaries):
    limits = {"max_batch_weight": heaviest, "bucket_boundaries": boundaries}
    cuts, batches = cut(lengths, target, min_batch_size=smallest, max_batch_size=smallest + more, **limits)
    assert sorted(tag for batch in batches for tag in batch.tags) == list(range(len(lengths)))
    assert all(lengths[tag] == one for batch in batches for tag, one in zip(batch.tags, batch.elements, strict=True))
    assert list(itertools.chain(*cuts)) == sorted(lengths, reverse=True)
    for one, batch in zip(cuts, batches, strict=True):
        assert batch.weight == len(one) * max(one)
        assert batch.useful == sum(one)
        assert len(one) <= smallest + more
        assert len(one) == 1 or batch.weight <= (heaviest or math.inf)
        assert len({sum(length >= boundary for boundary in boundaries or ()) for length in one}) == 1
        if len(one) > smallest:
            assert batch.weight <= max(target, batch.weight / len(one))


@given(LENGTHS, st.integers(1, 9), st.integers(1, 900))
def test_a_batch_ends_only_when_one_more_element_would_be_too_many(lengths, count, heaviest):
    cuts, _ = cut(lengths, min_batch_size=count, max_batch_size=count, max_batch_weight=heaviest)
    for one, following in itertools.pairwise(cuts):
        assert len(one) == count or one[0] * (len(one) + 1) > heaviest
        assert one[-1] >= following[0]


def test_the_target_is_asked_for_each_batch_when_the_last_one_has_run():
    asked, taken, sizes = [], [], Sizes()
    sizes.target = lambda: asked.append(len(taken)) or 2 ** len(asked)
    for batch in sorting([1] * 10, sizes).all():
        taken.append(len(batch.elements))
    assert taken == [2, 4, 4]
    assert asked == [0, 1, 2]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 9), st.integers(1, 30), st.sampled_from([None, [2]]))
def test_elements_of_one_length_keep_their_order_under_any_limits(lengths, count, heaviest, boundaries):
    _, batches = cut(lengths, max_batch_size=count, max_batch_weight=heaviest, bucket_boundaries=boundaries)
    tags = [tag for batch in batches for tag in batch.tags]
    assert tags == sorted(range(len(lengths)), key=lambda place: -lengths[place])


def test_padding_is_a_small_part_of_batches():
    chance = random.Random(0)
    lengths = [min(256, max(4, int(chance.lognormvariate(3.9, 1)))) for _ in range(2048)]
    weights = [batch.weight for batch in cut(lengths, 32, min_batch_size=32, max_batch_size=32)[1]]
    assert sum(lengths) / sum(weights) > 0.96
    in_order = sum(32 * max(lengths[part : part + 32]) for part in range(0, 2048, 32))
    assert sum(lengths) / in_order < 0.35


@pytest.mark.parametrize("smallest", [32, 64])
def test_the_size_that_fits_memory_overrides_the_minimum(smallest):
    lookahead = sorting([1] * 20, Sizes(32, most=8), min_batch_size=smallest, max_batch_size=64)
    assert [len(batch.elements) for batch in lookahead.all()] == [8, 8, 4]


@given(LENGTHS, st.integers(1, 5), st.one_of(st.just(0), st.integers(1, 900), st.just(math.inf)))
def test_a_batch_ends_when_padding_costs_more_than_another_batch(lengths, smallest, overhead):
    """Not for a little padding; and never with more than a quarter padding, however much a batch costs."""
    lookahead = sorting(lengths, Sizes(overhead=overhead), min_batch_size=smallest)
    batches = list(lookahead.all())
    assert sorted(tag for batch in batches for tag in batch.tags) == list(range(len(lengths)))
    for batch in batches:
        if len(batch.elements) > smallest:
            assert batch.weight - batch.useful <= batch.weight / 4
            assert batch.weight - batch.useful <= max(overhead, batch.weight / 8)
    for batch, following in itertools.pairwise(batches):  # none ends before
        assert len(batch.elements) >= smallest
        weight = (len(batch.elements) + 1) * lengths[batch.tags[0]]
        padding = weight - batch.useful - lengths[following.tags[0]]
        assert padding > weight / 8


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"length_fn": abs}, True),
        ({"max_batch_weight": 9999, "element_size_fn": abs}, True),
        ({"length_fn": abs, "min_batch_size": 9, "max_batch_size": 9}, False),
    ],
)
def test_padding_ends_a_batch_of_free_size(options, ends):
    config = BatchingConfig(**options)
    sizes = size_controller(config)
    for size in (10, 20, 40, 80, 160, 320, 640):
        sizes.observe(size, 0.1 + 0.001 * size)
    lookahead = Lookahead(config, sizes)
    for size in (50, 50, 10, 10, 10, 10, 10):
        lookahead.hold(size, size)
    assert [len(batch.elements) for batch in lookahead.all()] == ([2, 5] if ends else [7])

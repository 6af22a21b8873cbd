"""Elements wait in the queue of their model; a batch leaves when it is full."""

from __future__ import annotations

import math
import tracemalloc
from contextlib import closing

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import BatchingConfig, KeyedModelHandler, KeyModelMapping, ModelHandler, UnknownKeyError
from headrace.batching.size import size_controller
from headrace.core.model_cache import ResidentModels
from headrace.runtime.plan import ONLY, make_plan
from headrace.runtime.prepare import InferenceRequest, prepare
from headrace.runtime.queues import queues_for
from headrace.runtime.worker import Worker
from headrace.testing import DoublingHandler
from toys import Events, fixed


def queues_of(handler, batching):
    plan = make_plan(handler, batching)
    return queues_for(plan, {name: size_controller(batching) for name in plan.models})


def cut(queues, elements):
    """(model's name, elements) of each batch, the last ones by flushing; each tag is its element's place."""
    leaving = [left for n, element in enumerate(elements) for left in queues.add(element, n)]
    leaving += queues.flush()
    tags = sorted(tag for _, batch in leaving for tag in batch.tags)
    assert tags == list(range(len(elements)))
    assert all(elements[tag] is one for _, batch in leaving for tag, one in zip(batch.tags, batch.elements))
    return [(name, batch.elements) for name, batch in leaving]


def resident_of(*taken, count=2):
    resident = ResidentModels(count)
    for name in taken:
        resident.take(name)
    return resident


def by_key(*keys):
    return KeyedModelHandler([KeyModelMapping([key], DoublingHandler()) for key in keys])


@given(st.lists(st.integers(), max_size=40), st.integers(1, 9))
def test_direct_queue_gives_the_same_batches(elements, size):
    direct = queues_of(DoublingHandler(), fixed(size))
    weighed = queues_of(DoublingHandler(), fixed(size, element_size_fn=lambda _: 1))
    taken = [batch for n, one in enumerate(elements) if (batch := direct.direct.add(one, n))]
    taken += [batch for _, batch in direct.flush()]
    assert weighed.direct is None
    assert [(ONLY, batch.elements) for batch in taken] == cut(weighed, elements)
    assert cut(queues_of(DoublingHandler(), fixed(size)), elements) == cut(weighed, elements)


LENGTH_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "element_size_fn": st.just(lambda pair: abs(pair[1])),
        "length_fn": st.just(lambda pair: abs(pair[1])),
        "lookahead": st.integers(1, 9),
        "bucket_boundaries": st.just([5, 9]),
        "max_batch_weight": st.integers(1, 30),
    },
).filter(lambda chosen: "length_fn" in chosen or not {"bucket_boundaries", "max_batch_weight"} & chosen.keys())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12)), max_size=40), st.integers(1, 9), LENGTH_OPTIONS)
def test_models_never_mix_and_none_starves(elements, size, options):
    config = fixed(size, **options)
    queues = queues_of(by_key("a", "b"), config)
    left, waiting = [], {"a": [], "b": []}
    for place, element in enumerate(elements):
        waiting[element[0]].append(place)
        for name, batch in queues.add(element, place):
            left.append(batch)
            waiting = {key: [one for one in places if one not in batch.tags] for key, places in waiting.items()}
            assert {key for key, _ in batch.elements} == {elements[batch.tags[0]][0]}
        if not config.sizes_are_weights:  # any number of elements without weight may wait
            assert all(len(places) < (config.lookahead if config.sorts else size) for places in waiting.values())
    left += [batch for _, batch in queues.flush()]
    assert sorted(tag for batch in left for tag in batch.tags) == list(range(len(elements)))
    for batch in left:
        assert len({elements[tag][0] for tag in batch.tags}) == 1
        assert 1 <= len(batch.tags) <= (math.inf if config.sizes_are_weights else size)
    for key in "ab" if not config.sorts else ():
        assert [t for b in left for t in b.tags if elements[t][0] == key] == [
            place for place, (one, _) in enumerate(elements) if one == key
        ]


def test_bytes_limit_all_queues_together():
    queues = queues_of(by_key("a", "b"), fixed(2, length_fn=lambda pair: len(pair[1]), lookahead_bytes=4000))
    small, large = b"x" * 100, b"y" * 1000
    assert [
        list(queues.add(("a", large), 0)),
        list(queues.add(("b", small), 1)),
        list(queues.add(("a", large), 2)),
    ] == [[]] * 3
    [(name, batch)] = queues.add(("b", large * 2), 3)
    assert (name, batch.tags) == ("b", [3, 1])
    assert [(name, batch.tags) for name, batch in queues.flush()] == [("a", [0, 2])]


def test_largest_queue_leaves_after_that_of_the_model_which_makes_room_for_its():
    plan, batching = make_plan(by_key("a", "b", "c"), fixed(100, lookahead_bytes=4000)), fixed(100)
    queues = queues_for(plan, {name: size_controller(batching) for name in plan.models}, resident_of("a", count=1))
    elements = [("a", b"x" * 100), ("b", b"x" * 1500), ("c", b"x" * 3000)]
    leaving = [(name, batch.tags) for n, one in enumerate(elements) for name, batch in queues.add(one, n)]
    assert leaving == [("a", [0]), ("c", [2])]
    assert [(name, batch.tags) for name, batch in queues.flush()] == [("b", [1])]


@pytest.mark.parametrize("option", ["element_size_fn", "length_fn"])
@pytest.mark.parametrize("weight", [math.nan, math.inf, -1])
def test_element_without_a_weight_is_in_no_queue(weight, option):
    queues = queues_of(DoublingHandler(), fixed(2, **{option: lambda n: weight if n == 5 else 1}))
    queues.add(1, "good")
    with pytest.raises(ValueError, match=f"{option} must return a finite number"):
        queues.add(5, "bad")
    assert [batch.tags for _, batch in queues.flush()] == [["good"]]


def test_element_without_a_model_is_in_no_queue():
    queues = queues_of(by_key("a"), fixed(2))
    with pytest.raises(UnknownKeyError):
        queues.add(("z", 1), "bad")
    for stranger in (3, (), None, {"a": 1}):
        with pytest.raises(TypeError, match=r"takes \(key, example\) pairs, not"):
            queues.add(stranger, "worse")
    assert list(queues.flush()) == []


def test_queue_is_emptied_in_its_turn():
    queues = queues_of(by_key("a", "b"), fixed(3))
    for key in "ab":
        queues.add((key, 1), key)
    flushed = queues.flush()
    assert next(flushed)[1].tags == ["a"]
    queues.add(("b", 2), "late")
    assert [batch.tags for _, batch in flushed] == [["b", "late"]]


@given(st.lists(st.sampled_from("abcdefg"), max_size=40), st.integers(1, 4))
def test_resident_models_are_those_whose_batches_left_last(takes, count):
    resident = resident_of(*takes, count=count)
    last = list(dict.fromkeys(reversed(takes)))[:count]
    assert {name for name in "abcdefg" if name in resident} == (set(last) if len(last) == count else set("abcdefg"))


def test_memory_may_have_room_for_fewer_models():
    resident = resident_of("a", "b", count=None)
    resident.limit_to(1)
    assert ("a" in resident, "b" in resident) == (False, True)
    resident.limit_to(5)
    assert "c" not in resident


def test_flush_order_is_models_in_memory_first_and_the_longest_queue_last():
    assert resident_of("d", "b").flush_order({"a": 9, "b": 1, "c": 5, "d": 2}) == ["b", "d", "c", "a"]
    assert resident_of("c").flush_order({"a": 9, "b": 1, "c": 5}) == ["c", "b", "a"]  # room is no model


BOUND = 8_000_000


class Sum(ModelHandler):
    def load_model(self):
        self.batches = []
        return numpy.sum

    def run_inference(self, batch, model, inference_args=None):
        self.batches.append(len(batch))
        return [int(model(example)) for example in batch]

    def run_columns(self, columns, model, inference_args=None):
        return columns.sum(axis=1)


def peak(handler, elements, **options):
    """The peak of allocated bytes, and the number of outcomes."""
    spec, count = prepare(handler, InferenceRequest(batching=BatchingConfig(lookahead_bytes=BOUND, **options))), 0
    with closing(Worker(spec)) as worker:
        bundle = worker.bundle(Events())
        tracemalloc.start()
        for element in elements:
            count += sum(len(outcome.values) for outcome in bundle.add(element, None))
            del element
        count += sum(len(outcome.values) for outcome in bundle.finish())
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most, count


def megabytes(count):
    return (numpy.zeros(1_000_000, numpy.uint8) for _ in range(count))


@pytest.mark.large
@pytest.mark.parametrize(
    "options",
    [
        {"target_batch_overhead": 1e-9},  # asks for as many as may be
        {"target_batch_overhead": 1e-9, "element_size_fn": lambda _: 1},
        {"length_fn": len},
    ],
    ids=["as-they-come", "weighed", "sorted"],
)
def test_memory_is_bounded_with_many_large_elements(options):
    most, count = peak(Sum(), megabytes(1000), **options)
    assert count == 1000
    assert most < 5 * BOUND  # one batch forms, one waits, one runs


@pytest.mark.large
def test_memory_is_bounded_with_a_few_elements_for_each_of_many_models():
    handler = KeyedModelHandler([KeyModelMapping([n], Sum()) for n in range(100)])
    most, count = peak(handler, ((n % 100, one) for n, one in enumerate(megabytes(500))), min_batch_size=50)
    assert count == 500
    assert most < 5 * BOUND  # one batch forms, one waits, one runs


def test_memory_is_bounded_with_large_columnar_elements():
    tables = (numpy.zeros((10, 100_000), numpy.uint8) for _ in range(500))
    most, _ = peak(Sum(), tables, columnar=True, target_batch_overhead=1e-9)
    assert most < 6 * BOUND  # one batch forms, one waits, one runs and is joined


def test_minimum_batch_size_is_kept_with_a_single_model():
    handler = Sum()
    worker = Worker(prepare(handler, InferenceRequest(batching=BatchingConfig(20, 20, lookahead_bytes=BOUND))))
    bundle = worker.bundle(Events())
    for element in megabytes(50):
        bundle.add(element, None)
    list(bundle.finish())
    worker.close()
    assert worker.plan.handler.batches == [20, 20, 10]

"""A handler gives in a host exactly what it gives in this process: values, failures and what is told of them."""

from __future__ import annotations

import copy
import pickle
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headrace import BatchingConfig, Failure, PredictionResult
from headrace.core.events import BatchCompleted, BatchFailed, ElementFailed, ModelLoaded
from headrace.runtime.hosted import HostedWorker
from headrace.runtime.prepare import Request, catching, prepare
from headrace.runtime.worker import Worker

sys.path.append(str(Path(__file__).parent))  # hosts find what handlers need on it, too

import behaviours

SCALARS = npst.scalar_dtypes().map(lambda dtype: dtype.newbyteorder("="))  # numpy's own pickles lose some orders
DTYPES = st.one_of(SCALARS, npst.unicode_string_dtypes(max_len=3), npst.nested_dtypes(SCALARS, max_itemsize=64))
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
ARRAYS = st.builds(
    lambda layout, array: layout(array),
    st.sampled_from([lambda a: a, lambda a: a, numpy.asfortranarray, lambda a: a.T, lambda a: a[::2] if a.ndim else a]),
    npst.arrays(DTYPES, SHAPES),
)
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)),
    *(st.complex_numbers(), st.dates(), st.decimals(), st.just(behaviours.Colour.RED), ARRAYS),
    SCALARS.flatmap(lambda dtype: npst.arrays(dtype, ())).map(lambda array: array[()]),
)
VALUES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), parts, max_size=3),
        st.builds(behaviours.Point, parts, parts),
        st.builds(behaviours.Record, parts, parts),
        st.builds(PredictionResult, parts, parts),
    ),
    max_leaves=4,
)


def alike(make):
    """Rows of one make, with arrays of one dtype and shape."""
    arrays = st.builds(npst.arrays, DTYPES, SHAPES)
    return arrays.flatmap(lambda rows: st.lists(rows.map(make), max_size=7))


ELEMENTS = st.one_of(
    st.lists(VALUES, max_size=7),
    alike(lambda array: array),
    alike(lambda array: (1, {"a": array, "b": "c"})),
    alike(lambda array: behaviours.Point(array, [array.copy()])),
)


class Told:
    """What an observer was told, less the times, and less how elements were shared out among batches."""

    def __init__(self):
        self.failed, self.examples, self.loads, self.failed_batches = Counter(), Counter(), Counter(), Counter()

    def on_event(self, event):
        if isinstance(event, BatchCompleted):
            self.examples[event.model] += event.examples
        elif isinstance(event, ElementFailed):
            self.failed[event.stage, repr(event.error)] += 1
        elif isinstance(event, BatchFailed):
            self.failed_batches[event.model, repr(event.error)] += 1
        elif isinstance(event, ModelLoaded):
            self.loads[event.model] += 1

    def all(self):
        return self.failed, self.examples, self.loads, self.failed_batches


class Pair:
    """One handler twice: in this process, and in a host. What they have given is kept until they are closed."""

    def __init__(self, handler, size=3, **batching):
        request = {"batching": BatchingConfig(min_batch_size=size, max_batch_size=size, **batching)}
        here = catching(prepare(copy.deepcopy(handler), Request(**request)), Exception)
        there = catching(prepare(handler, Request(**request, isolate=True)), Exception)
        self._given = []
        with ExitStack() as stack:
            self._workers = [Worker(here), HostedWorker(there)]
            for worker in self._workers:
                stack.callback(worker.close)
            self._stack = stack.pop_all()

    def compare(self, elements):
        told = Told(), Told()
        here, there = map(run, self._workers, (copy.deepcopy(elements), copy.deepcopy(elements)), told)
        expected = list(map(describe, here))
        assert list(map(describe, there)) == expected
        assert told[1].all() == told[0].all()
        self._given.append((there, expected))

    def close(self):
        """What was given has not changed since; it needs no host."""
        self._stack.close()
        for outcomes, expected in self._given:
            assert list(map(describe, outcomes)) == expected


def run(worker, elements, observer):
    """For each element its predictions, of which a batch may have any number, or its failure."""
    bundle = worker.bundle(observer)
    outcomes = [[] for _ in elements]
    for tag, element in enumerate(elements):
        take(bundle.add(element, tag), outcomes)
    take(bundle.finish(), outcomes)
    return outcomes


def take(given, outcomes):
    for outcome in given:
        if isinstance(outcome, Failure):
            outcomes[outcome.tag].append(outcome)
        else:
            for tag, value in zip(outcome.tags, outcome.values, strict=True):
                outcomes[tag].append(value)


def describe(outcomes):
    return [describe_failure(one) if isinstance(one, Failure) else behaviours.description(one) for one in outcomes]


def describe_failure(failure):
    element, (kind, text, lines) = pickle.loads(pickle.dumps(failure.record))
    assert kind is type(failure.error)
    code = getattr(failure.error, "code", None)
    return failure.stage, failure.index, behaviours.description(element), kind, text, lines[-1], code


@pytest.fixture(scope="module")
def make_pair():
    with ExitStack() as stack:

        def make(handler, **batching):
            made = Pair(handler, **batching)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture(scope="module")
def by_behaviour(make_pair):
    return make_pair(behaviours.by_behaviour())


@pytest.fixture(scope="module")
def processed(make_pair):
    return make_pair(behaviours.processed())


@pytest.fixture(scope="module")
def weighed(make_pair):
    return make_pair(behaviours.weighed(), max_batch_weight=4, element_size_fn=behaviours.weight)


@pytest.fixture(scope="module")
def by_key_made_in_preprocessing(make_pair):
    return make_pair(behaviours.by_key_made_in_preprocessing())


@pytest.fixture(scope="module")
def batches(make_pair):
    return make_pair(behaviours.batches())


few = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("behaviour", behaviours.HANDLERS)
@few
@given(ELEMENTS)
def test_whatever_it_does(by_behaviour, behaviour, elements):
    by_behaviour.compare([(behaviour, element) for element in elements])


@few
@given(ELEMENTS)
def test_processing_around_it(processed, elements):
    processed.compare(elements)


@few
@given(st.lists(VALUES, max_size=9))
def test_weights_of_preprocessed_elements(weighed, elements):
    weighed.compare(elements)


@few
@given(st.lists(VALUES, max_size=9))
def test_keys_made_by_preprocessing(by_key_made_in_preprocessing, elements):
    by_key_made_in_preprocessing.compare(elements)


@few
@given(st.lists(VALUES, max_size=4))
def test_batches_as_elements(batches, elements):
    batches.compare(elements)

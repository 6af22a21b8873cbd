"""Compares a handler's outcomes in this process with those elsewhere, over arbitrary elements."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace

import behaviours
import numpy
from behaviours import description as described
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headrace import Failure, PredictionResult
from headrace.core.events import BatchCompleted, BatchFailed, ElementFailed, ElementsSkipped, ModelLoaded
from headrace.core.result import Skipped
from headrace.runtime.open_worker import open_worker
from headrace.runtime.placement import HostedWorker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from toys import fixed

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
    """Rows of the same structure, with arrays of one dtype and shape."""
    arrays = st.builds(npst.arrays, DTYPES, SHAPES)
    return arrays.flatmap(lambda rows: st.lists(rows.map(make), max_size=7))


ELEMENTS = st.one_of(
    st.lists(VALUES, max_size=7),
    alike(lambda array: array),
    alike(lambda array: (1, {"a": array, "b": "c"})),
    alike(lambda array: behaviours.Point(array, [array.copy()])),
)


class RecordedEvents:
    """Counts an observer's events, without times and without how elements were split among batches."""

    def __init__(self):
        self.counts = Counter()

    def on_event(self, event):
        match event:
            case BatchCompleted():
                self.counts["examples", event.model] += event.examples
            case ElementFailed():
                self.counts["failed", event.stage, repr(event.error)] += 1
            case ElementsSkipped():
                self.counts["skipped", event.model, event.stage] += event.elements
            case BatchFailed():
                self.counts["failed batches", event.model, repr(event.error)] += 1
            case ModelLoaded():
                self.counts["loads", event.model] += 1


class Pair:
    """One handler twice: in this process, and elsewhere. Their outcomes are kept until they are closed.

    Args:
        handler: for both.
        elsewhere: where, in the words of a ``Request``.
        size: of batches.
        batching: more of a ``BatchingConfig``.
    """

    def __init__(self, handler, elsewhere, size=3, **batching):
        request = {"batching": fixed(size, **batching)}
        here = catching(prepare(copy.deepcopy(handler), InferenceRequest(**request, placement="process")), Exception)
        there = catching(prepare(handler, InferenceRequest(**request, **elsewhere)), Exception)
        assert there.is_hosted_or_shared
        self._given = []
        with ExitStack() as stack:
            self._workers = [stack.enter_context(closing(open_worker(spec))) for spec in (here, there)]
            self._stack = stack.pop_all()
        self.is_hosted = isinstance(self._workers[1], HostedWorker)

    def compare(self, elements):
        told = RecordedEvents(), RecordedEvents()
        here, there = map(run, self._workers, (copy.deepcopy(elements), copy.deepcopy(elements)), told)
        expected = list(map(describe, here))
        assert list(map(describe, there)) == expected
        assert told[1].counts == told[0].counts
        skips = [one for outcomes in here for one in outcomes if isinstance(one, Skipped)]
        assert len(skips) == sum(count for (what, *_), count in told[0].counts.items() if what == "skipped")
        self._given.append((there, expected))

    def close(self):
        """Checks that the outcomes have not changed since, and need no host."""
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
        elif isinstance(outcome, Skipped):
            assert len(outcome.elements) == len(outcome.tags)
            for tag in outcome.tags:
                outcomes[tag].append(replace(outcome, tags=[tag], elements=[]))
        else:
            for tag, value in zip(outcome.tags, outcome.values, strict=True):
                outcomes[tag].append(value)


def describe(outcomes):
    return [
        one if isinstance(one, Skipped) else describe_failure(one) if isinstance(one, Failure) else described(one)
        for one in outcomes
    ]


def describe_failure(failure):
    element, (kind, text, lines) = pickle.loads(pickle.dumps(failure.record))
    assert kind is type(failure.error)
    code = getattr(failure.error, "code", None)
    return failure.stage, failure.index, behaviours.description(element), kind, text, lines[-1], code

"""A handler gives exactly what it gives in this process, wherever its model lives: values, failures and events."""

from __future__ import annotations

import copy
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent))  # hosts find what handlers need on it, too

import behaviours
from pairs import ELEMENTS, VALUES, Pair

PLACES = [
    pytest.param({"isolate": True}, id="in a host"),
    pytest.param({"placement": "machine"}, id="mapped", marks=pytest.mark.large),
    pytest.param({"placement": "machine", "isolate": True}, id="mapped by a host", marks=pytest.mark.large),
]


@pytest.fixture(scope="module", params=PLACES)
def make_pair(request, own_runtime):
    with own_runtime() if "placement" in request.param else ExitStack(), ExitStack() as stack:

        def make(handler, **batching):
            made = Pair(handler, request.param, **batching)
            stack.callback(made.close)
            return made

        yield make


few = settings(max_examples=15)


@pytest.fixture(scope="module")
def by_behaviour(make_pair):
    return make_pair(behaviours.by_behaviour())


@few
@given(ELEMENTS)
def test_behaviours_are_equal(by_behaviour, elements):
    by_behaviour.compare(for_each(behaviours.HANDLERS, elements))


def for_each(names, elements):
    """The elements anew for each behaviour, since some change them."""
    return [(name, element) for name in names for element in copy.deepcopy(elements)]


@pytest.fixture(scope="module")
def processed(make_pair):
    return make_pair(behaviours.processed())


@few
@given(ELEMENTS)
def test_pre_and_postprocessing_are_equal(processed, elements):
    processed.compare(elements)


@pytest.fixture(scope="module")
def weighed(make_pair):
    return make_pair(behaviours.weighed(), max_batch_weight=4, element_size_fn=behaviours.weight)


@few
@given(st.lists(VALUES, max_size=9))
def test_weights_of_preprocessed_elements_are_equal(weighed, elements):
    weighed.compare(elements)


@pytest.fixture(scope="module")
def by_key_made_in_preprocessing(make_pair):
    return make_pair(behaviours.by_key_made_in_preprocessing())


@few
@given(st.lists(VALUES, max_size=9))
def test_keys_made_by_preprocessing_are_equal(by_key_made_in_preprocessing, elements):
    by_key_made_in_preprocessing.compare(elements)


@pytest.fixture(scope="module")
def batches(make_pair):
    return make_pair(behaviours.batches())


@few
@given(st.lists(VALUES, max_size=4))
def test_batches_as_elements_are_equal(batches, elements):
    batches.compare(elements)


@pytest.fixture(scope="module")
def engines():
    """One of behaviours, and one with functions before and after, each in a host."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(Pair(engine, {"isolate": True})))
            for engine in (behaviours.EngineOfBehaviours(), behaviours.processed_engine())
        ]


@few
@given(ELEMENTS)
def test_engines_are_equal(engines, elements):
    by_behaviour, processed = engines
    by_behaviour.compare(for_each(behaviours.OF_ENGINES, elements))
    processed.compare(elements)

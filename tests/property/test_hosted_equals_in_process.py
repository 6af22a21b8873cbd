"""A handler in a host gives exactly what it gives in this process: values, failures and events."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent))  # hosts find what handlers need on it, too

import behaviours
from pairs import ELEMENTS, VALUES, Pair


@pytest.fixture(scope="module")
def make_pair():
    with ExitStack() as stack:

        def make(handler, **batching):
            made = Pair(handler, {"isolate": True}, **batching)
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
def test_behaviours_are_equal_in_a_host(by_behaviour, behaviour, elements):
    by_behaviour.compare([(behaviour, element) for element in elements])


@few
@given(ELEMENTS)
def test_pre_and_postprocessing_are_equal_in_a_host(processed, elements):
    processed.compare(elements)


@few
@given(st.lists(VALUES, max_size=9))
def test_weights_of_preprocessed_elements_are_equal_in_a_host(weighed, elements):
    weighed.compare(elements)


@few
@given(st.lists(VALUES, max_size=9))
def test_keys_made_by_preprocessing_are_equal_in_a_host(by_key_made_in_preprocessing, elements):
    by_key_made_in_preprocessing.compare(elements)


@few
@given(st.lists(VALUES, max_size=4))
def test_batches_as_elements_are_equal_in_a_host(batches, elements):
    batches.compare(elements)

"""An engine in a host gives exactly what it gives in this process: values, failures, skips and events."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent))  # hosts find what handlers need on it, too

import behaviours
from pairs import ELEMENTS, Pair

few = settings(max_examples=15)


@pytest.fixture(scope="module")
def make_pair():
    pairs = []

    def make(handler):
        pairs.append(Pair(handler, {"isolate": True}))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()


@pytest.fixture(scope="module")
def by_behaviour(make_pair):
    return make_pair(behaviours.EngineOfBehaviours())


@few
@given(ELEMENTS, st.data())
def test_behaviours_are_equal(by_behaviour, elements, data):
    names = st.sampled_from(sorted(behaviours.OF_ENGINES))
    by_behaviour.compare([(data.draw(names), element) for element in elements])


@pytest.fixture(scope="module")
def processed(make_pair):
    return make_pair(behaviours.processed_engine())


@few
@given(ELEMENTS)
def test_pre_and_postprocessing_are_equal(processed, elements):
    processed.compare(elements)

"""Bundles of several threads share their last batches: no outcome is lost or mixed up, no bundle waits needlessly."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batching.batcher import Batch
from headrace.batching.size import FixedSize
from headrace.core.config import BatchingConfig
from headrace.core.errors import PredictionCountError
from headrace.core.result import Caught, Failure, Predictions, Stage
from headrace.runtime.cross_bundle import CrossBundleBatching
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, prepare
from headrace.testing import DoublingHandler, FakeClock

SECS = 10


class Shared:
    """A ``CrossBundleBatching`` on a clock that stands still, and its batches."""

    def __init__(self, target=4, wait=threading.Condition.wait, names=(None,)):
        self.clock = FakeClock()
        config = BatchingConfig(max_batch_duration_secs=SECS)
        self.cross_bundle = CrossBundleBatching(config, {name: FixedSize(target) for name in names}, self.clock, wait)
        self.ran = []

    def run(self, name, batch):
        self.ran.append((name, list(batch.elements)))
        if "wrong" in batch.elements and len(batch.elements) > 1:
            raise PredictionCountError("wrong")
        if "bad" in batch.elements:
            raise ValueError("bad")
        good = [(tag, value) for tag, value in zip(batch.tags, batch.elements, strict=True) if value != "failing"]
        caught = Caught(ValueError(), [])
        failures = [
            Failure(tag, Stage.INFERENCE, 0, value, caught)
            for tag, value in zip(batch.tags, batch.elements, strict=True)
            if value == "failing"
        ]
        return [Predictions([tag for tag, _ in good], [value for _, value in good]), *failures]

    def finish(self, slot, *elements, name=None):
        return slot.finish([(name, batch_of(elements))] if elements else [], self.run)


def batch_of(elements):
    return Batch(list(elements), [f"tag of {element}" for element in elements])


def values(outcomes):
    """By tag: the value, or None for a failure."""
    found = {}
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            found[outcome.tag] = None
        else:
            found.update(zip(outcome.tags, outcome.values, strict=True))
    return found


def never(condition, seconds):
    raise AssertionError(f"waited for {seconds}")


def test_bundle_that_is_alone_does_not_wait():
    shared = Shared(wait=never)
    for _ in range(2):
        assert values(shared.finish(shared.cross_bundle.join(), 1, 2)) == {"tag of 1": 1, "tag of 2": 2}
    assert shared.ran == [(None, [1, 2])] * 2


def test_bundle_that_fills_a_batch_does_not_wait():
    shared = Shared(wait=never)
    shared.cross_bundle.join()
    assert len(values(shared.finish(shared.cross_bundle.join(), 1, 2, 3, 4))) == 4


def test_wait_ends_after_the_longest_duration():
    def wait(condition, seconds):
        waits.append(seconds)
        shared.clock.advance(seconds)

    waits = []
    shared = Shared(wait=wait)
    shared.cross_bundle.join()
    assert values(shared.finish(shared.cross_bundle.join(), 1)) == {"tag of 1": 1}
    assert waits == [SECS]


def in_two_threads(shared, first, second, *, names=(None, None)):
    """The outcomes of two bundles; the second ends once the first one waits."""
    waiting = threading.Event()

    def wait(condition, seconds):
        waiting.set()
        threading.Condition.wait(condition)

    shared.cross_bundle._wait = wait
    one, other = shared.cross_bundle.join(), shared.cross_bundle.join()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(shared.finish, one, *first, name=names[0])
        assert waiting.wait(10)
        try:
            mine = values(shared.finish(other, *second, name=names[1]))
        except ValueError as error:
            mine = error
        theirs = found.exception(10) or values(found.result(10))
    return theirs, mine


def test_bundles_share_a_batch_and_get_their_own_outcomes():
    shared = Shared()
    assert in_two_threads(shared, [1, 2], [3, 4]) == ({"tag of 1": 1, "tag of 2": 2}, {"tag of 3": 3, "tag of 4": 4})
    assert shared.ran == [(None, [1, 2, 3, 4])]


def test_last_bundle_to_end_does_not_wait_and_releases_the_others():
    shared = Shared()
    assert in_two_threads(shared, [1], [2]) == ({"tag of 1": 1}, {"tag of 2": 2})
    assert shared.ran == [(None, [1, 2])]


def test_failure_goes_to_its_own_bundle():
    shared = Shared()
    assert in_two_threads(shared, [1, "failing"], [2]) == ({"tag of 1": 1, "tag of failing": None}, {"tag of 2": 2})


@pytest.mark.parametrize(("first", "second"), [(["bad"], [1]), ([1], ["bad"])])
def test_bundle_does_not_fail_for_another_bundles_element(first, second):
    shared = Shared()
    theirs, mine = in_two_threads(shared, first, second)
    good, bad = (mine, theirs) if first == ["bad"] else (theirs, mine)
    assert good == {"tag of 1": 1}
    assert isinstance(bad, ValueError)


@pytest.mark.parametrize(("first", "second"), [(["wrong"], [1]), ([1], ["wrong"])])
def test_wrong_count_fails_all_bundles_of_its_batch(first, second):
    shared = Shared()
    assert [type(one) for one in in_two_threads(shared, first, second)] == [PredictionCountError] * 2
    assert len(shared.ran) == 1


def test_abandoned_bundle_is_not_waited_for():
    shared = Shared(wait=never)
    other = shared.cross_bundle.join()
    other.leave()
    assert values(shared.finish(shared.cross_bundle.join(), 1)) == {"tag of 1": 1}


def test_abandoned_bundles_elements_are_dropped():
    shared = Shared(wait=never)
    shared.cross_bundle.join()
    with pytest.raises(AssertionError, match="waited"):
        shared.finish(shared.cross_bundle.join(), "dropped")
    assert len(values(shared.finish(shared.cross_bundle.join(), 1, 2, 3, 4))) == 4
    assert shared.ran == [(None, [1, 2, 3, 4])]


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=5), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_threads_with_many_bundles_lose_nothing_and_never_hang(threads, target, bad):
    """Elements of 30 or more, and ``bad`` below it, raise: only their bundle fails."""

    def wait(condition, seconds):
        threading.Condition.wait(condition, 0.0005)  # lets others go on; time passes on the clock only
        shared.clock.advance((seconds or 0) / 2)

    shared = Shared(target, wait)

    def run(name, batch):
        assert len(batch.elements) <= target
        if any(value > 30 - bad for _, _, value in batch.elements):
            raise ValueError
        return [Predictions(batch.tags, batch.elements)]

    def go(number, bundles):
        for count, bundle in enumerate(bundles):
            slot = shared.cross_bundle.join()
            elements = [(number, count, value) for value in bundle]
            pieces = [elements[start : start + target] for start in range(0, len(elements), target)]
            is_bad = any(value > 30 - bad for value in bundle)
            try:
                outcomes = slot.finish([(None, Batch(piece, list(piece))) for piece in pieces], run)
            except ValueError:
                assert is_bad
            else:
                assert not is_bad
                assert sorted(values(outcomes)) == sorted(set(elements))
                assert all(tag == value for tag, value in values(outcomes).items())
        return True

    with ThreadPoolExecutor(len(threads)) as pool:
        runs = [pool.submit(go, number, bundles) for number, bundles in enumerate(threads)]
        assert all(one.result(20) for one in runs)
    assert not shared.cross_bundle._open
    assert all(made.due is None for made in shared.cross_bundle._pools.values())


@pytest.mark.parametrize("ends", ["bundle", "close"])
def test_worker_abandons_a_bundle_that_never_ended(ends):
    config = BatchingConfig(min_batch_size=4, max_batch_size=4, max_batch_duration_secs=SECS)
    spec = prepare(DoublingHandler(), InferenceRequest(batching=config))
    failed, other = open_worker(spec), open_worker(spec)
    failed.bundle(FanOut()).add(1, "a")
    assert len(failed.session.cross_bundle._open) == 1
    if ends == "close":
        failed.close()
    else:
        assert list(failed.bundle(FanOut()).finish()) == []
    bundle = other.bundle(FanOut())
    assert bundle.add(2, "b") == ()
    assert [(one.tags, [value.inference for value in one.values]) for one in bundle.finish()] == [(["b"], [4])]
    assert not other.session.cross_bundle._open
    other.close()
    if ends != "close":
        failed.close()


@pytest.mark.parametrize(
    ("options", "prebatched", "shares"),
    [
        ({}, False, False),
        ({"max_batch_duration_secs": 0}, False, False),
        ({"max_batch_duration_secs": 1}, False, True),
        ({"max_batch_duration_secs": 1}, True, False),
        ({"max_batch_duration_secs": 1, "length_fn": len}, False, True),
    ],
)
def test_bundles_share_only_in_suitable_plans(options, prebatched, shares):
    handler = DoublingHandler().with_no_batching() if prebatched else DoublingHandler()
    worker = open_worker(prepare(handler, InferenceRequest(batching=BatchingConfig(**options))))
    assert (worker.session.cross_bundle is not None) is shares
    worker.close()

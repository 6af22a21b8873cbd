"""The background thread: bounded, one per worker, ends with it; the bundle's thread reports its batches."""

from __future__ import annotations

import contextvars
import random
import sys
import threading
from concurrent.futures import wait

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import BatchingConfig, KeyedModelHandler, KeyModelMapping, ModelHandler
from headrace.core.events import BatchCompleted, ElementFailed
from headrace.core.phases import Phase, during, phase_of
from headrace.runtime.local_executor import AdaptiveOverlap, BackgroundThread
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.worker import Worker
from headrace.testing import FakeClock
from toys import Always, run

PLACE = contextvars.ContextVar("place", default="nowhere")


class Never(Always):
    def next_in_background(self):
        return False

    def record_inline(self, size, call, whole):
        pass


class Gated(ModelHandler):
    """Waits for permission before it answers."""

    def __init__(self):
        super().__init__()
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.threads, self.places, self.batches = set(), [], []

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        self.batches.append(batch)
        self.begun.release()
        self.go.acquire()
        self.threads.add(threading.current_thread())
        self.places.append(PLACE.get())
        if batch[0] < 0:
            raise ValueError(batch)
        return batch

    def allow(self, count):
        self.go.release(count)


class Told(list):
    """Keeps the thread of each event."""

    def on_event(self, event):
        self.append((type(event), threading.current_thread()))


@pytest.fixture
def handler():
    return Gated()


@pytest.fixture
def worker(handler):
    worker = Worker(catching(prepare(handler, InferenceRequest(batching=BatchingConfig(1, 1))), Exception))
    yield worker
    handler.allow(100)
    worker.close()


@pytest.fixture
def background(worker, handler):
    worker._background.policy = Always()
    yield worker._background
    handler.allow(100)


def values(outcomes):
    return [value for outcome in outcomes for value in getattr(outcome, "values", [outcome])]


def test_bundle_continues_while_one_batch_runs_and_one_waits(worker, background, handler, when_in):
    bundle = worker.bundle(Told())
    assert values(bundle.add(1, 1)) == []
    handler.begun.acquire()
    assert values(bundle.add(2, 2)) == []  # it waits, and nothing has come back
    assert (background.submitted, handler.batches) == (2, [[1]])
    when_in(BackgroundThread.collect, lambda: handler.allow(1))
    assert values(bundle.add(3, 3)) == [1]  # only when the first one has ended is there room
    handler.allow(2)
    assert values(bundle.finish()) == [2, 3]
    assert background.submitted == 0


def test_who_writes_outcomes_and_waits_for_them_does_not_write(worker, background, handler, monkeypatch):
    @during(Phase.WRITING)
    def write(outcomes):
        return values(outcomes)

    phases = []
    waiting = lambda futures: phases.append(phase_of(sys._getframe())) or wait(futures)  # noqa: E731 - one line
    monkeypatch.setattr("headrace.runtime.local_executor.wait", waiting)
    bundle = worker.bundle(Told())
    bundle.add(1, 1)
    handler.allow(1)
    assert write(bundle.finish()) == [1]
    assert phases == [None]


def test_background_thread_runs_all_batches_and_the_bundles_thread_reports_them(worker, background, handler):
    handler.allow(100)
    told = Told()
    PLACE.set("here")
    for _ in range(3):
        run(worker, [1, -1, 2, 3], told)
    assert len(handler.threads) == 1
    assert handler.threads.isdisjoint({threading.current_thread()})
    assert set(handler.places) == {"here"}
    assert {BatchCompleted, ElementFailed} <= {kind for kind, _ in told}
    assert {thread for _, thread in told} == {threading.current_thread()}


def test_background_thread_ends_with_the_worker(handler):
    before = set(threading.enumerate())
    handler.allow(100)
    worker = Worker(prepare(handler, InferenceRequest(batching=BatchingConfig(1, 1))))
    worker._background.policy = Always()
    bundle = worker.bundle(Told())
    assert set(threading.enumerate()) <= before  # none where none is needed
    bundle.add(1, 1)
    assert len(set(threading.enumerate()) - before) == 1
    worker.close()
    assert set(threading.enumerate()) <= before


def test_next_bundle_drops_the_batches_of_a_failed_one(worker, background, handler, when_in):
    failed = worker.bundle(Told())
    failed.add(1, 1)
    failed.add(2, 2)
    handler.begun.acquire()
    when_in(BackgroundThread.clear, lambda: handler.allow(100))
    bundle = worker.bundle(Told())
    assert values([*bundle.add(3, 3), *bundle.finish()]) == [3]
    assert handler.batches == [[1], [3]]


def test_times_of_background_batches_are_not_learnt_from(worker, background, handler):
    seen = []

    class Noting:
        def target(self):
            return 1

        def knows(self, size):
            return True

        def observe(self, size, seconds):
            seen.append(isinstance(seconds, float))

    worker.session.models[ONLY].sizes = Noting()
    handler.allow(100)
    for policy in (Never(), Always()):
        background.policy = policy
        run(worker, [1])
    assert seen == [True, False]


class Timed(ModelHandler):
    """Takes time by a clock that nothing else advances."""

    def __init__(self, clock, fixed, each):
        super().__init__()
        self.clock, self.fixed, self.each = clock, fixed, each
        self.sizes, self.threads = [], set()

    def load_model(self):
        self.clock.advance(0.5)

    def run_inference(self, batch, model, inference_args=None):
        self.clock.advance(self.fixed + self.each * len(batch))
        self.sizes.append(len(batch))
        self.threads.add(threading.current_thread())
        return batch


def run_all(handler, clock, elements, policy):
    worker = Worker(prepare(handler, InferenceRequest(clock=clock)))
    worker._background.policy = policy
    found = run(worker, elements, Told())
    worker.close()
    return found


@settings(deadline=None, max_examples=20)
@given(st.floats(0.01, 1), st.floats(1e-4, 1e-2))
def test_sizes_are_learnt_even_if_all_else_runs_in_the_background(fixed, each):
    sizes = []
    for policy in (Never(), Always()):
        handler = Timed(clock := FakeClock(), fixed, each)
        assert run_all(handler, clock, range(2000), policy) == [*range(2000)]
        sizes.append(handler.sizes)
    here, beside = sizes
    steps = min(len(here), 60)
    assert max(beside) >= max(here) / 2
    assert sum(beside[:steps]) >= sum(here[:steps]) / 4


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6))
def test_loads_are_no_time_that_the_background_would_save(seed):
    clock, chance = FakeClock(), random.Random(seed)
    handlers = [Timed(clock, 0.05, 0.001) for _ in range(5)]
    keyed = KeyedModelHandler([KeyModelMapping([n], one) for n, one in enumerate(handlers)], 2)
    run_all(keyed, clock, [(min(4, int(chance.expovariate(1))), n) for n in range(2000)], AdaptiveOverlap())
    assert set().union(*(one.threads for one in handlers)) == {threading.current_thread()}


def simulate(batches, *, call=0.1, idle=0.1, gain=1.0):
    """Whether each batch ran in the background, where overlap saves ``gain`` times the shorter part of its time."""
    policy, beside = AdaptiveOverlap(), []
    for _ in range(batches):
        beside.append(policy.next_in_background())
        if beside[-1]:
            policy.record_background(32, call + idle - gain * min(call, idle))
        else:
            policy.record_inline(32, call, call + idle)
    return beside


def test_overlap_is_used_for_nearly_all_batches_if_it_halves_the_time():
    beside = simulate(1000)
    assert not any(beside[:3])
    assert sum(beside) > 970
    assert not all(beside[500:])


def test_overlap_is_not_used_without_a_gain():
    for times in ({"call": 0.0019}, {"idle": 0.0004}, {"call": 1, "idle": 0.05}, {"call": 0.0}, {"idle": 0.0}):
        assert not any(simulate(1000, **times)), times
    beside = simulate(10_000, gain=0.05)  # which shows only when it is tried
    assert 0 < sum(beside) < 150
    assert sum(beside[5000:]) <= 48


def test_overlap_that_pays_later_is_found():
    policy, late = AdaptiveOverlap(), 0
    for n in range(8000):
        pays = n > 1000
        if policy.next_in_background():
            policy.record_background(32, 0.1 if pays else 0.2)
            late += pays
        else:
            policy.record_inline(32, 0.1, 0.2)
    assert late > 5000


@given(st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1), st.floats(0, 1)), max_size=300))
def test_overlap_periods_are_finite_for_any_times(batches):
    policy, in_a_row = AdaptiveOverlap(), 0
    for size, call, idle in batches * 3:
        if policy.next_in_background():
            policy.record_background(size, call)
            in_a_row += 1
        else:
            policy.record_inline(size, call, call + idle)
            in_a_row = 0
        assert in_a_row <= 128

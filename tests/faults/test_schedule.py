"""Hundreds of faults, from outside and from elements: no element is lost, doubled or wrongly blamed."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections import Counter
from itertools import chain

import pytest

from headrace import BatchingConfig, Failure
from headrace.core.errors import HostDiedError
from headrace.core.result import Stage
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.testing import DoublingHandler, hang_holding_gil, segfault

pytestmark = pytest.mark.large

THREADS = 3
BATCH = 8
BUNDLE = 5 * BATCH
MINED = 2400
"""So many elements of each thread hold all faults; then come others until the outsider has done what it will."""
APART = 10**6
"""Between the first elements of two threads."""
TIMEOUT = 0.8


def refuse():
    raise ValueError("refused")


DEATHS = [
    functools.partial(signal.raise_signal, signal.SIGKILL),
    functools.partial(os._exit, 3),
    functools.partial(sys.exit, 4),
    os.abort,
    segfault,
]
ERRORS = {refuse: ValueError, hang_holding_gil: TimeoutError}


class Minefield(DoublingHandler):
    """Commits the fault of each example that has one."""

    def __init__(self, faults):
        super().__init__()
        self._faults = faults

    def run_inference(self, batch, model, inference_args=None):
        for example in batch:
            self._faults.get(example, bool)()
        return super().run_inference(batch, model, inference_args)


class Mine:
    """A pre- or postprocessing function, slow enough that the outsider often strikes during it."""

    def __init__(self, faults):
        self._faults = faults

    def __call__(self, value):
        self._faults.get(getattr(value, "example", value), bool)()
        sum(range(3000))
        return value


class Thread(threading.Thread):
    """Takes elements through a worker of its own, bundle by bundle, until it may stop."""

    def __init__(self, spec, first, may_stop):
        super().__init__(daemon=True)
        self._spec = pickle.loads(pickle.dumps(spec))
        self._may_stop = may_stop
        self.elements = range(first, first)
        self.outcomes = []
        self.error = None

    def run(self):
        try:
            worker = open_worker(self._spec)
            try:
                while len(self.elements) < MINED or not self._may_stop():
                    self._run_bundle(worker.bundle(FanOut()))
            finally:
                worker.close()
        except BaseException as error:
            self.error = error

    def _run_bundle(self, bundle):
        start = self.elements.stop
        for element in range(start, start + BUNDLE):
            self.outcomes += bundle.add(element, element)
        self.outcomes += bundle.finish()
        self.elements = range(self.elements.start, start + BUNDLE)


class Outsider:
    """Kills the host at random moments, and now and then its fork server.

    A batch may be its victim only once: of an element in whose operation hosts die twice nobody could say that it is
    innocent. So between its deeds it waits until every thread has settled three more batches.
    """

    def __init__(self, census, goal, randomness):
        self._census = census
        self._goal = goal
        self._random = randomness
        self.deeds = Counter()
        self.is_done = threading.Event()

    def run(self, threads):
        """Kills until the goal is reached, a thread has failed, or the deadline passes."""
        settled = [0] * len(threads)
        deadline = time.monotonic() + 60
        while self._is_at_it(threads) and time.monotonic() < deadline:
            if all(len(thread.outcomes) > before + 3 for thread, before in zip(threads, settled, strict=True)):
                time.sleep(self._random.uniform(0, 0.01))
                self._kill()
                settled = [len(thread.outcomes) for thread in threads]
            time.sleep(0.001)
        self.is_done.set()

    def _is_at_it(self, threads):
        return self.deeds.total() < self._goal and all(thread.is_alive() for thread in threads)

    def _kill(self):
        whom = "fork_server" if self._random.random() < 0.04 else "host"
        for process in self._census.fork_servers() if whom == "fork_server" else self._census.hosts():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                self.deeds[whom] += 1


def lay(randomness, counts):
    """Faults for so many elements each, at most one in a batch."""
    batches = [n * APART + start for n in range(THREADS) for start in range(0, MINED, BATCH)]
    faults = [fault for fault, count in counts.items() for _ in range(count)]
    starts = randomness.sample(batches, len(faults))
    return {start + randomness.randrange(BATCH): fault for start, fault in zip(starts, faults, strict=True)}


def run(handler, census, goal, randomness):
    """Elements and their outcomes, after the outsider has killed ``goal`` times."""
    request = InferenceRequest(batching=BatchingConfig(BATCH, BATCH), timeout_secs=TIMEOUT)
    spec = catching(prepare(handler, request), Exception)
    outsider = Outsider(census, goal, randomness)
    threads = [Thread(spec, n * APART, outsider.is_done.is_set) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    outsider.run(threads)
    for thread in threads:
        thread.join()
    assert [thread.error for thread in threads] == [None] * THREADS
    assert outsider.deeds.total() >= goal
    print(dict(outsider.deeds))
    return (list(chain.from_iterable(getattr(one, name) for one in threads)) for name in ("elements", "outcomes"))


def assert_exact(outcomes, elements, faults, stage_of):
    """Each element has one outcome: its prediction, or the failure of its own fault."""
    good, bad = {}, {}
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            bad[outcome.tag] = outcome
        else:
            good.update(zip(outcome.tags, outcome.values, strict=True))
    counts = Counter(tag for one in outcomes for tag in ([one.tag] if isinstance(one, Failure) else one.tags))
    assert set(counts.values()) == {1}
    assert {tag: value.inference for tag, value in good.items()} == {n: 2 * n for n in elements if n not in faults}
    assert {tag: (type(one.error), one.stage) for tag, one in bad.items()} == {
        tag: (ERRORS.get(fault, HostDiedError), stage_of(tag)) for tag, fault in faults.items()
    }
    assert all(getattr(one.element, "example", one.element) == tag for tag, one in bad.items())


def test_scheduled_faults_in_inference_fail_only_their_elements(census, seed):
    """50 from outside, 10 deaths, a hang and 30 exceptions."""
    randomness = random.Random(seed)
    faults = lay(randomness, {**dict.fromkeys(DEATHS, 2), refuse: 30, hang_holding_gil: 1})
    elements, outcomes = run(Minefield(faults), census, 50, randomness)
    assert_exact(outcomes, elements, faults, lambda tag: Stage.INFERENCE)


def test_scheduled_faults_in_all_operations_fail_only_their_elements(census, seed):
    """70 from outside, 15 deaths, 2 hangs and 45 exceptions."""
    randomness = random.Random(seed)
    faults = lay(randomness, {**dict.fromkeys(DEATHS, 3), refuse: 45, hang_holding_gil: 2})
    stages = {tag: randomness.choice(list(Stage)) for tag in faults}
    of = {stage: {tag: fault for tag, fault in faults.items() if stages[tag] is stage} for stage in Stage}
    handler = Minefield(of[Stage.INFERENCE])
    handler = handler.with_preprocess_fn(Mine(of[Stage.PREPROCESSING]))
    handler = handler.with_postprocess_fn(Mine(of[Stage.POSTPROCESSING]))
    elements, outcomes = run(handler, census, 70, randomness)
    assert_exact(outcomes, elements, faults, stages.get)

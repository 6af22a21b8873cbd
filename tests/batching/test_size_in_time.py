"""Sizes stay well below a time limit and shrink after a timeout; with the real search for hanging elements."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass

import pytest

from headrace import BatchingConfig
from headrace.batching.size import MemoryLimitedSize, SizeController, Untimed, size_controller
from headrace.core.result import Stage
from headrace.failures.search import FailureSearch, LostBatch

RELOAD_SECS = 0.5


def quiet(seconds, randomness):
    return seconds * randomness.lognormvariate(0, 0.02)


def noisy(seconds, randomness):
    return seconds * randomness.lognormvariate(0, 0.1)


def stalling(seconds, randomness):
    """One batch in fifty takes fifty times as long."""
    return noisy(seconds, randomness) * (50 if randomness.random() < 0.02 else 1)


@dataclass
class Machine:
    """Runs rows in batches through a host that is killed when a batch takes longer than ``timeout`` seconds."""

    config: BatchingConfig
    timeout: float
    time_of: Callable[[int], float]
    """Seconds for a batch of a size."""
    noise: Callable[[float, random.Random], float] = quiet
    """What the machine makes of that."""
    seed: int = 0
    hanging: Collection[int] = ()
    """Rows that never end."""

    def __post_init__(self):
        self.sizes, self.random = size_controller(self.config, self.timeout), random.Random(self.seed)
        self.spent, self.timeouts = 0.0, 0
        self.formed, self.failed = [], []

    def run(self, rows):
        start = 0
        while start < rows:
            positions = range(start, min(rows, start + self.sizes.target()))
            self.formed.append(len(positions))
            first = self.call(positions)
            if isinstance(first, LostBatch):
                self.isolate_fatal(positions, first)
            start = positions.stop
        return self

    def call(self, positions, _sentences=None):
        seconds = self.noise(self.time_of(len(positions)), self.random)
        if seconds > self.timeout or set(self.hanging).intersection(positions):
            self.spent += self.timeout + RELOAD_SECS
            self.timeouts += 1
            return LostBatch(TimeoutError(), timed_out=True, stage=Stage.INFERENCE)
        self.spent += seconds
        self.sizes.observe(len(positions), seconds)
        return "answer"

    def isolate_fatal(self, positions, first):
        search = FailureSearch(
            self.call,
            gives_up_single=True,
            too_large=lambda group: self.sizes.observe(len(group), Untimed.OVERRAN),
        )
        parts = search.among(positions, first)
        self.failed += [position for part, answer in parts if isinstance(answer, LostBatch) for position in part]


def line(fixed, each):
    return lambda size: fixed + each * size


def cliff(size):
    """A cache, or a GPU's memory, is full."""
    return 0.05 + 0.002 * size * (1 if size <= 64 else 10)


def quadratic(size):
    return 0.02 + 0.0002 * size**2


MODELS = {
    "the limit is in the way": (line(0.05, 0.002), 0.6, 1.2, 0),
    "the limit is far away": (line(0.05, 0.002), 10.0, 1.2, 0),
    "few rows fit": (line(0.01, 0.05), 0.6, 1.2, 0),
    "the fixed cost takes most of it": (line(0.4, 0.001), 0.6, 3.5, 6),
    "a cliff": (cliff, 0.6, 1.5, 6),
    "quadratic": (quadratic, 0.6, 1.3, 3),
}
"""Seconds by size; the limit; what all takes at most, as a multiple of what it takes in the best batches that fit; and
the number of timeouts."""


@pytest.mark.parametrize("model", MODELS)
def test_timeouts_cost_little_time_and_no_element(model):
    time_of, timeout, most, timeouts = MODELS[model]
    best = max(size / time_of(size) for size in range(1, 10_000) if time_of(size) <= timeout)
    machines = [Machine(BatchingConfig(), timeout, time_of, noisy, seed).run(4000) for seed in range(5)]
    assert statistics.median(machine.spent for machine in machines) < most * 4000 / best
    assert max(machine.timeouts for machine in machines) <= timeouts
    assert [machine.failed for machine in machines] == [[]] * 5


def test_the_first_batches_are_small_and_twice_as_large_ones_would_be_in_time():
    machine = Machine(BatchingConfig(), 0.6, line(0.05, 0.002)).run(4000)
    assert machine.formed[:4] == [1, 2, 4, 8]
    assert 100 < statistics.median(machine.formed[-20:]) <= 140
    assert max(machine.formed) < 275 * 0.75


@pytest.mark.parametrize("size", [64, 512])
def test_a_fixed_size_that_times_out_is_reduced(size):
    """25 rows take as long as they may."""
    machine = Machine(BatchingConfig(size, size), 0.1, line(0.05, 0.002), noisy).run(8000)
    assert 8 <= statistics.median(machine.formed) <= 16
    assert machine.timeouts <= 8
    assert machine.failed == []


@pytest.mark.parametrize("config", [BatchingConfig(), BatchingConfig(128, 128)])
def test_rows_that_hang_fail_alone_and_batches_stay_as_large(config):
    hanging = [1000, 3000, 3001, 5000]
    machine = Machine(config, 0.6, line(0.05, 0.002), hanging=hanging).run(8000)
    assert machine.failed == hanging
    assert machine.timeouts <= 4 * 3
    assert statistics.median(machine.formed[20:]) > 100


@pytest.mark.parametrize("seed", range(3))
def test_stalls_make_batches_small_for_a_while_only(seed):
    """Rows stall only in batches: one that stalls alone could not be told from one that hangs."""
    machine = Machine(BatchingConfig(), 0.6, line(0.05, 0.002), stalling, seed).run(2000)
    assert machine.timeouts < 0.1 * len(machine.formed) + 10
    machine.noise = quiet
    machine.formed.clear()
    machine.run(20_000)
    assert statistics.median(machine.formed[-20:]) > 100


def test_a_model_that_becomes_slower_gets_smaller_batches():
    machine = Machine(BatchingConfig(), 0.6, line(0.05, 0.002)).run(4000)
    machine.time_of = line(0.05, 0.02)
    machine.formed.clear()
    machine.run(1000)
    assert machine.timeouts <= 3
    assert statistics.median(machine.formed[-10:]) <= 20  # 27 take as long as they may
    assert machine.failed == []


def test_sizes_grow_again_after_one_that_failed():
    """With a size of three halves, no batch could have been about as large."""
    sizes = MemoryLimitedSize(SizeController(64))
    sizes.observe(3, Untimed.OUT_OF_MEMORY)
    assert sizes.target() == 1
    for _ in range(8):
        sizes.observe(1, 0.1)
    assert sizes.target() == 2

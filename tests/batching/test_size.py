"""Batch sizes follow the model's measured times, within their bounds."""

from __future__ import annotations

import math
import random
import statistics

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import BatchingConfig
from headrace.batching.size import AdaptiveSize, MemoryLimitedSize, SizeController, Untimed, fit_line, size_controller


def sizes_for(config, fixed, each, batches=60):
    """The sizes of batches of a model that takes ``fixed + each * n`` seconds."""
    controller = size_controller(config)
    sizes = []
    for _ in range(batches):
        size = controller.target()
        controller.observe(size, fixed + each * size)
        sizes.append(size)
    return sizes


@pytest.mark.parametrize(
    ("targets", "size"),
    [
        ({"target_batch_overhead": None, "target_batch_duration_secs": 0.5}, 500),
        ({"target_batch_duration_secs_including_fixed_cost": 0.5}, 400),
        ({"target_batch_overhead": 0.05, "target_batch_duration_secs": 0.1}, 100),
    ],
)
def test_the_tightest_target_decides(targets, size):
    assert sizes_for(BatchingConfig(**targets, variance=0.0), fixed=0.1, each=0.001)[-1] == pytest.approx(size, abs=1)
    assert len(set(sizes_for(BatchingConfig(**targets), fixed=0.1, each=0.001)[-8:])) > 1


@given(
    st.integers(1, 50), st.integers(0, 500), st.lists(st.floats(1e-6, 10), min_size=1, max_size=150), st.floats(0, 0.9)
)
def test_sizes_stay_within_bounds_for_any_times(smallest, more, seconds, variance):
    config = BatchingConfig(min_batch_size=smallest, max_batch_size=smallest + more, variance=variance)
    controller = AdaptiveSize(config)
    largest_seen = smallest
    for taken in seconds:
        size = controller.target()
        assert smallest <= size <= smallest + more
        assert size <= 2 * largest_seen
        largest_seen = max(largest_seen, size)
        controller.observe(size, taken)


@given(st.floats(0, 5), st.floats(1e-4, 5))
def test_fixed_and_variable_costs_are_found(fixed, each):
    found_fixed, found_each = fit_line([(n, fixed + each * n) for n in (1.0, 5.0, 20.0)])
    assert found_fixed == pytest.approx(fixed, abs=1e-6)
    assert found_each == pytest.approx(each, rel=1e-6, abs=1e-9)


@given(st.sets(st.integers(0, 9), max_size=2))
def test_a_few_long_pauses_do_not_shift_the_line(paused):
    points = [(float(2**n), 0.1 + 0.001 * 2**n + 5.0 * (n in paused)) for n in range(10)]
    fixed, each = fit_line(points)
    assert fixed == pytest.approx(0.1, rel=0.01)
    assert each == pytest.approx(0.001, rel=0.01)


class Machine:
    """Runs batches of a model that needs one unit of memory per element, and splits those that do not fit."""

    def __init__(self, controller, memory):
        self.controller = controller
        self.memory = memory
        self.failed = 0

    def run(self, size):
        left = size
        while left > 0:
            part = min(size, left)
            fits = part <= self.memory
            self.controller.observe(part, 1e-3 + 1e-5 * part if fits else Untimed.OUT_OF_MEMORY)
            self.failed += not fits
            left -= part * fits
            size = size if fits else part // 2

    def batches(self, count):
        sizes = []
        for _ in range(count):
            sizes.append(self.controller.target())
            self.run(sizes[-1])
        return sizes


@pytest.mark.parametrize("config", [BatchingConfig(), BatchingConfig(min_batch_size=512, max_batch_size=512)])
@pytest.mark.parametrize("memory", [1, 3, 100, 500])
def test_sizes_stay_within_memory_and_rarely_probe_it(config, memory):
    machine = Machine(size_controller(config), memory)
    sizes = machine.batches(1000)
    assert sizes[-1] <= 1.25 * memory + 1
    assert sum(sizes[500:]) / 500 > 0.7 * memory
    assert machine.failed < 30


def test_sizes_follow_memory_that_comes_back():
    machine = Machine(size_controller(BatchingConfig(min_batch_size=64, max_batch_size=64)), 10)
    assert max(machine.batches(50)[20:]) <= 13
    machine.memory = 1000
    assert machine.batches(2000)[-1] == 64


def noisy(seconds, randomness, number):
    """A time as a busy machine takes it: a tenth more or less, and occasionally fifty times as long."""
    return seconds * randomness.lognormvariate(0, 0.1) * (50 if randomness.random() < 0.02 else 1)


def in_spells(seconds, randomness, number):
    """Times on a machine that others use in spells."""
    return seconds * (1 + randomness.expovariate(25)) * (randomness.uniform(1.2, 1.9) if number % 45 >= 30 else 1)


def between(*points):
    """The time of a batch by its size, from (size, elements a second) that were measured."""
    sizes, rates = zip(*points, strict=True)
    times = [size / rate for size, rate in points]
    return lambda size: float(numpy.interp(size, sizes, times)) if size <= sizes[-1] else size / rates[-1]


CONVOLUTIONAL = between((1, 5500), (2, 6000), (4, 8000), (16, 11600), (32, 12000), (64, 11200), (128, 6500))
TRANSFORMER = between((1, 1700), (2, 2250), (4, 2550), (8, 2700), (16, 2850), (32, 2900), (64, 2750), (128, 2550))
LOGISTIC = between((1, 1e4), (8, 8e4), (64, 5.2e5), (256, 1.26e6), (1024, 1.92e6), (3000, 2.15e6), (8000, 1.85e6))


def settled_shares(time_of, noise=noisy):
    """The shares of the best throughput that sizes after the fiftieth reach, on machines that start cold."""
    best = max(n / time_of(n) for n in range(1, 10_001))
    for seed in range(20):
        randomness, controller, sizes = random.Random(seed), size_controller(BatchingConfig()), []
        for number in range(120):
            sizes.append(controller.target())
            cold = 100 if number == 0 else 1.5 if number < 8 else 1
            controller.observe(sizes[-1], noise(time_of(sizes[-1]), randomness, number + seed) * cold)
        yield sum(sizes[50:]) / sum(map(time_of, sizes[50:])) / best


@pytest.mark.parametrize(("fixed", "each"), [(1e-4, 5e-7), (2e-3, 3e-4), (0.5, 0.01), (1e-6, 1e-3)])
def test_size_is_nearly_the_best_within_fifty_batches(fixed, each):
    shares = [*settled_shares(lambda n: fixed + each * n)]
    assert statistics.median(shares) > 0.95
    assert min(shares) > 0.87


@pytest.mark.large
@pytest.mark.parametrize("time_of", [CONVOLUTIONAL, TRANSFORMER, LOGISTIC])
@pytest.mark.parametrize(("noise", "goal"), [(noisy, 0.95), (in_spells, 0.9)])
def test_measured_models_nearly_reach_their_best_throughput(time_of, noise, goal):
    assert statistics.median(settled_shares(time_of, noise)) > goal


def test_sizes_at_which_a_model_slows_down_are_mostly_avoided():
    shares = settled_shares(lambda n: 1e-3 + 1e-4 * n * (1 if n <= 64 else 1.5))
    assert statistics.median(shares) > 0.87  # at the largest sizes it would be 0.75


@pytest.mark.parametrize("each", [1e-5, 1e-3, 0.4])
def test_a_batch_stays_within_its_time_limit(each):
    config = BatchingConfig(target_batch_duration_secs_including_fixed_cost=0.5)
    sizes = sizes_for(config, fixed=0.01, each=each)
    assert max(0.01 + each * size for size in sizes[2:]) <= 0.5 + 1e-9  # the second one tells what an element takes


def test_one_slow_batch_does_not_keep_batches_small_for_ever():
    controller = AdaptiveSize(BatchingConfig())
    for number in range(20):
        size = controller.target()
        controller.observe(size, (0.14 if number == 1 else 0.065 if number == 0 else 2e-4 + 2.5e-5 * size))
    sizes = []
    for _ in range(8):  # some are trials, so a single one says little
        sizes.append(controller.target())
        controller.observe(sizes[-1], 2e-4 + 2.5e-5 * sizes[-1])
    assert statistics.median(sizes) > 50


def test_a_batch_of_unknown_time_shows_only_that_memory_sufficed():
    controller, other = (size_controller(BatchingConfig(max_batch_size=64)) for _ in range(2))
    for one in (controller, other):
        one.observe(8, 0.1)
        one.observe(16, Untimed.OUT_OF_MEMORY)
    for _ in range(8):
        controller.observe(8, Untimed.NOT_ALONE)
        other.observe(8, 0.1)
    assert controller.max_size() == other.max_size() > 8
    assert controller.target() == other.target()


def test_overhead_of_a_batch_is_its_fixed_cost_in_elements():
    sizes = AdaptiveSize(BatchingConfig())
    assert sizes.overhead() == 0
    for size in (1, 2, 4, 8, 16, 32, 64):
        sizes.observe(size, 0.1 + 0.01 * size)
    sizes.target()
    assert sizes.overhead() == pytest.approx(10)
    assert MemoryLimitedSize(sizes).overhead() == sizes.overhead()
    assert SizeController(3).overhead() == math.inf

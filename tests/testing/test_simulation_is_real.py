"""The simulation does what the runtime does: both under a clock that only models advance, batch by batch."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import headrace
from headrace.models.admission import MemoryBudget
from headrace.testing import FakeClock, simulate

CLOCK = FakeClock()
SEEN: list[tuple[str, int]] = []
LOADS: Counter[str] = Counter()
MODEL = {"load_seconds": 3, "memory_gb": 1.0, "batch_seconds": {"fixed": 0.02, "per_row": 0.001}}
NAMES = [f"m{number}" for number in range(6)]
KEYED = {"rows": 5_000, "route": "keyed", "zipf": 1.0, "models": dict.fromkeys(NAMES, MODEL)}


class Weights:
    """A model of a gigabyte."""

    used = 0

    def __init__(self, name):
        self.name = name
        Weights.used += 10**9

    def __del__(self):
        Weights.used -= 10**9


class Timed(headrace.ModelHandler):
    """Takes as long as ``MODEL`` says, by ``CLOCK``."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def load_model(self):
        LOADS[self.name] += 1
        CLOCK.advance(3)
        return Weights(self.name)

    def run_inference(self, batch, model, inference_args=None):
        SEEN.append((model.name, len(batch)))
        CLOCK.advance(0.02 + 0.001 * len(batch))
        return batch


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """Handlers are copied, and with them the clock: all copies are to be one."""
    monkeypatch.setattr(FakeClock, "__reduce__", lambda self: (_clock, ()), raising=False)
    SEEN.clear()
    LOADS.clear()


def _clock():
    return CLOCK


def seconds_of(handler, elements, **options):
    began = CLOCK.seconds()
    batching = headrace.BatchingConfig(clock=CLOCK.seconds, overlap=False, **options)
    assert len(list(headrace.predict(handler, elements, batching=batching))) == len(elements)
    return CLOCK.seconds() - began


def compare(found, seconds):
    assert found.seconds == pytest.approx(seconds, abs=1e-3)
    assert found.loads == LOADS
    assert found.batches == Counter(name for name, _ in SEEN)
    rows = Counter()
    for name, size in SEEN:
        rows[name] += size
    assert found.batch_rows == {name: pytest.approx(rows[name] / found.batches[name]) for name in rows}


@pytest.mark.parametrize("options", [{}, {"min_batch_size": 100, "max_batch_size": 100}, {"max_batch_size": 50}])
def test_one_model(options):
    found = simulate({"rows": 10_000, "models": {"m": {**MODEL, **options}}})
    compare(found, seconds_of(Timed("m"), [0] * 10_000, **options))


def compare_keyed(limit=None, **changes):
    found = simulate({**KEYED, **changes})
    keys = random.Random("0 0").choices(NAMES, [1 / (rank + 1) for rank in range(6)], k=5_000)
    handler = headrace.KeyedModelHandler([headrace.KeyModelMapping([name], Timed(name)) for name in NAMES], limit)
    compare(found, seconds_of(handler, [(key, 0) for key in keys]))
    return found


@pytest.mark.parametrize("limit", [2, 4, 6])
def test_models_by_key_of_which_some_are_in_memory(limit):
    compare_keyed(limit, max_models=limit)


@pytest.mark.parametrize("memory", [2.5, 4.5, 8])
def test_models_by_key_as_far_as_memory_goes(memory, monkeypatch):
    limit = round(memory * 10**9)
    figures = (lambda: limit - Weights.used, lambda: limit, lambda: Weights.used)
    monkeypatch.setattr("headrace.runtime.session.MemoryBudget", lambda **_: MemoryBudget(*figures))
    found = compare_keyed(machines={"memory_gb": memory, "memory_per_worker_gb": 0})
    assert bool(found.evictions) == (memory < 6)

"""Models by key: within the limit, loaded rarely, each with batches of its own, wherever they live."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from headrace import KeyedModelHandler, KeyModelMapping, ModelHandler, predict
from headrace.models import admission
from headrace.models.memory import resident_bytes
from toys import fixed

pytestmark = pytest.mark.usefixtures("module_travels")

MIB = 1 << 20
WAYS = [{"placement": "process"}, {"placement": "process", "isolate": True}, {"placement": "machine"}]
WAY_IDS = ["process", "isolated", "machine"]


class Notes:
    """A model that records when it is created and freed."""

    def __init__(self, name, path):
        self.name, self.path = name, path
        self.owner = None
        self.note("+")

    def note(self, what):
        with open(self.path, "a") as notes:
            notes.write(f"{what} {os.getpid()} {self.name}\n")

    def __reduce__(self):
        return Mapped, (self.name, self.path)

    def __del__(self):
        self.note("-")


def Mapped(name, path):
    """A copy in another process is no load."""
    return Notes(name, path)


class Named(ModelHandler):
    """Predicts its name and the size of the batch."""

    def __init__(self, name, path, **options):
        super().__init__(**options)
        self.name, self.path = name, str(path)

    def load_model(self):
        return Notes(self.name, self.path)

    def run_inference(self, batch, model, inference_args=None):
        return [(example, model.name, len(batch)) for example in batch]


def keyed(path, count=6):
    return KeyedModelHandler([KeyModelMapping([n, str(n)], Named(n, path)) for n in range(count)], 2)


def most_alive(path):
    """In one process."""
    alive, most = Counter(), Counter()
    for line in Path(path).read_text().splitlines():
        what, process, _ = line.split()
        alive[process] += 1 if what == "+" else -1
        most[process] = max(most[process], alive[process])
    return max(most.values())


def loads(path):
    return Path(path).read_text().count("+")


def pairs(count, models=6):
    rng = random.Random(count)
    return [(rng.randrange(models), n) for n in range(count)]


@pytest.mark.large
@pytest.mark.parametrize("way", WAYS, ids=WAY_IDS)
def test_models_stay_within_the_limit_and_load_once(tmp_path, way):
    elements = pairs(300)
    found = list(predict(keyed(tmp_path / "notes"), elements, **way))
    assert sorted((key, example) for key, (example, _, _) in found) == sorted(elements)
    assert all(key == name for key, (_, name, _) in found)
    # what a process has loaded for the machine is there for a moment beside its mapping
    assert most_alive(tmp_path / "notes") <= 2 + (way["placement"] == "machine")
    if way["placement"] != "machine":
        assert loads(tmp_path / "notes") <= 6


def test_functions_get_the_pair_and_may_change_the_key(tmp_path):
    handler = keyed(tmp_path / "notes", 2)
    handler = handler.with_preprocess_fn(lambda pair: (1 - pair[0], pair[1] * 10))
    handler = handler.with_postprocess_fn(lambda pair: (f"key {pair[0]}", pair[1][:2]))
    assert sorted(predict(handler, [(0, 1), (1, 2)], placement="process")) == [("key 0", (20, 0)), ("key 1", (10, 1))]


def test_models_have_the_batching_options_of_their_own_handlers(tmp_path):
    own = [
        Named(0, tmp_path / "notes", min_batch_size=2, max_batch_size=2),
        Named(1, tmp_path / "notes", max_batch_weight=30, element_size_fn=int, min_batch_size=3, max_batch_size=3),
        Named(2, tmp_path / "notes"),
    ]

    class Sized(KeyedModelHandler):
        def batch_elements_kwargs(self):
            return {"min_batch_size": 6, "max_batch_size": 6}

    handler = Sized([KeyModelMapping([n], one) for n, one in enumerate(own)])
    elements = [(key, n) for key in range(3) for n in (0, 30, 1, 2, 9, 8)]
    found = predict(handler, elements, placement="process")
    sizes = {(key, example): size for key, (example, _, size) in found}
    assert [sizes[0, n] for n in (0, 30, 1, 2, 9, 8)] == [2] * 6
    assert [sizes[1, n] for n in (30, 9, 8, 2, 1, 0)] == [1, 3, 3, 3, 2, 2]
    assert [sizes[2, n] for n in (0, 30, 1, 2, 9, 8)] == [6] * 6
    everywhere = predict(handler, elements, batching=fixed(4), placement="process")
    assert {size for _, (_, _, size) in everywhere} == {4, 2}


class Large(Named):
    def load_model(self):
        return bytearray(b"x") * (48 * MIB)

    def run_inference(self, batch, model, inference_args=None):
        return [(resident_bytes(), len(model)) for _ in batch]


def large(count, limit=None):
    return KeyedModelHandler([KeyModelMapping([n], Large(n, "")) for n in range(count)], limit)


@pytest.mark.large
def test_models_without_a_limit_stay_within_available_memory(monkeypatch):
    """There is room for three models and a margin; afterwards their memory is free again."""
    before = resident_bytes()
    limit = 200 * MIB
    figures = (lambda: limit - (resident_bytes() - before), lambda: limit, resident_bytes)
    monkeypatch.setattr(admission.MemoryBudget.__init__, "__defaults__", figures)
    seen = [nbytes for _, (nbytes, _) in predict(large(8), [(n, n) for n in range(8)], placement="process")]
    assert len(seen) == 8
    assert max(seen) - before < limit
    assert resident_bytes() - before < 40 * MIB


@pytest.mark.large
@pytest.mark.parametrize("way", WAYS, ids=WAY_IDS)
def test_evicted_models_free_their_memory(way):
    before = resident_bytes()
    handler = large(4, 1)
    seen = [nbytes for _, (nbytes, _) in predict(handler, [(n, n) for n in range(4)], **way)]
    if "isolate" not in way and way["placement"] == "process":
        assert max(seen) - before < 2 * 48 * MIB
    assert max(seen) - min(seen) < 48 * MIB
    assert resident_bytes() - before < 40 * MIB

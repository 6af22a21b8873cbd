"""A keyed handler's models, outside the runner: a limit is a limit, however many threads ask."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from headrace.core.handler import ModelHandler
from headrace.core.on_demand import ModelsOnDemand


class Census:
    """Counts what is alive."""

    lock, alive, most, loads = threading.Lock(), 0, 0, 0

    def __init__(self):
        with Census.lock:
            Census.alive += 1
            Census.loads += 1
            Census.most = max(Census.most, Census.alive)

    def __del__(self):
        with Census.lock:
            Census.alive -= 1


class Loads(ModelHandler):
    def load_model(self):
        return Census()


def used(models, cohort):
    with models.use(cohort):
        pass


def test_many_threads_never_exceed_the_limit():
    models = ModelsOnDemand({number: Loads() for number in range(7)}, limit=3)
    Census.most = Census.alive = 0
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: used(models, number % 7), range(500)))
    assert 1 <= Census.most <= 3
    assert list(models) == list(range(7))


def test_the_one_idle_longest_goes():
    loads = []

    class Noting(ModelHandler):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def load_model(self):
            loads.append(self.name)
            return 0  # which is a model, too

    models = ModelsOnDemand({name: Noting(name) for name in "abc"}, limit=2)
    for name in "aabacaab":
        assert models[name] == 0
    assert loads == ["a", "b", "c", "b"]


def test_without_a_limit_all_stay():
    models = ModelsOnDemand({name: Loads() for name in "abc"})
    before = Census.loads
    for name in "abcabc":
        used(models, name)
    assert Census.loads == before + 3

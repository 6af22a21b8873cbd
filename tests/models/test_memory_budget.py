"""The memory budget: earlier loads tell whether the next one fits; idle models are evicted to make room."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.errors import ModelMemoryError
from headrace.core.model_cache import ModelCache
from headrace.models.admission import Admit, Evict, MemoryBudget, Refuse, Wait

MB = 10**6
KB = 10**3
"""Of models that are not worth a garbage collection."""


class Memory:
    """A machine with a number of bytes, some of them taken by models."""

    def __init__(self, limit):
        self.limit, self.used, self.most, self.lock = limit, 0, 0, threading.Lock()

    def room(self):
        return MemoryBudget(lambda: self.limit - self.used, lambda: self.limit, lambda: self.used)

    def model(self, nbytes):
        memory = self

        class Model:
            def __init__(self):
                with memory.lock:
                    memory.used += nbytes
                    memory.most = max(memory.most, memory.used)

            def __del__(self):
                with memory.lock:
                    memory.used -= nbytes

        return Model


def use(store, name, load, at_least=None):
    with store.use(name, load, lambda: at_least):
        pass


def test_idle_models_are_evicted_oldest_first():
    memory, loads = Memory(1000 * MB), []
    store = ModelCache(room=memory.room())
    for name in "abcadbce":
        use(store, name, lambda name=name: loads.append(name) or memory.model(300 * MB)())
    assert memory.most <= 900 * MB
    assert len(store) == 3
    assert loads == ["a", "b", "c", "d", "b", "c", "e"]
    assert store.is_short


def test_models_that_fit_stay():
    memory = Memory(1000 * MB)
    store = ModelCache(room=memory.room())
    for name in "abcabc":
        use(store, name, memory.model(100 * MB))
    assert (len(store), memory.used, store.is_short) == (3, 300 * MB, False)


def test_a_model_whose_files_are_too_large_is_refused_at_once():
    memory = Memory(1000 * MB)
    store = ModelCache(room=memory.room())
    use(store, "small", memory.model(100 * MB))
    with pytest.raises(ModelMemoryError, match=r"the model of 'big': loading it takes at least 2.0 GB.*1.0 GB in all"):
        use(store, "big", memory.model(0), at_least=2000 * MB)
    assert list(store._slots) == []


def test_a_measured_model_is_refused_when_memory_has_become_short():
    memory = Memory(1000 * MB)
    store = ModelCache(room=memory.room())
    use(store, "a", memory.model(600 * MB))
    store.drop_idle()
    memory.used = 700 * MB
    with pytest.raises(ModelMemoryError, match=r"300 MB of 1\.0 GB are free"):
        use(store, "a", memory.model(600 * MB))


def test_a_guess_is_no_reason_to_refuse():
    room = MemoryBudget(lambda: 500 * MB, lambda: 1000 * MB, iter([0, 900 * MB]).__next__)
    room.begins([])
    room.loaded("large")
    assert room.taken("large") == 900 * MB
    assert room.verdict("small", None, {"large": 0}, []) == Evict(("large",))
    assert room.verdict("small", None, {"large": 1}, []) == Admit()
    assert isinstance(room.verdict("large", None, {}, []), Refuse)


def test_the_first_load_runs_alone_and_concurrent_loads_are_not_measured():
    room = MemoryBudget(lambda: 900 * MB, lambda: 1000 * MB, iter([0, 10 * MB, 10 * MB, 99 * MB]).__next__)
    assert room.verdict("a", None, {}, []) == Admit()
    assert room.verdict("b", None, {}, ["a"]) == Wait()
    room.begins([])
    room.loaded("a")
    assert room.verdict("b", None, {}, ["a"]) == Admit()
    assert room.verdict("b", 880 * MB, {}, ["a"]) == Wait()
    assert room.verdict("a", None, {}, ["b"]) == Admit()
    room.begins(["b"])
    room.loaded("a")
    assert room.taken("a") == 10 * MB


def test_many_threads_stay_within_memory():
    memory = Memory(1000 * KB)
    store, model = ModelCache(room=memory.room()), memory.model(200 * KB)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: use(store, number % 9, model), range(300)))
    assert memory.most <= 900 * KB
    assert memory.used == 200 * KB * len(store)


def test_a_thread_that_needs_room_gets_it_though_others_never_pause():
    store, done, loaded = ModelCache(limit=1), threading.Event(), threading.Event()

    def always():
        with store.use("hot", object):
            loaded.set()
        while not done.is_set():
            with store.use("hot", object):
                with_another.wait(0.001)

    with_another = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            threads.submit(always)
        loaded.wait(30)
        try:
            use(store, "cold", object)
        finally:
            done.set()

"""A model is loaded once for all users, and the limit holds under any number of threads."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from headrace.core.model_cache import ModelCache
from headrace.models.memory import trim_memory


def results_of(*functions):
    """What functions return that run side by side."""
    with ThreadPoolExecutor(len(functions)) as threads:
        return [future.result() for future in [threads.submit(function) for function in functions]]


def test_a_model_is_loaded_once_for_many_threads():
    store, loads, together = ModelCache(), [], threading.Barrier(8)

    def load():
        loads.append(None)
        return ("any", "object")

    def use():
        together.wait()
        with store.use("m", load) as model:
            return id(model)

    assert len(set(results_of(*[use] * 8))) == len(loads) == 1


def test_different_models_load_side_by_side():
    store, both_loading = ModelCache(), threading.Barrier(2, timeout=30)

    def use(name):
        with store.use(name, both_loading.wait):
            pass

    results_of(partial(use, "a"), partial(use, "b"))


def test_a_waiting_user_takes_over_when_the_load_raises():
    store, loading, waiting = ModelCache(), threading.Event(), threading.Event()

    def slow_failure():
        loading.set()
        waiting.wait(30)
        raise OSError("no disk")

    def first():
        with pytest.raises(OSError, match="no disk"), store.use("m", slow_failure):
            pass

    def second():
        loading.wait(30)
        waiting.set()
        with store.use("m", lambda: 5) as model:
            return model

    assert results_of(first, second) == [None, 5]


def test_the_model_idle_longest_is_evicted():
    store, loads = ModelCache(limit=2), []
    for name in "aabcbca":
        with store.use(name, partial(loads.append, name)):
            assert len(store) <= 2
    assert loads == ["a", "b", "c", "a"]


def test_the_limit_holds_while_all_models_are_in_use():
    store, held, released = ModelCache(limit=1), threading.Event(), threading.Event()
    order = []

    def holder():
        with store.use("a", lambda: order.append("load a")):
            held.set()
            released.wait(30)
            order.append("a done")

    def other():
        held.wait(30)
        released.set()
        with store.use("b", lambda: order.append("load b")):
            assert len(store) == 1

    results_of(holder, other)
    assert order == ["load a", "a done", "load b"]


def test_many_threads_never_exceed_the_limit():
    store, most = ModelCache(limit=3), []

    def use(number):
        with store.use(number % 7, object):
            most.append(len(store))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(500)))
    assert max(most) <= 3


def test_the_memory_of_an_evicted_model_is_freed_at_once():
    class Cyclic:
        def __init__(self):
            self.itself = self

    store = ModelCache()
    with store.use("m", Cyclic) as model:
        seen = weakref.ref(model)
        assert not store.drop_idle()
    del model
    assert store.drop_idle()
    trim_memory()
    assert seen() is None


def test_a_thread_that_waits_for_room_gets_a_model_that_another_loads_meanwhile():
    store, got = ModelCache(limit=1), []

    def use(name):
        with store.use(name, object) as model:
            got.append(model)

    waits = threading.Thread(target=use, args=["b"], daemon=True)
    with store.use("a", object):
        waits.start()
        while not store._waiting:
            pass
        for _ in range(64):  # that many may overtake the waiting thread
            use("a")
    use("b")  # before the other thread, which has been woken, has the lock
    waits.join(30)
    assert len(set(map(id, got[-2:]))) == 1
    assert len(got) == 66

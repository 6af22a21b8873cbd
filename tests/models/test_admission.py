"""Admission case by case: what is loaded, evicted, made to wait or refused; and what a process does by it."""

from __future__ import annotations

import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.errors import ModelMemoryError
from headrace.core.model_cache import ModelCache
from headrace.models.admission import Admit, Evict, Held, MemoryBudget, Refuse, Wait, admit
from headrace.testing import FakeClock

GB = 10**9
MB = 10**6
KB = 10**3
"""Of models that are not worth a garbage collection."""
OLD, MIDDLE, NEW = Held("old", 2 * GB, 0, 1.0), Held("middle", 3 * GB, 0, 2.0), Held("new", 4 * GB, 0, 3.0)
USED = Held("used", 5 * GB, 1, 0.0)
ALL = [NEW, USED, OLD, MIDDLE]


@pytest.mark.parametrize(
    ("need", "loading", "free", "verdict"),
    [
        (3 * GB, [], 4 * GB, Admit()),  # 1 GB stays free
        (3 * GB, [], 4 * GB - 1, Evict(("old",))),
        (3 * GB, [2 * GB, 1 * GB], 6 * GB, Evict(("old",))),
        (3 * GB, [61 * GB], 99 * GB, Evict(("old",))),  # there are 64 GB in all
        (6 * GB, [], 2 * GB, Evict(("old", "middle"))),
        (6 * GB, [], 1 * GB, Evict(("old", "new"))),  # not all three: with the new one, the middle one need not go
        (11 * GB, [2 * GB], 3 * GB, Wait()),
        (None, [], 2 * GB, Admit()),
        (None, [], 0, Evict(("old",))),
        (0, [], 0, Admit()),
    ],
)
def test_verdicts(need, loading, free, verdict):
    assert admit(need, ALL, loading, free, 64 * GB) == verdict


@pytest.mark.parametrize("loading", [[], [GB], [None]])
def test_a_model_larger_than_memory_is_refused_at_once(loading):
    assert admit(64 * GB, [], loading, 64 * GB, 64 * GB) == Refuse(
        "loading it takes at least 64.0 GB, and the memory that this process may use is 64.0 GB in all, of which "
        "1.0 GB stay free. Give the machine or the container more memory, or use a smaller model.",
        for_ever=True,
    )


def test_a_model_that_does_not_fit_now_is_refused_with_the_figures():
    small = Held("small", 200 * 10**6, 0, 0.0)
    assert admit(3 * GB, [USED, small], [], 3_500 * 10**6, 8 * GB) == Refuse(
        "loading it takes at least 3.0 GB, and models in use hold 5.0 GB, 3.5 GB of 8.0 GB are free, of which 800 MB "
        "stay free. Give the machine or the container more memory, or use fewer models at a time."
    )


def test_small_models_are_not_refused_for_lack_of_a_large_margin():
    assert admit(10**7, [], [], 2 * 10**7, 64 * GB) == Admit()
    assert isinstance(admit(10**7, [], [], 2 * 10**7 - 1, 64 * GB), Refuse)


class Memory:
    """A machine with a number of bytes, some of them taken by models."""

    def __init__(self, limit):
        self.limit, self.used, self.most, self.lock = limit, 0, 0, threading.Lock()

    def room(self, **options):
        return MemoryBudget(lambda: self.limit - self.used, lambda: self.limit, lambda: self.used, **options)

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


class Neighbour:
    """A process, to which another one talks."""

    def __init__(self, times=None):
        self.times, self.told = times, []

    def ask(self):
        self.told.append("waits")

    def settle(self):
        self.told.append("waits no longer")

    def asked(self):
        return self.times


def measured(memory, **options):
    """A room that knows the size of the models a, b and c, of 300 MB."""
    room = memory.room(**options)
    for name in "abc":
        memory.used = 0
        room.begins([])
        memory.used = 300 * MB
        room.loaded(name)
    return room


def test_a_load_waits_a_minute_in_all_for_what_another_process_holds_and_not_for_what_never_fits():
    memory, clock, neighbour = Memory(1000 * MB), FakeClock(), Neighbour()
    room = measured(memory, now=clock.seconds, neighbours=neighbour)
    memory.used = 950 * MB
    with pytest.raises(ModelMemoryError, match="in all"):
        room.make("a", 1000 * MB, {}, [])
    assert room.make("a", None, {"b": 1}, []) is None  # first of all it waits for its own
    assert neighbour.told == []
    assert room.make("a", None, {"b": 0}, []) == ("b",)  # though that is not enough
    clock.advance(59)
    assert room.make("a", None, {}, []) is None
    clock.advance(1)
    for name in "ab":
        with pytest.raises(ModelMemoryError, match="are free"):
            room.make(name, None, {}, [])
    memory.used = 600 * MB
    assert room.make("a", None, {}, []) == ()
    memory.used = 950 * MB
    assert room.make("a", None, {}, []) is None
    assert neighbour.told == ["waits"] * 2 + ["waits no longer"] * 3 + ["waits"]


def test_a_process_makes_way_for_another_that_waits():
    memory, clock, neighbour = Memory(1000 * MB), FakeClock(), Neighbour()
    room = measured(memory, now=clock.seconds, neighbours=neighbour)
    assert room.make_way("a", "abc") == ()
    clock.advance(1)
    neighbour.times = clock.seconds() - 0.5, clock.seconds()
    assert [*room.make_way("a", "abc")] == ["b"]
    room.dropped("b")
    assert room.make("c", None, {"a": 0}, []) is None  # not the memory that was meant for another process
    clock.advance(1)
    assert room.make_way("a", "ac") == ()  # which has yet to look
    assert room.make("c", None, {"a": 0}, []) == ()
    clock.advance(1)
    neighbour.times = clock.seconds() - 5, clock.seconds()
    assert room.make_way("a", "a") == ()
    clock.advance(1)
    neighbour.times = clock.seconds() - 6, clock.seconds()
    assert room.make_way("a", "a") == "a"


class Beside:
    """What two processes tell each other."""

    def __init__(self, now, board):
        self.now, self.board, self.since = now, board, None

    def ask(self):
        self.since = self.since or self.now()
        self.board[self] = self.since, self.now()

    def settle(self):
        self.since = self.board.pop(self, None) and None

    def asked(self):
        return next((times for one, times in [*self.board.items()] if one is not self), None)


@pytest.mark.parametrize("limit", [250, 350, 450])
def test_no_process_starves_nor_fails_where_memory_is_for_fewer_models_than_all_want(limit):
    memory, board, now = Memory(limit * KB), {}, itertools.count(0.0, 0.05).__next__
    model = memory.model(100 * KB)

    def process(number):
        room = memory.room(now=now, patience=math.inf, neighbours=Beside(now, board))
        store = ModelCache(room=room)
        for use_of in range(40):
            use(store, (number, use_of // 2 % 3), model, at_least=100 * KB)
        while store.drop_idle():
            pass

    with ThreadPoolExecutor(2) as processes:
        list(processes.map(process, range(2)))
    assert memory.used == 0


def test_many_threads_stay_within_memory():
    memory = Memory(1000 * KB)
    store, model = ModelCache(room=memory.room()), memory.model(200 * KB)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: use(store, number % 9, model), range(300)))
    assert memory.most <= 900 * KB
    assert store.is_short
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

"""Handlers that hold locks go to other processes, where they get new ones."""

from __future__ import annotations

import pickle
import threading

import pytest

from headrace.ipc.unpicklable import pickle_or_explain
from headrace.testing.contract_tools import pickled

LOCK = threading.Lock()


class Guarded:
    shared = threading.RLock()

    def __init__(self):
        self.lock = self.same = threading.Lock()
        self.reentrant = threading.RLock()
        self.parts = [threading.Condition(), threading.Event(), threading.Semaphore(2)]

    def use(self):
        with self.lock, self.reentrant, self.reentrant, self.parts[0], self.parts[2], LOCK:
            return self.same.locked()


@pytest.mark.parametrize("copied", [pickled, lambda value: pickle.loads(pickle_or_explain(value, "Guarded"))])
def test_locks_arrive_as_new_ones(copied, module_travels):
    original = Guarded()
    with original.lock, LOCK:
        copy = copied(original)
        assert copy.use()
    assert copy.lock is copy.same
    assert type(copy.reentrant) is type(original.reentrant)
    assert copy.reentrant is not original.reentrant

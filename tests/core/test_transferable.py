"""Parts that cannot go to another process are replaced by a text; everything else stays the same object."""

from __future__ import annotations

import pickle
import threading
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.transferable import transferable, with_parts
from headrace.ipc.serialization import pickle_or_explain
from headrace.testing.contract_tools import pickled


class Pair(NamedTuple):
    example: Any
    inference: Any


def pickles(value):
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return False
    return True


def test_only_the_untransferable_part_is_replaced():
    kept = [1, {2}]
    value = ("key", Pair(kept, {"lock": threading.Lock(), "n": 3}))
    key, pair = transferable(value, pickles)
    assert (key, pair.example is kept, pair.inference["n"]) == ("key", True, 3)
    assert pair.inference["lock"].startswith("<unlocked _thread.lock object")


class Silent:
    def __repr__(self):
        raise RuntimeError("no words")

    def __reduce__(self):
        raise TypeError("stays here")


def test_odd_objects_become_short_texts():
    loop: list = []
    loop.append(loop)
    assert isinstance(transferable(loop, lambda _: False), str)
    assert transferable([Silent()], pickles) == ["<Silent>"]
    assert len(transferable((n for n in range(9)), pickles)) <= 200
    assert transferable("a\ud800b" * 1000, str.isascii) == r"a\ud800b" * 1000


values = st.recursive(
    st.one_of(st.integers(), st.text(), st.just(None)),
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(), inner), st.builds(Pair, inner, inner)
    ),
)


@given(values)
def test_transferable_objects_stay_the_same_object(value):
    assert transferable(value, pickles) is value
    assert with_parts(value, lambda part: part) is value


@given(values.filter(lambda value: isinstance(value, (list, tuple, dict)) and len(value)))
def test_parts_are_replaced_in_a_container_of_the_same_type(value):
    made = with_parts(value, lambda part: (part,))
    assert type(made) is type(value)
    assert len(made) == len(value)


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

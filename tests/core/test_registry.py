"""A shared object is made once, kept while it has users, and released by the last."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.registry import Registry


def test_an_object_is_made_once_and_returned_to_its_last_user():
    registry = Registry()
    first = registry.open("one", object)
    assert registry.open("one", object) is first
    assert "one" in registry
    assert registry.close("one") is None
    assert registry.open("one", object) is first
    assert registry.close("one") is None
    assert registry.close("one") is first
    assert "one" not in registry
    assert registry.open("one", object) is not first


def test_an_object_that_cannot_be_made_has_no_users():
    registry = Registry()
    with pytest.raises(ZeroDivisionError):
        registry.open("one", lambda: 1 / 0)
    assert "one" not in registry
    assert registry.open("one", lambda: 5) == 5


def test_threads_share_one_object():
    registry, together, made = Registry(), threading.Barrier(8), []

    def use(_):
        together.wait()
        return registry.open("one", lambda: made.append(None) or object())

    with ThreadPoolExecutor(8) as threads:
        assert len(set(map(id, threads.map(use, range(8))))) == len(made) == 1

"""The next item is made while one is used; errors and ends come in their turn, and no thread is left."""

import threading
from contextlib import closing

import pytest

from headrace.jobs.prefetch import prefetch


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace-reads-ahead")]


def test_the_next_item_is_made_meanwhile():
    made = threading.Event()

    def items():
        yield 1
        made.set()
        yield 2

    with closing(prefetch(items())) as coming:
        assert next(coming) == 1
        assert made.wait(60)
        assert list(coming) == [2]
    assert threads() == []


def test_an_error_comes_behind_the_items_before_it():
    def items():
        yield 1
        raise OSError("torn")

    with closing(prefetch(items())) as coming:
        assert next(coming) == 1
        with pytest.raises(OSError, match="torn"):
            next(coming)
    assert threads() == []


def test_no_items_are_none():
    assert list(prefetch(iter(()))) == []


def test_who_leaves_early_leaves_no_thread():
    with closing(prefetch(iter(range(10)))) as coming:
        assert next(coming) == 0
    assert threads() == []

"""The file in which batches are kept."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import ConfigurationError
from headrace.handlers.batch_store import BatchStore, Line, Sent


@pytest.fixture
def store(tmp_path):
    return BatchStore(str(tmp_path))


def test_number_of_a_forgotten_batch_is_never_given_again(store):
    first, _ = store.announce(["a"])
    store.sent(first, "one")
    store.forget(first)
    second, _ = store.announce(["a"])
    store.sent(second, "two")
    store.forget(first)  # another process had waited for it, too
    store.end(first, [Line("a", 200, "of one")])
    assert store.look_up(["a"]) == ([], [Sent(second, "two")], {"a"})


def test_answer_is_counted_once_by_whoever_hands_it_out(store, tmp_path):
    number, _ = store.announce(["a", "b", "c"])
    store.sent(number, "one")
    store.end(number, [Line("a", 200, "{}"), Line("b", 200, "{}"), Line("c", 400, "{}")])
    assert store.count(["a"]) == {"a"}
    assert BatchStore(str(tmp_path)).count(["a", "b", "c", "d"]) == {"b"}
    assert store.count(["a", "b", "c"]) == set()


def test_answers_of_a_batch_are_kept_once(store):
    number, _ = store.announce(["a"])
    store.end(number, [Line("a", 200, "first")])
    store.end(number, [Line("a", 200, "second")])
    assert store.lines(number) == [Line("a", 200, "first")]


def test_whoever_opens_a_new_file_at_the_same_moment_can_use_it(tmp_path):
    together = threading.Barrier(4)

    def use(folder):
        together.wait(60)
        BatchStore(str(folder)).announce(["a"])

    with ThreadPoolExecutor(4) as threads:
        for number in range(10):
            for end in [threads.submit(use, tmp_path / str(number)) for _ in range(4)]:
                end.result(60)
            assert len(BatchStore(str(tmp_path / str(number))).announced(["a"])) == 4


def test_file_that_is_no_database_is_an_error(tmp_path):
    (tmp_path / "batches.db").write_bytes(b"something else entirely, and long enough for a header" * 100)
    with pytest.raises(ConfigurationError, match=r"batch_directory=.* cannot be used"):
        BatchStore(str(tmp_path))


def test_write_that_is_cut_off_leaves_nothing(store, tmp_path):
    def ids():
        yield "a"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.announce(ids())
    with sqlite3.connect(tmp_path / "batches.db") as database:
        assert database.execute("SELECT count(*) FROM batches").fetchone() == (0,)

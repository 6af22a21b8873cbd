"""Values survive processes, their deaths and each other; what is broken is refused or not there."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from headrace import ConfigurationError
from headrace.core.sqlite_files import create_for_owner, log_ahead
from headrace.runtime.prediction_cache import PredictionStore

MANY = 1 << 30


def key_of(number):
    return number.to_bytes(32, "big")


@pytest.fixture
def open_store(tmp_path):
    """Opens the same file."""
    opened = []

    def start(max_bytes=MANY):
        opened.append(PredictionStore(str(tmp_path / "deep" / "store"), max_bytes))
        return opened[-1]

    yield start
    for store in opened:
        store.close()


def test_values_are_found_by_whoever_opens_the_file(open_store):
    store = open_store()
    store.put([(key_of(1), b"one"), (key_of(2), b"")])
    store.put([(key_of(1), b"newer")])
    assert open_store().get([key_of(n) for n in (1, 2, 3)]) == {key_of(1): b"newer", key_of(2): b""}
    assert store.get([]) == {}
    with pytest.raises(sqlite3.Error):
        store.put([(key_of(3), b"three"), (key_of(4), [])])
    store.put([(key_of(5), b"five")])
    assert store.get([key_of(n) for n in (3, 4, 5)]) == {key_of(5): b"five"}  # all or none


def test_whoever_opens_a_new_file_at_the_same_moment_can_use_it(tmp_path):
    together = threading.Barrier(6)

    def use(path):
        together.wait(60)
        store = PredictionStore(str(path), MANY)
        store.put([(key_of(1), b"one")])
        store.close()

    with ThreadPoolExecutor(6) as threads:
        for number in range(30):
            for end in [threads.submit(use, tmp_path / str(number)) for _ in range(6)]:
                end.result(60)


def test_oldest_values_leave_a_full_file(open_store, tmp_path):
    store, value = open_store(max_bytes=1 << 20), os.urandom(2000)
    for first in range(0, 3000, 50):
        store.put([(key_of(n), value) for n in range(first, first + 50)])
    there = sorted(int.from_bytes(key, "big") for key in store.get([key_of(n) for n in range(3000)]))
    assert 200 < len(there) < 500
    assert there[-1] == 2999
    assert there == list(range(there[0], 3000))
    store.close()
    assert (tmp_path / "deep" / "store").stat().st_size < 1.3 * (1 << 20)
    store.put([(key_of(5000), bytes(1 << 21))])  # larger than the file may be: it is kept alone
    assert list(store.get([key_of(2999), key_of(5000)])) == [key_of(5000)]


def test_file_and_folder_are_for_their_owner_only(open_store, tmp_path):
    open_store().open()
    path = tmp_path / "deep" / "store"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o620)
    with pytest.raises(ConfigurationError, match=r"other users can write it; .* chmod 600"):
        open_store().open()
    tmp_path.chmod(0o1777)
    with pytest.raises(ConfigurationError, match=r"anybody can write its folder; .* mkdir -m 700"):
        PredictionStore(str(tmp_path / "store"), MANY).open()


def write_text(path):
    path.write_text("no database " * 1000)
    path.chmod(0o600)


def write_other_database(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other (a)")
    database.close()
    path.chmod(0o600)


def write_illegible(path):
    """A table of which SQLite says a name that is no text."""
    store = PredictionStore(str(path), MANY)
    store.open()
    store.close()
    path.write_bytes(path.read_bytes().replace(b"predictions", b"\xff" * 11).replace(b"CREATE TABLE", b"CREATE TXBLE"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.mkdir(), "directory"),
        (write_illegible, "damaged"),
        (write_text, "not a database"),
        (write_other_database, "another program's"),
    ],
)
def test_what_is_no_store_is_one_clear_error(tmp_path, make, reason):
    path = tmp_path / "store"
    make(path)
    with pytest.raises(ConfigurationError, match=f"cache=.*{reason}.*Delete the file, or name another"):
        PredictionStore(str(path), MANY).open()


def test_forked_child_opens_the_file_anew(open_store):
    store = open_store()
    store.put([(key_of(1), b"one")])
    child = os.fork()
    if not child:
        code = 1
        try:
            found = store.get([key_of(1)])
            store.put([(key_of(2), b"child's")])
            code = 0 if found else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get([key_of(1), key_of(2)]) == {key_of(1): b"one", key_of(2): b"child's"}


OTHER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("INSERT INTO t VALUES ('of another process')")
database.commit()
database.close()
"""


def test_file_that_is_created_again_keeps_what_is_written_meanwhile(tmp_path):
    path = str(tmp_path / "file.db")
    create_for_owner(path)
    with closing(sqlite3.connect(path)) as database:
        log_ahead(database, 60)
        database.execute("CREATE TABLE t (a)")
        database.commit()
        create_for_owner(path)
        subprocess.run([sys.executable, "-c", OTHER, path], check=True, timeout=60)
        database.execute("INSERT INTO t VALUES ('mine')")
        database.commit()
        with closing(sqlite3.connect(path)) as again:  # had the other process removed the log, it would see one
            assert len(again.execute("SELECT a FROM t").fetchall()) == 2

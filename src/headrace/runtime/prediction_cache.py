"""Predictions that were made before: looked up before a model is called, and kept when it has answered.

They are in a file of values by key, which is safe for many threads and processes: SQLite writes completely or not at
all, whichever process is killed when.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import cloudpickle

from headrace.batching.batcher import Batch
from headrace.core.answer import SKIP, mark_skips, with_model_id
from headrace.core.config import CacheConfig
from headrace.core.errors import ConfigurationError
from headrace.core.fingerprint import default_cache_key, file_stamps, fingerprint
from headrace.core.keyed import NO_PAIRS, with_keys
from headrace.core.sqlite_files import create_for_owner, legible_errors, log_ahead
from headrace.ipc.serialization import all_reducers
from headrace.runtime.plan import Plan
from headrace.runtime.spec import CacheSpec, SessionSpec

ValueT = TypeVar("ValueT")

_LOGGER = logging.getLogger(__name__)
_VERSION = 3
"""Of the keys and values: others are not found."""
_PAUSE_SECS = 60.0
"""How long to go without a file that has failed."""
_APPLICATION = 0x48524331
"""Marks the file as ours."""
_BUSY_SECS = 30.0
"""How long a write waits for those of other processes."""
_AT_ONCE = 500
_LEAST_BYTES = 1 << 20
_FREED = 0.1
"""The share of a full file that is freed at a time."""
_INHERITED: list[sqlite3.Connection | None] = []
"""Connections of the process that this one was forked from: closing them here would upset its own."""


def cache_spec(plan: Plan, cache: str | CacheConfig | None, inference_args: dict[str, Any] | None) -> CacheSpec | None:
    """What workers need to know of the cache that the user asks for; None if there is none.

    Raises:
        ConfigurationError: the file cannot be used, or what decides a model's predictions cannot be compared.
    """
    if cache is None:
        return None
    config = cache if isinstance(cache, CacheConfig) else CacheConfig(cache)
    if plan.has_rows_in_elements:
        raise ConfigurationError(
            "cache= looks up single examples, and these elements are batches; leave with_no_batching(), or "
            "BatchingConfig(columnar=True), out."
        )
    _digest(inference_args, "the inference_args")
    models = tuple((name, _identity(handler)) for name, handler in plan.models.items())
    path = os.path.abspath(config.path)  # a worker or a host may run in another folder
    store = PredictionStore(path, config.max_bytes)
    store.open()
    store.close()
    return CacheSpec(path, config.max_bytes, models)


def _identity(handler: Any) -> str:
    """What decides a handler's predictions, as a digest."""
    own = getattr(handler, "cache_key", None)
    key = default_cache_key(handler, all_reducers()) if own is None else own()
    return _digest(key, f"what {type(handler).__qualname__}.cache_key() returns")


def _digest(value: Any, what: str) -> str:
    try:
        return fingerprint(value, all_reducers()).hex()
    except Exception as error:
        raise ConfigurationError(f"cache= compares {what}, which cannot be ({error}); use plain values.") from error


class CacheLookup(NamedTuple):
    """What a cache knows of a batch."""

    known: list[int]
    """The positions of the elements that it knows."""
    predictions: list[Any]
    rest: Batch | None


class PredictionCache:
    """The cache of one session. Thread-safe.

    A file that cannot be read or written, once workers run, is logged, and costs requests until it can be.
    """

    def __init__(self, spec: SessionSpec, cache: CacheSpec) -> None:
        self._spec = cache
        self._plan = spec.plan
        paths = {name: (refreshed.path, file_stamps(refreshed.path)) for name, refreshed in spec.plan.refreshed.items()}
        self._models = {
            name: fingerprint([_VERSION, identity, spec.inference_args, paths.get(name)], all_reducers())
            for name, identity in cache.models
        }
        self._store = PredictionStore(cache.path, cache.max_bytes)
        self._again_at: float | None = None
        """When the file that has failed is tried again; None: it works."""
        self._has_warned = False

    def look_up(self, name: Any, batch: Batch) -> CacheLookup:
        """What is known of a batch for the named model; the rest knows what to be kept by."""
        keys = [self._key(name, element) for element in batch.elements]
        found = self._read([key for key in keys if key is not None])
        known = [place for place, key in enumerate(keys) if key in found]
        everything = batch._replace(cache_keys=keys)
        if not known:
            return CacheLookup([], [], everything)
        predictions = [found[key] for key in keys if key in found]
        if self._plan.is_one_of_several:
            predictions = with_model_id(predictions, self._plan.answerer(name))
        predictions = mark_skips(predictions)
        if self._plan.keyed:
            predictions = with_keys([batch.elements[place][0] for place in known], predictions)
        places = [place for place, key in enumerate(keys) if key not in found]
        return CacheLookup(known, predictions, everything.pick(places)[0] if places else None)

    def keep(self, keys: Sequence[bytes | None], predictions: Sequence[Any]) -> None:
        """Keeps the predictions of elements with these keys; such as do not pickle are left out."""
        values: list[tuple[bytes, bytes]] = []
        for key, prediction in zip(keys, predictions, strict=True):
            value = prediction[1] if self._plan.keyed and prediction is not SKIP else prediction
            if key is not None and (pickled := self._pickled(value)) is not None:
                values.append((key, pickled))
        if values:
            self._use(lambda store: store.put(values))

    def close(self) -> None:
        """Closes the file."""
        self._store.close()

    def _key(self, name: Any, element: Any) -> bytes | None:
        if self._plan.keyed:
            if type(element) in NO_PAIRS or not isinstance(element, Sequence) or len(element) != 2:
                return None  # the call will say so
            element = element[1]
        try:
            content = fingerprint(element, all_reducers())
        except Exception as error:
            self._log_once("an element cannot be compared with others, and is not looked up", error)
            return None
        return hashlib.blake2b(content, key=self._models[name], digest_size=32).digest()

    def _read(self, keys: Sequence[bytes]) -> dict[bytes | None, Any]:
        found = self._use(lambda store: store.get(keys)) if keys else None
        values: dict[bytes | None, Any] = {}
        for key, pickled in (found or {}).items():
            try:
                values[key] = pickle.loads(pickled)  # the file is this user's own
            except Exception as error:
                self._log_once("a prediction cannot be read any more, and is asked for again", error)
        return values

    def _pickled(self, value: Any) -> bytes | None:
        dumps: Callable[..., bytes]
        for dumps in (pickle.dumps, cloudpickle.dumps):  # the second, slower one takes more classes
            try:
                return dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                failure = error
        self._log_once(f"a {type(value).__qualname__} cannot be pickled, and is not kept", failure)
        return None

    def _use(self, use: Callable[[PredictionStore], ValueT]) -> ValueT | None:
        """What ``use`` returns; None if the file fails, or has failed and it is not yet time to try again."""
        if self._again_at is not None:
            if time.monotonic() < self._again_at:
                return None
            self._again_at = time.monotonic() + _BUSY_SECS + _PAUSE_SECS  # one thread tries for all
        try:
            result = use(self._store)
        except (sqlite3.Error, ConfigurationError) as error:
            if self._again_at is None:
                said = "The cache %s failed (%s): requests are sent, and paid for, without it until it can be used."
                _LOGGER.error(said, self._spec.path, error)
            if "locked" not in str(error):
                self._store.close()  # what is under its path now may be another file
            self._again_at = time.monotonic() + _PAUSE_SECS
            return None
        if self._again_at is not None:
            self._again_at = None
            _LOGGER.warning("The cache %s works again.", self._spec.path)
        return result

    def _log_once(self, what: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOGGER.warning("Cache %s: %s: %s. This is said once.", self._spec.path, what, error)


class PredictionStore:
    """Values by key. Thread-safe; a forked child opens the file again.

    Args:
        path: of the file; it is created, for its owner only, with the folders that are missing.
        max_bytes: the most that the values and their keys may take, at least 1 MiB.

    Raises:
        ConfigurationError: by any method, the file cannot be opened; the message says why.
        sqlite3.Error: it cannot be read or written.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max(max_bytes, _LEAST_BYTES)
        self._database: sqlite3.Connection | None = None
        self._begin()

    def open(self) -> None:
        """Opens the file, which is else done for the first use."""
        with self._opened():
            pass

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values that are there, by key."""
        found: dict[bytes, bytes] = {}
        wanted = iter(set(keys))
        while some := list(islice(wanted, _AT_ONCE)):
            marks = ",".join("?" * len(some))
            with self._opened() as database:
                found.update(database.execute(f"SELECT key, value FROM predictions WHERE key IN ({marks})", some))  # noqa: S608 - marks are ?
        return found

    def put(self, values: Sequence[tuple[bytes, bytes]]) -> None:
        """Writes values, all or none."""
        with self._opened() as database, database:  # which commits, or rolls back
            database.execute("BEGIN IMMEDIATE")
            self._make_room(database, sum(len(key) + len(value) for key, value in values))
            database.executemany("INSERT OR REPLACE INTO predictions VALUES (?, ?)", values)

    def close(self) -> None:
        """Closes the file; the next use opens it again."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = None

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._database = None

    def _make_room(self, database: sqlite3.Connection, needed: int) -> None:
        """Deletes what was written first, if the file would become too large."""
        while (used := _used_bytes(database)) and used + needed > self._max_bytes:
            (count,) = database.execute("SELECT count(*) FROM predictions").fetchone()
            if not count:
                return
            oldest = "SELECT rowid FROM predictions ORDER BY rowid LIMIT ?"
            database.execute(f"DELETE FROM predictions WHERE rowid IN ({oldest})", [max(1, int(count * _FREED))])  # noqa: S608 - both are ours

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """The connection of this process, which only one thread at a time may use."""
        if self._process != os.getpid():  # a lock that another thread held, and SQLite's connections, survive no fork
            _INHERITED.append(self._database)
            self._begin()
        with self._lock, legible_errors():
            if self._database is None:
                self._database = _open(self._path)
            yield self._database


def _used_bytes(database: sqlite3.Connection) -> int:
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _open(path: str) -> sqlite3.Connection:
    with ExitStack() as undo:
        try:
            _refuse_unsafe(path)
            database = sqlite3.connect(path, _BUSY_SECS, isolation_level=None, check_same_thread=False)
            undo.callback(database.close)
            with legible_errors():
                _set_up(database, path)
        except (OSError, sqlite3.Error) as error:
            raise _unusable(path, str(error)) from error
        undo.pop_all()
        return database


def _refuse_unsafe(path: str) -> None:
    """Creates the file; refuses one that others can write: it holds pickles, which run code when they are read.

    So does SQLite's log beside it, which in a folder that anybody can write might be somebody else's.
    """
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    create_for_owner(path)
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise _unusable(path, "it is a directory or a device, not a file")
    if not hasattr(os, "geteuid"):  # Windows
        return
    if found.st_uid != os.geteuid():
        raise _unusable(path, f"it belongs to user {found.st_uid}, and this process to user {os.geteuid()}")
    if os.stat(folder).st_mode & 0o002:
        raise _unusable(path, f"anybody can write its folder; make one of your own: mkdir -m 700 {folder}/mine")
    if found.st_mode & 0o022:
        raise _unusable(path, f"other users can write it; if you trust what is in it, run: chmod 600 {path}")


def _set_up(database: sqlite3.Connection, path: str) -> None:
    database.text_factory = bytes  # whatever is there instead of bytes must not end a query
    database.execute("BEGIN IMMEDIATE")  # another process may be about to set it up
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != _APPLICATION:
        raise _unusable(path, "it is another program's database")
    if not tables:
        database.execute(f"PRAGMA application_id = {_APPLICATION}")
        database.execute("CREATE TABLE predictions (key BLOB PRIMARY KEY, value BLOB NOT NULL)")
    database.execute("COMMIT")
    log_ahead(database, _BUSY_SECS)
    database.execute("PRAGMA synchronous = NORMAL")  # a loss of power may cost the last few values, nothing else


def _unusable(path: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"cache={path!r} cannot be used: {reason.rstrip('.')}. Delete the file, or name another one, on a local disk."
    )

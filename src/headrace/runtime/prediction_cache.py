"""Predictions that were made before: looked up before a model is called, and kept when it has answered."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import cloudpickle

from headrace.batching.batcher import Batch
from headrace.core.answer import SKIP, mark_skips, with_model_id
from headrace.core.config import CacheConfig
from headrace.core.errors import ConfigurationError
from headrace.core.fingerprint import default_cache_key, file_stamps, fingerprint
from headrace.core.keyed import NO_PAIRS, with_keys
from headrace.ipc.serialization import all_reducers
from headrace.runtime.plan import Plan
from headrace.runtime.prediction_store import PredictionStore
from headrace.runtime.spec import CacheSpec, SessionSpec

ValueT = TypeVar("ValueT")

_LOGGER = logging.getLogger(__name__)
_VERSION = 3
"""Of the keys and values: others are not found."""
_DUMPS: tuple[Callable[..., bytes], ...] = (pickle.dumps, cloudpickle.dumps)
"""The second, slower one takes objects of classes that cannot be imported, too."""
_PAUSE_SECS, _PAUSE_FACTOR = 1.0, 3.0
"""How long to go without a file that has failed: at least thrice what a try took."""
_LONGEST_TRY_SECS = 120.0
"""Longer than a try takes, which may wait for other processes twice."""


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
    try:
        fingerprint(inference_args, all_reducers())
    except Exception as error:
        raise ConfigurationError(f"cache= cannot compare the inference_args ({error}); give plain values.") from error
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
    try:
        return fingerprint(key, all_reducers()).hex()
    except Exception as error:
        name = type(handler).__qualname__
        raise ConfigurationError(
            f"{name}.cache_key() returned a value that cannot be compared ({error}); let it return plain values."
        ) from error


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
        for dumps in _DUMPS:
            try:
                return dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                failure = error
        self._log_once(f"a {type(value).__qualname__} cannot be pickled, and is not kept", failure)
        return None

    def _use(self, use: Callable[[PredictionStore], ValueT]) -> ValueT | None:
        """What ``use`` returns; None if the file fails, or has failed and it is not yet time to try again."""
        began, is_trial = time.monotonic(), self._again_at is not None
        if began < (self._again_at or 0.0):
            return None
        try:
            if is_trial:
                self._again_at = began + _LONGEST_TRY_SECS  # one thread tries for all
                self._store.check()
            result = use(self._store)
        except (sqlite3.Error, ConfigurationError) as error:
            self._break(error, time.monotonic() - began if is_trial else 0.0)
            return None
        if is_trial:
            self._again_at = None
            _LOGGER.warning("The cache %s works again.", self._spec.path)
        return result

    def _break(self, error: Exception, took_secs: float) -> None:
        """Goes on without the file for a while."""
        if self._again_at is None:
            said = "The cache %s failed (%s): requests are sent, and paid for, without it until it can be used."
            _LOGGER.error(said, self._spec.path, error)
        if "locked" not in str(error):
            self._store.close()  # what is under its path now may be another file
        self._again_at = time.monotonic() + max(_PAUSE_SECS, _PAUSE_FACTOR * took_secs)

    def _log_once(self, what: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOGGER.warning("Cache %s: %s: %s. This is said once.", self._spec.path, what, error)

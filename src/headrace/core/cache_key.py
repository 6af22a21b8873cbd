"""What decides a handler's predictions, as far as that can be told from the handler: where it has no ``cache_key``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.core.fingerprint import fingerprint

_NO_MATTER = frozenset(
    (
        *("namespace", "num_retries", "throttle_delay_secs", "retry_filter", "rate_limiter"),
        *("window_ms", "bucket_ms", "overload_ratio", "requests_per_minute", "tokens_per_minute"),
        *("_batches", "max_concurrent", "_has_worked", "throttler", "logger", "throttled_secs"),
        *("max_batch_size", "min_batch_size"),
        *("_batching_kwargs", "_sort_by_length", "_large_model", "_model_copies", "_share_across_processes"),
        *("get_preprocess_fns", "get_postprocess_fns", "should_skip_batching", "init_kwargs", "spec_type"),
    )
)
"""Attributes of Headrace's and Beam's handlers that say when and how to ask, not what."""
_SECRET = re.compile(r"api_?key|(access|auth|bearer|hf|secret)_?(key|token)|password|secret|credential", re.IGNORECASE)
_MOST_FILES = 10_000


def default_cache_key(handler: Any) -> list[Any]:
    """The handler's class and its attributes, without secrets and without those that decide no prediction.

    Of an attribute that names a local file or folder, sizes and times of the files count, too.

    Raises:
        ConfigurationError: an attribute has no content that could be compared.
    """
    key: list[Any] = [type(handler)]
    for name, value in sorted(getattr(handler, "__dict__", {}).items()):
        if name in _NO_MATTER or _SECRET.search(name):
            continue
        try:
            key.append((name, fingerprint(value), file_stamps(value)))
        except Exception as error:
            cls = type(handler).__qualname__
            raise ConfigurationError(
                f"cache= needs to know what decides the predictions of {cls}, and its attribute {name!r} cannot be "
                f"compared ({type(error).__name__}: {error}). Give {cls} a method cache_key() that returns what does, "
                "such as its endpoint, its model and its parameters."
            ) from error
    return key


def file_stamps(value: Any) -> list[tuple[str, int, int]]:
    """If a text names a local file or folder: each file's path within it, size in bytes, and time in nanoseconds."""
    if not isinstance(value, str | os.PathLike) or not os.path.exists(value):
        return []
    stamps: list[tuple[str, int, int]] = []
    for path in _files(os.fspath(value)):
        found = os.stat(path)
        stamps.append((os.path.relpath(path, value), found.st_size, found.st_mtime_ns))
        if len(stamps) > _MOST_FILES:
            raise ValueError(f"{value} has more than {_MOST_FILES:,} files")
    return stamps


def _files(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(names))

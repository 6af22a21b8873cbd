"""Model refresh: newer models are announced by a side input, or found as files that match a pattern."""

from __future__ import annotations

import numbers
import os
import time
from collections.abc import Iterable
from functools import partial
from operator import itemgetter
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import AsIter
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from headrace.core.errors import ConfigurationError
from headrace.core.result import ModelMetadata
from headrace.runtime.spec import FileWatch, ModelUpdate


def as_updates(pcoll: beam.PCollection) -> AsIter:
    """A PCollection of newer models as a side input: (timestamp in microseconds, model).

    An iterable, since Beam's ``AsSingleton`` wants exactly one value per window; and not a list, since workers create
    the view of a global window only once: an iterable is read anew each time, and sees what has been added.
    """
    return AsIter(pcoll | "WithTimestamp" >> beam.Map(_with_timestamp))


def _with_timestamp(model: Any, timestamp: Any = beam.DoFn.TimestampParam) -> tuple[int, Any]:
    return timestamp.micros, model


def latest_update(updates: Iterable[tuple[int, Any]]) -> ModelUpdate:
    """The latest of a side input's updates: of several panes, some runners show all, others only the last."""
    in_order = sorted(updates, key=itemgetter(0))
    return ModelUpdate(*in_order[-1]) if in_order else ModelUpdate(0, None)


def watch_files(file_pattern: Any, interval: Any = 360, stop_timestamp: Any = MAX_TIMESTAMP) -> FileWatch:
    """A watch that each worker process runs itself, without side input or source."""
    if not isinstance(file_pattern, str | os.PathLike):
        raise ConfigurationError(f"watch_model_pattern must be a path or URI, not {file_pattern!r}.")
    if not isinstance(interval, numbers.Real) or not float(interval) > 0:
        raise ConfigurationError(f"interval must be a positive number of seconds, not {interval!r}.")
    try:
        until = Timestamp.of(stop_timestamp).micros / 1e6
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"stop_timestamp must be a Timestamp or seconds, not {stop_timestamp!r}.") from error
    pattern = os.fspath(file_pattern)
    return FileWatch(pattern, partial(_newer_files, pattern, time.time(), until), float(interval))


def _newer_files(file_pattern: str, started: float, until: float) -> list[ModelUpdate]:
    """Updates for the files modified between ``started`` and ``until`` (seconds since 1970), newest first."""
    (match,) = FileSystems.match([file_pattern])
    if not match.metadata_list:
        raise BeamIOError(f"no file matches watch_model_pattern={file_pattern!r}")
    found = sorted(((file.last_updated_in_seconds, file.path) for file in match.metadata_list), reverse=True)
    return [
        ModelUpdate(round(at * 1e6), ModelMetadata(path, os.path.splitext(os.path.basename(path))[0]))
        for at, path in found
        if started < at < until
    ]

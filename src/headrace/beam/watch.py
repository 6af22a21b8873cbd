"""Watches files that match a pattern, and tells of the newest as of a newer model."""

from __future__ import annotations

import numbers
import os
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.io.fileio import EmptyMatchTreatment, MatchContinuously
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms import trigger
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from headrace.core.errors import ConfigurationError
from headrace.core.result import ModelMetadata
from headrace.runtime.spec import FileWatch, ModelUpdate

_NEWEST = beam.DoFn.StateParam(ReadModifyWriteStateSpec("newest", coders.FastPrimitivesCoder()))


class WatchFilePattern(beam.PTransform):
    """Gives a ModelMetadata for each file that appears and is the newest of those that match a pattern.

    ``RunInference`` needs no such side input, see ``watch_model_pattern``: this is for whoever wants to look at what is
    told, or to add to it.

    For streaming pipelines: it never ends before ``stop_timestamp``. What was there when the pipeline started is not
    told of: that is the model that the handler was made with. A file is told of once: upload newer models under new
    names, and move them into place when they are complete. ``FnApiRunner`` looks only once.

    Args:
        file_pattern: a path or URI, with ``*``, ``?`` and ``[...]``; something must match it when the pipeline starts.
        interval: seconds between two looks.
        stop_timestamp: when to look no more.
    """

    def __init__(self, file_pattern: str, interval: float = 360, stop_timestamp: Any = MAX_TIMESTAMP) -> None:
        super().__init__()
        self.file_pattern = file_pattern
        self.interval = interval
        self.stop_timestamp = stop_timestamp

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        """As Beam's: in the global window, told of at once."""
        matches = pcoll | "MatchContinuously" >> MatchContinuously(
            file_pattern=self.file_pattern,
            interval=self.interval,
            stop_timestamp=self.stop_timestamp,
            empty_match_treatment=EmptyMatchTreatment.DISALLOW,
        )
        newest = (
            matches
            | "Together" >> beam.WithKeys("").with_output_types(beam.typehints.Tuple[str, Any])
            | "Newest" >> beam.ParDo(_Newest(time.time()))
        )
        return newest | "ApplyGlobalWindow" >> beam.WindowInto(
            GlobalWindows(),
            trigger=trigger.Repeatedly(trigger.AfterProcessingTime(1)),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
        )


class _Newest(beam.DoFn):
    """Passes on files that are newer than all before, and than the pipeline; no two with the same timestamp.

    Those that are found in one look have one, and a side input is in no order, so that any could be the latest.
    """

    def __init__(self, started: float) -> None:
        self._started = started

    def process(
        self, keyed: tuple[str, Any], newest: Any = _NEWEST, timestamp: Any = beam.DoFn.TimestampParam
    ) -> Iterable[TimestampedValue]:
        """Takes what is known of a file."""
        file = keyed[1]
        stored = newest.read()
        modified, path, told = stored or (self._started, "", MIN_TIMESTAMP.micros)
        moment = max(timestamp.micros, told + 1)
        if file.last_updated_in_seconds > modified and file.path != path:
            newest.write((file.last_updated_in_seconds, file.path, moment))
            yield TimestampedValue(_metadata(file.path), Timestamp(micros=moment))
        elif stored is None:  # runners hold elements back until a side input says something
            newest.write((modified, path, moment))
            yield TimestampedValue(ModelMetadata("", ""), Timestamp(micros=moment))


def watching(file_pattern: Any, interval: Any = 360, stop_timestamp: Any = MAX_TIMESTAMP) -> FileWatch:
    """The same for workers that look themselves, each process for itself: no side input, and no source, is needed.

    Raises:
        ConfigurationError: something is not what it must be.
    """
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
    """Those that are newer than the pipeline, of the files that match and came in time; the newest first.

    Raises:
        BeamIOError: none matches, or they cannot be listed.
    """
    (match,) = FileSystems.match([file_pattern])
    if not match.metadata_list:
        raise BeamIOError(f"no file matches watch_model_pattern={file_pattern!r}")
    found = sorted(((file.last_updated_in_seconds, file.path) for file in match.metadata_list), reverse=True)
    return [ModelUpdate(round(at * 1e6), _metadata(path)) for at, path in found if started < at < until]


def _metadata(path: str) -> ModelMetadata:
    return ModelMetadata(path, os.path.splitext(os.path.basename(path))[0])

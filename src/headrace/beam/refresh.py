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
from apache_beam import coders
from apache_beam.io.fileio import EmptyMatchTreatment, MatchContinuously
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import AsIter
from apache_beam.transforms import trigger
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from headrace.core.errors import ConfigurationError
from headrace.core.result import ModelMetadata
from headrace.runtime.spec import FileWatch, ModelUpdate

_NEWEST = beam.DoFn.StateParam(ReadModifyWriteStateSpec("newest", coders.FastPrimitivesCoder()))


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


class WatchFilePattern(beam.PTransform):
    """Gives a ModelMetadata for each new file that matches a pattern and is newer than all earlier ones.

    ``RunInference(watch_model_pattern=...)`` does not need it; it is for pipelines that inspect or extend the updates.

    For streaming pipelines: it ends only at ``stop_timestamp``. Files from before the pipeline's start are ignored: the
    handler's own model is the first. Each file is announced once, so upload newer models under new names, and move them
    into place when they are complete. ``FnApiRunner`` looks only once.

    Args:
        file_pattern: a path or URI, with ``*``, ``?`` and ``[...]``; a file must match it when the pipeline starts.
        interval: seconds between two looks.
        stop_timestamp: when to stop looking.
    """

    def __init__(self, file_pattern: str, interval: float = 360, stop_timestamp: Any = MAX_TIMESTAMP) -> None:
        super().__init__()
        self.file_pattern = file_pattern
        self.interval = interval
        self.stop_timestamp = stop_timestamp

    def expand(self, pcoll: beam.PCollection) -> beam.PCollection:
        """As Beam's: in the global window, with a trigger that fires at once."""
        matches = pcoll | "MatchContinuously" >> MatchContinuously(
            file_pattern=self.file_pattern,
            interval=self.interval,
            stop_timestamp=self.stop_timestamp,
            empty_match_treatment=EmptyMatchTreatment.DISALLOW,
        )
        newest = (
            matches
            | "Together" >> beam.WithKeys("").with_output_types(beam.typehints.Tuple[str, Any])
            | "Newest" >> beam.ParDo(_NewestFileDoFn(time.time()))
        )
        return newest | "ApplyGlobalWindow" >> beam.WindowInto(
            GlobalWindows(),
            trigger=trigger.Repeatedly(trigger.AfterProcessingTime(1)),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
        )


class _NewestFileDoFn(beam.DoFn):
    """Passes on files that are newer than the pipeline and all earlier files, each with a timestamp of its own.

    Files found in one look have one timestamp, and a side input has no order: any of them could seem the latest.
    """

    def __init__(self, started: float) -> None:
        self._started = started

    def process(
        self, keyed: tuple[str, Any], newest: Any = _NEWEST, timestamp: Any = beam.DoFn.TimestampParam
    ) -> Iterable[TimestampedValue]:
        """Takes a file's metadata."""
        _, file = keyed
        stored = newest.read()
        modified, path, latest_micros = stored or (self._started, "", MIN_TIMESTAMP.micros)
        micros = max(timestamp.micros, latest_micros + 1)
        if file.last_updated_in_seconds > modified and file.path != path:
            newest.write((file.last_updated_in_seconds, file.path, micros))
            yield TimestampedValue(_metadata(file.path), Timestamp(micros=micros))
        elif stored is None:  # runners hold elements back until the side input has a first value
            newest.write((modified, path, micros))
            yield TimestampedValue(ModelMetadata("", ""), Timestamp(micros=micros))


def watch_files(file_pattern: Any, interval: Any = 360, stop_timestamp: Any = MAX_TIMESTAMP) -> FileWatch:
    """A watch that each worker process runs itself, without side input or source; arguments as ``WatchFilePattern``.

    Raises:
        ConfigurationError: an argument is wrong.
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
    """Updates for the files modified between ``started`` and ``until`` (seconds since 1970), newest first.

    Raises:
        BeamIOError: no file matches, or the files cannot be listed.
    """
    (match,) = FileSystems.match([file_pattern])
    if not match.metadata_list:
        raise BeamIOError(f"no file matches watch_model_pattern={file_pattern!r}")
    found = sorted(((file.last_updated_in_seconds, file.path) for file in match.metadata_list), reverse=True)
    return [ModelUpdate(round(at * 1e6), _metadata(path)) for at, path in found if started < at < until]


def _metadata(path: str) -> ModelMetadata:
    return ModelMetadata(path, os.path.splitext(os.path.basename(path))[0])

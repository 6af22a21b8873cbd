"""Newer models, announced by a side input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSideInput

from headrace.runtime.spec import ModelUpdate

NO_UPDATE = ModelUpdate(0, None)
"""Nothing has been said of newer models."""


class ModelUpdates:
    """What a side input says of newer models, whenever it is asked.

    Beam's workers make the view of a side input once, where it is in the global window: one that held what was said
    then would never say anything else.

    Args:
        pairs: a moment and a value each; in each bundle they may be others.
    """

    def __init__(self, pairs: Iterable[tuple[int, Any]] = ()) -> None:
        self._pairs = pairs

    def latest(self) -> ModelUpdate:
        """The latest now. Where panes follow one another, some runners show all of them, some only the last."""
        latest = NO_UPDATE
        for moment, value in self._pairs:
            if latest.value is None or moment >= latest.moment:
                latest = ModelUpdate(moment, value)
        return latest


class AsModelUpdates(AsSideInput):
    """A side input as ``ModelUpdates``: any number of values, where Beam's ``AsSingleton`` wants one in each window."""

    @staticmethod
    def _from_runtime_iterable(it: Iterable[tuple[int, Any]], options: Any) -> ModelUpdates:  # noqa: ARG004 - Beam gives them
        return ModelUpdates(it)


def as_model_updates(pcoll: beam.PCollection) -> AsModelUpdates:
    """A PCollection of what tells of newer models, as a side input."""
    return AsModelUpdates(pcoll | "WithTimestamp" >> beam.Map(_with_moment))


def _with_moment(value: Any, timestamp: Any = beam.DoFn.TimestampParam) -> tuple[int, Any]:
    return timestamp.micros, value

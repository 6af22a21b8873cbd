"""An unbounded source that is controlled with files, and that a runner can checkpoint after every element.

The outcome does not depend on time: the caller of a pipeline creates a file, and the source continues.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

END = "end"
"""The file with which a source ends."""
FAR = 1e9
"""A watermark in seconds: nothing that comes after it is waited for."""
_TICK_SECS = 1.1
"""Between two elements of a part. Beam's job server for Flink rounds it down to whole seconds, and 0 is at once."""


class Step(NamedTuple):
    """What a part of the source does next."""

    value: Any
    second: float
    """Its timestamp."""
    watermark: float
    """From now on; seconds."""
    gate: str | None = None
    """The file without which it waits."""


class Numbers(NamedTuple):
    """A part of all numbers, endless: of ``parts`` the one of that number; some of them have timestamps of a second."""

    part: int
    parts: int
    per_second: int
    gate: str
    """The file without which it waits at a second."""
    gate_second: float

    @property
    def idle_watermark(self) -> float:
        """While it waits, in seconds: others wait for it."""
        return 0.0

    def step(self, position: int) -> Step:
        """The number at a position."""
        number = position * self.parts + self.part
        second = number / self.per_second
        return Step(number, second, second, self.gate if second >= self.gate_second else None)


class Steps(NamedTuple):
    """Steps one by one, for which nobody waits; then nothing more."""

    steps: tuple[Step, ...]

    @property
    def idle_watermark(self) -> float:
        """While it waits, in seconds."""
        return FAR

    def step(self, position: int) -> Step | None:
        """None: there are no more."""
        return self.steps[position] if position < len(self.steps) else None


class _Tracker(OffsetRestrictionTracker):
    """Is parted nowhere but where the source stops: so what comes out is known."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        """See Beam's."""
        return super().try_split(fraction_of_remainder) if fraction_of_remainder == 0 else None

    def is_bounded(self) -> bool:
        """It ends when somebody says so."""
        return False


class _Provider(RestrictionProvider):
    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, sys.maxsize)

    def create_tracker(self, restriction: OffsetRange) -> _Tracker:
        return _Tracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return 1


_TRACKER = beam.DoFn.RestrictionParam(_Provider())
_WATERMARK = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider())


class Source(beam.DoFn):
    """Makes the elements of each part, each in a bundle of its own, until the file ``end`` is there.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        part: Any,
        tracker: Any = _TRACKER,
        watermark: Any = _WATERMARK,
    ) -> Iterator[TimestampedValue]:
        """Takes a part."""
        position = tracker.current_restriction().start
        step = part.step(position)
        if (self._folder / END).exists():
            tracker.try_claim(sys.maxsize)  # beyond the last one: all is done
            return
        if step is None or (step.gate and not (self._folder / step.gate).exists()):
            _advance(watermark, part.idle_watermark)
        elif tracker.try_claim(position):
            yield TimestampedValue(step.value, step.second)
            _advance(watermark, step.watermark)
        tracker.defer_remainder(Duration(_TICK_SECS))


def _advance(estimator: Any, second: float) -> None:
    before, now = estimator.current_watermark(), Timestamp.of(second)
    if before is None or before < now:
        estimator.set_watermark(now)

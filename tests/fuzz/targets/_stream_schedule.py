"""What happens on streams, drawn at random: when elements come, of what time, under which watermark; how they wait."""

from __future__ import annotations

from dataclasses import dataclass

from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp

from headrace import BatchingConfig

TICKS = 12
ELEMENTS = 6
"""Of one schedule, on average."""
_FATES = ("good",) * 8 + ("preprocessing", "inference", "postprocessing")
"""In which operation an element fails."""


@dataclass(frozen=True)
class Element:
    """An element of one schedule, which is all that has its branch and key."""

    branch: int
    key: int
    number: int
    """Its own among all of the pipeline."""
    weight: int
    fate: str
    second: float
    """Its timestamp."""
    watermark: float
    """When it comes."""


@dataclass(frozen=True)
class Tick:
    """What happens at once; then the watermark moves on, and then time does."""

    bundles: tuple[tuple[Element, ...], ...]
    watermark: float
    seconds: float


@dataclass(frozen=True)
class Branch:
    """A RunInference beside others, over the schedules of that number."""

    windows: window.WindowFn
    lateness: int  # seconds
    batching: BatchingConfig
    preprocesses: bool
    side: str
    """The arguments of the model's call: none; for all windows the same; or for each its own."""
    by_key: bool
    """Whether each schedule has a model of its own, and so buffers of its own."""

    def windows_of(self, second: float) -> list[window.BoundedWindow]:
        """Those of an element at that time; of sessions before they are merged."""
        return list(self.windows.assign(window.WindowFn.AssignContext(at(second))))


def at(second: float) -> Timestamp:
    """In whole milliseconds, since Beam's test stream knows no others."""
    return Timestamp(micros=round(second * 1000) * 1000)


def weight_of(pair) -> int:
    return pair[1][1]


def branch(rng) -> Branch:
    windows = rng.choice(
        [
            window.GlobalWindows(),
            window.FixedWindows(rng.choice([1, 10])),
            window.SlidingWindows(10, rng.choice([3, 5])),
            window.Sessions(rng.choice([1, 5])),
        ]
    )
    most = rng.choice([1, 2, 3, 5, 8])
    more = rng.choice(
        [
            {"min_batch_size": most},
            {"min_batch_size": rng.randint(1, most)},
            {"min_batch_size": most, "max_batch_size": 3 * most, "element_size_fn": weight_of},
            {"max_batch_weight": 9, "element_size_fn": weight_of},
            {"length_fn": weight_of, "bucket_boundaries": [3, 6]},
        ]
    )
    waits = rng.choice([0.5, 3, 20])
    batching = BatchingConfig(**{"max_batch_size": most, "max_batch_duration_secs": waits, **more})
    side = rng.choice(["none", "none", "global", "global" if isinstance(windows, window.GlobalWindows) else "windowed"])
    return Branch(windows, rng.choice([0, 0, 5, 1000]), batching, rng.random() < 0.3, side, rng.random() < 0.7)


def ticks(rng, branches: int, keys: int) -> list[Tick]:
    """The schedules of so many branches with so many keys each, in one time and under one watermark."""
    drawn, watermark, number = [], 0.0, 0
    for _ in range(TICKS):
        elements = []
        for place in range(branches * keys):
            for _ in range(rng.choice([0, 0, 0, 1, 1, ELEMENTS * 2 - TICKS + 1])):
                second = round(max(0.0, watermark + rng.choice([0, 0.5, 2, 11, 40, -0.5, -3, -12, -60])), 3)
                fate, weight = rng.choice(_FATES), rng.randint(1, 8)
                elements.append(Element(*divmod(place, keys), number, weight, fate, second, watermark))
                number += 1
        cut = rng.randint(0, len(elements))
        watermark = round(watermark + rng.choice([0.001, 0.5, 3, 10, 25]), 3)
        bundles = tuple(filter(None, (tuple(elements[:cut]), tuple(elements[cut:]))))
        drawn.append(Tick(bundles, watermark, rng.choice([0, 1, 4, 30])))
    return drawn


def bucket_of(batching: BatchingConfig, length: int) -> int:
    return sum(length >= bound for bound in batching.bucket_boundaries or ())

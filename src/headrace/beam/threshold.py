"""Fails the pipeline when too many elements fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam


def check_threshold(elements: beam.PCollection, dead_letters: Sequence[beam.PCollection], threshold: float) -> None:
    """Compares, for each operation in its order, how many elements failed with how many reached it, window by window.

    Raises:
        ValueError: within the pipeline, when more than ``threshold`` of them failed.
    """
    total = _ones(elements, "CountTotal") | beam.CombineGlobally(sum).as_singleton_view()
    earlier: list[Any] = []
    for index, letters in enumerate(dead_letters):
        bad = _ones(letters, f"CountBad-{index}")
        _ = (
            bad
            | f"SumBad-{index}" >> beam.CombineGlobally(sum).without_defaults()
            | f"CheckThreshold-{index}" >> beam.Map(_check, threshold, total, *earlier)
        )
        earlier.append(bad | f"SumEarlier-{index}" >> beam.CombineGlobally(sum).as_singleton_view())


def _ones(elements: beam.PCollection, label: str) -> beam.PCollection:
    return elements | label >> beam.Map(lambda _: 1)


def _check(
    bad: int, threshold: float, total: int, *earlier: int, window: Any = beam.DoFn.WindowParam
) -> None:
    reached = total - sum(earlier)
    if bad > reached * threshold:
        raise ValueError(
            f"The number of failing elements within the window {window!r} exceeded threshold: "
            f"{bad} / {reached} = {bad / reached} > {threshold}"
        )

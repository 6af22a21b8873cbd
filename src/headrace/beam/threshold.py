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
    total = elements | "CountTotal" >> _count().as_singleton_view()
    for index, letters in enumerate(dead_letters):
        lost: Any = 0
        if index:
            earlier = dead_letters[:index] | f"Earlier-{index}" >> beam.Flatten()
            lost = earlier | f"CountEarlier-{index}" >> _count().as_singleton_view()
        bad = letters | f"CountBad-{index}" >> _count().without_defaults()
        _ = bad | f"CheckThreshold-{index}" >> beam.Map(_check, threshold, total, lost)


def _count() -> beam.CombineGlobally:
    return beam.CombineGlobally(beam.combiners.CountCombineFn())


def _check(bad: int, threshold: float, total: int, lost: int, window: Any = beam.DoFn.WindowParam) -> None:
    reached = total - lost
    if bad > reached * threshold:
        raise ValueError(
            f"The number of failing elements within the window {window!r} exceeded threshold: "
            f"{bad} / {reached} = {bad / reached} > {threshold}"
        )

"""A model in plain Python, which holds the interpreter's lock while it computes, and its handler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from elsewhere.noting import NotingHandler


class Counter:
    """The model."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def predict(self, seeds: Sequence[int]) -> list[float]:
        """So many steps of a linear congruential generator for each."""
        return [float(self._walk(seed)) for seed in seeds]

    def _walk(self, value: int) -> int:
        for _ in range(self._steps):
            value = (value * 1103515245 + 12345) & 0x7FFFFFFF
        return value


class CounterHandler(NotingHandler):
    """Where each row's generator arrives.

    Args:
        folder: where it writes.
        steps: for each row.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, folder: str, steps: int, **options: Any) -> None:
        super().__init__(folder, **options)
        self._steps = steps

    def make_rows(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Their own numbers."""
        return ((number, number) for number in range(start, stop))

    def make_model(self) -> Counter:
        """Takes no time."""
        return Counter(self._steps)

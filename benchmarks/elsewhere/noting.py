"""A handler that writes down what it does; it needs no Beam, nor does the process that it is loaded in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace import ModelHandler

NOTES = "notes"
"""The file in the run's folder: lines of what, process, how many rows and when (nanoseconds, monotonic)."""


class NotingHandler(ModelHandler[tuple[int, Any], tuple[int, float], Any]):
    """Predicts a number for each numbered row.

    Args:
        folder: where it writes.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(**options)
        self._folder = folder

    def make_rows(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Numbered rows, the same in every run."""
        raise NotImplementedError

    def make_model(self) -> Any:
        """An object with a method ``predict``."""
        raise NotImplementedError

    def predict(self, rows: Sequence[Any], model: Any) -> Sequence[float]:
        """One call of the model's ``predict``, which may be in another process."""
        return model.predict(rows)

    def load_model(self) -> Any:
        """Whatever ``make_model`` makes."""
        note(self._folder, "loading")
        model = self.make_model()
        note(self._folder, "loaded")
        return model

    def run_inference(
        self, batch: Sequence[tuple[int, Any]], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[tuple[int, float]]:
        """Each row's number with its prediction."""
        note(self._folder, "begun", len(batch))
        predictions = self.predict([row for _, row in batch], model)
        note(self._folder, "ended", len(batch))
        return [(number, float(value)) for (number, _), value in zip(batch, predictions, strict=True)]


def note(folder: str, what: str, count: int = 0) -> None:
    """Adds a line to the notes."""
    with Path(folder, NOTES).open("a") as file:
        file.write(f"{what} {os.getpid()} {count} {time.monotonic_ns()}\n")

"""A handler whose process is killed in the middle of a batch now and then; it writes down when."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from headrace import ModelHandler, PredictionResult

MOMENTS = "moments"
"""The file, in the handler's folder: lines of what, the batch's first example, and when (nanoseconds, monotonic)."""

NO_BATCH = -1
"""In place of a first example, where the model is loaded."""

Model = Callable[[int], Any]


class MortalHandler(ModelHandler[int, PredictionResult, Model]):
    """Doubles.

    Args:
        folder: where it writes.
        period: a batch whose first example is a multiple of this kills the process the first time.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, folder: Path, period: int, **options: Any) -> None:
        super().__init__(**options)
        self._folder = folder
        self._period = period

    def load_model(self) -> Model:
        """Whatever ``make_model`` makes."""
        self._note("loading")
        model = self.make_model()
        self._note("loaded")
        return model

    def make_model(self) -> Model:
        """A function."""
        return _double

    def run_inference(
        self, batch: Sequence[int], model: Model, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Is killed when it has done the work, but before anybody knows."""
        self._note("begun", batch[0])
        predictions = [PredictionResult(example, model(example)) for example in batch]
        if batch[0] % self._period == 0 and not self._is_known(batch[0]):
            self._note("killed", batch[0])
            signal.raise_signal(signal.SIGKILL)
        return predictions

    def _is_known(self, batch: int) -> bool:
        mark = self._folder / f"known-{batch}"
        is_known = mark.exists()
        mark.touch()
        return is_known

    def _note(self, what: str, batch: int = NO_BATCH) -> None:
        with (self._folder / MOMENTS).open("a") as file:
            file.write(f"{what} {batch} {time.monotonic_ns()}\n")


def _double(example: int) -> int:
    return 2 * example

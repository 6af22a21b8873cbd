"""A model that multiplies, in as many versions as one likes; it is imported where models live, so without Beam."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from members import wait_until
from recording import Recorded, write

from headrace import ModelHandler, PredictionResult

RELEASED = "released"
"""The file that a slow model waits for."""
SPOILT = 13
"""Of so many numbers one is more than the model can bear."""
OFFSET = "offset"
"""An argument of the model's call: is added to each product."""
_PATIENCE_SECS = 240.0


class _Factor(ModelHandler[int, PredictionResult, Any]):
    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(**options)
        self._path = path

    def load_model(self) -> Any:
        path = Path(self._path)
        write("loading", model=path.name)
        if path.name.startswith("slow"):
            wait_until(path.with_name(RELEASED).exists, _PATIENCE_SECS)
        return np.load(path)

    def run_inference(self, batch: Sequence[int], model: Any, inference_args: Any = None) -> list[PredictionResult]:
        if any(number > 0 and number % SPOILT == 0 for number in batch):
            raise ValueError("a number is spoilt")
        offset, name = (inference_args or {}).get(OFFSET, 0), Path(self._path).name
        return [PredictionResult(number, int(number * model[0]) + offset, name) for number in batch]

    def update_model_path(self, model_path: str | None = None) -> None:
        self._path = model_path or self._path


class Factor(Recorded, _Factor):
    """Multiplies by what its file holds, and says the file's name; one whose name begins with ``slow`` loads slowly."""


def save(path: Path, factor: int) -> str:
    """Makes a model's file, at once; returns its path."""
    scratch = path.with_name(f"{path.name}.part")  # which no pattern for models matches
    with scratch.open("wb") as file:
        np.save(file, np.full(1000, factor))
    scratch.rename(path)
    return str(path)

"""The mortal handler with a model of gigabytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elsewhere.mortal import Model, MortalHandler
from headrace import PredictionResult

_WIDTH = 4096
LAYER_BYTES = _WIDTH * _WIDTH * 4


class LargeModel:
    """Doubles with a matrix; most of its layers only take memory."""

    def __init__(self, layers: int) -> None:
        made = [torch.full((_WIDTH, _WIDTH), 2.0 / _WIDTH) for _ in range(layers)]
        self._layers = nn.ParameterList(made).requires_grad_(False)

    def __call__(self, example: int) -> int:
        """With a row of the last layer: what is measured is the way back to the weights, not arithmetic."""
        return round(float(self._layers[-1][0] @ torch.full((_WIDTH,), float(example))))


class MortalLargeHandler(MortalHandler):
    """Doubles.

    Args:
        folder: where it writes.
        period: a batch whose first example is a multiple of this kills the process the first time.
        layers: of LAYER_BYTES each.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, folder: Path, period: int, layers: int, **options: Any) -> None:
        super().__init__(folder, period, **options)
        self._layers = layers

    def make_model(self) -> Model:
        """From nothing, faster than from a disk."""
        return LargeModel(self._layers)

    def run_inference(
        self, batch: Sequence[int], model: Model, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Writes down the end, too."""
        predictions = super().run_inference(batch, model, inference_args)
        self._note("ended", batch[0])
        return predictions

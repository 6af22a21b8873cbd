"""A model that takes long to load, and its handler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from elsewhere.noting import NotingHandler

_WIDTH = 2048


class Layers(nn.Sequential):
    """The model: 17 MB for each layer."""

    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        """(batch, width) to (batch, width), without gradients, wherever it is called from."""
        with torch.no_grad():
            return self(rows)


class SlowLoadingHandler(NotingHandler):
    """The largest output for each row.

    Args:
        folder: where it writes.
        layers: of the model.
        draws: how often all weights are drawn; one takes about 0.2 s for 12 layers.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, folder: str, layers: int, draws: int, **options: Any) -> None:
        super().__init__(folder, **options)
        self._layers = layers
        self._draws = draws

    def make_rows(self, start: int, stop: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Noise, float32."""
        noise = torch.Generator().manual_seed(start)
        for number in range(start, stop):
            yield number, torch.randn(_WIDTH, generator=noise)

    def make_model(self) -> Layers:
        """The last draw counts."""
        layers = Layers(*(nn.utils.skip_init(nn.Linear, _WIDTH, _WIDTH, bias=False) for _ in range(self._layers)))
        noise = torch.Generator().manual_seed(0)
        for _ in range(self._draws):
            for weights in layers.parameters():
                nn.init.normal_(weights, std=_WIDTH**-0.5, generator=noise)
        return layers.eval()

    def predict(self, rows: Sequence[torch.Tensor], model: Layers) -> list[float]:
        """One tensor to the model and one back."""
        return model.predict(torch.stack(list(rows))).amax(dim=1).tolist()

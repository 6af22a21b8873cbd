"""A small transformer encoder."""

from __future__ import annotations

from collections.abc import Iterator

import torch

VOCABULARY = 1_000
LENGTH = 64


class Encoder(torch.nn.Module):
    """Token ids (batch, length) to one vector for each sequence (batch, width)."""

    def __init__(self, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, width)
        self.places = torch.nn.Parameter(torch.randn(LENGTH, width))
        layer = torch.nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The mean over the sequence of what the encoder makes of it."""
        return self.encoder(self.tokens(ids) + self.places).mean(dim=1)


def make_rows(chunk: int, count: int) -> Iterator[torch.Tensor]:
    """The token ids of one chunk, the same in every run."""
    generator = torch.Generator().manual_seed(chunk)
    return iter(torch.randint(VOCABULARY, (count, LENGTH), generator=generator))

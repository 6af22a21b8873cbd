"""A T5 model with random weights, made by ``python -m elsewhere.answerer FOLDER SIZE``, and its handler."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration

from elsewhere.noting import NotingHandler

TOKENS = 16
"""In a row."""

_SIZES: dict[str, dict[str, int]] = {
    "large": {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16},  # those of t5-large
    "tiny": {"d_model": 64, "d_ff": 128, "num_layers": 1, "num_heads": 1, "vocab_size": 512},
}

_VOCABULARY = 512
"""Tokens that rows are made of."""


def save(folder: str, size: str) -> None:
    """Makes the model and writes it as its library does."""
    torch.manual_seed(0)
    T5ForConditionalGeneration(T5Config(**_SIZES[size], decoder_start_token_id=0)).save_pretrained(folder)


class Answerer:
    """The model: computes without gradients, wherever it is called from."""

    def __init__(self, network: T5ForConditionalGeneration) -> None:
        self._network = network

    def predict(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the answer's first token: all weights are used."""
        with torch.no_grad():
            starts = torch.zeros(len(tokens), 1, dtype=torch.long)
            return self._network(input_ids=tokens, decoder_input_ids=starts).logits[:, 0]


class AnswererHandler(NotingHandler):
    """The largest logit of each row.

    Args:
        folder: where it writes.
        model: the model's folder.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, folder: str, model: str, **options: Any) -> None:
        super().__init__(folder, **options)
        self._model = model

    def make_rows(self, start: int, stop: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Token ids (TOKENS,)."""
        noise = torch.Generator().manual_seed(start)
        for number in range(start, stop):
            yield number, torch.randint(1, _VOCABULARY, (TOKENS,), generator=noise)

    def make_model(self) -> Any:
        """From its folder."""
        return Answerer(T5ForConditionalGeneration.from_pretrained(self._model).eval())

    def predict(self, rows: Sequence[torch.Tensor], model: Answerer) -> list[float]:
        """One tensor to the model and one back."""
        return model.predict(torch.stack(list(rows))).amax(dim=1).tolist()


class AbsentAnswererHandler(AnswererHandler):
    """Has the same imports and rows, and no model: what processes take without one."""

    def make_model(self) -> Any:
        """One that has no weights."""
        return NoAnswerer()


class NoAnswerer:
    """Computes next to nothing, but takes its time, so that there is something to see."""

    def predict(self, tokens: torch.Tensor) -> torch.Tensor:
        """Zeros, after a small multiplication that starts PyTorch's machinery."""
        time.sleep(0.3)
        return (torch.zeros(len(tokens), 64) @ torch.zeros(64, 64)).relu()


if __name__ == "__main__":
    save(*sys.argv[1:])

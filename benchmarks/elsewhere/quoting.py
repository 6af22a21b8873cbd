"""Handlers whose runs are quoted."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import headrace
from elsewhere.asking import Async, Connections

LATENCY_SECS = 0.02
INPUT_TOKENS = 200


class Asking(Async):
    """Asks the quota server about the number of a row."""

    async def request(
        self, batch: Sequence[Mapping[str, int]], model: Connections, inference_args: Any = None
    ) -> list[int]:
        return await model.ask([row["n"] for row in batch])


class Writing(headrace.RemoteModelHandler[Mapping[str, int], int, None]):
    """A language model that is paid for: lengths of answers are lognormal with sigma 1."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def create_client(self) -> None:
        return None

    def request(self, batch: Sequence[Mapping[str, int]], model: None, inference_args: Any = None) -> list[int]:
        time.sleep(LATENCY_SECS)
        lengths = [length(self.seed, row["n"]) for row in batch]
        headrace.report_usage("m", input_tokens=INPUT_TOKENS * len(batch), output_tokens=sum(lengths))
        return lengths

    def batch_elements_kwargs(self) -> dict[str, int]:
        return {"max_batch_size": 1}


def length(seed: int, number: int) -> int:
    """Tokens of an answer."""
    return round(random.Random(seed * 1_000_003 + number).lognormvariate(5, 1))

"""Holds back elements whose equal is on its way to an endpoint: its answer will be theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.batching.batcher import Batch

NamedBatch = tuple[Any, Batch]
"""A batch, and the name of the model that it is for."""


class Duplicates:
    """The elements of one bundle that are on their way, by their keys in the cache, and those that wait for them."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[NamedBatch]] = {}

    def hold(self, name: Any, batch: Batch) -> Batch | None:
        """Holds back the elements whose equal is on its way; returns the others, which now are. None if all wait."""
        first: list[int] = []
        for place, key in enumerate(batch.cache_keys):
            if key is not None and key in self._waiting:
                self._waiting[key].append((name, batch.pick([place])[0]))
                continue
            first.append(place)
            if key is not None:
                self._waiting[key] = []
        if len(first) == len(batch.cache_keys):
            return batch
        return batch.pick(first)[0] if first else None

    def release(self, keys: Sequence[bytes | None]) -> list[NamedBatch]:
        """What waited for the elements with these keys, which have come back."""
        return [batch for key in keys if key is not None for batch in self._waiting.pop(key, ())]

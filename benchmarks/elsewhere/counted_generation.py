"""Generates text with transformers, on so many threads, and counts the tokens whose computation a prompt was spared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from headrace.handlers.huggingface_generation import HuggingFaceGenerationModelHandler


class CountedGenerationHandler(HuggingFaceGenerationModelHandler):
    """Its predictions have two keys more: ``host``, their process, and ``found``, what that has found in its cache.

    Args:
        folder: of the model.
        threads: how many the engine computes with.
        options: those of the handler for generation.
    """

    def __init__(self, folder: Path, threads: int, **options: Any) -> None:
        super().__init__(folder, **options)
        self._threads = threads
        self._found = 0

    def load_model(self) -> Any:
        """Counts in the whole process, which has one engine."""
        torch.set_num_threads(self._threads)
        search = PagedAttentionCache.search_prefix_match

        def counting(cache: Any, *arguments: Any) -> int:
            found: int = search(cache, *arguments)
            self._found += found
            return found

        PagedAttentionCache.search_prefix_match = counting
        return super().load_model()

    async def submit(self, example: Any, model: Any, inference_args: dict[str, Any] | None = None) -> Any:
        """As the handler for generation does."""
        result = await super().submit(example, model, inference_args)
        return result._replace(inference={**result.inference, "host": os.getpid(), "found": self._found})

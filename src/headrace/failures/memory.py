"""Recognises errors for lack of memory, and frees some."""

from __future__ import annotations

import gc
import sys

_CLASSES = {"OutOfMemoryError", "ResourceExhaustedError"}
"""Error classes of PyTorch and TensorFlow, by name, since neither is imported here."""
_WORDS = ("out of memory", "can't allocate memory", "failed to allocate memory", "status_alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the machine or a device ran out of memory, so that a smaller batch may succeed."""
    if isinstance(error, MemoryError) or _CLASSES & {cls.__name__ for cls in type(error).__mro__}:
        return True
    is_frameworks = isinstance(error, RuntimeError) or type(error).__module__.startswith("onnxruntime.")
    return is_frameworks and any(words in str(error).lower() for words in _WORDS)


def free_memory() -> None:
    """Collects garbage, and empties PyTorch's cache of GPU memory."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.cuda.empty_cache()  # does nothing if no GPU was used

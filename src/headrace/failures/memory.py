"""What is to be done where a batch needs more memory than there is."""

from __future__ import annotations

import gc
import sys

_CLASSES = {"OutOfMemoryError", "ResourceExhaustedError"}
"""Of PyTorch and of TensorFlow, which are not imported here."""
_WORDS = ("out of memory", "can't allocate memory", "failed to allocate memory", "status_alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was wanting, the machine's or a device's: with a smaller batch it might not be."""
    if isinstance(error, MemoryError) or _CLASSES & {cls.__name__ for cls in type(error).__mro__}:
        return True
    is_frameworks = isinstance(error, RuntimeError) or type(error).__module__.startswith("onnxruntime.")
    return is_frameworks and any(words in str(error).lower() for words in _WORDS)


def free_memory() -> None:
    """Lets go of what nobody refers to, and of what PyTorch keeps for later."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.cuda.empty_cache()  # does nothing where no GPU was used

"""Recognises errors that mean that memory is short, or that a process has lost its device for good."""

from __future__ import annotations

import gc
import re
import sys
from itertools import takewhile

from headrace.core.errors import DeviceLostError, HostError, as_type_name, causes

_CLASSES = {"OutOfMemoryError", "ResourceExhaustedError"}
"""Error classes of PyTorch and TensorFlow, by name, since neither is imported here."""
_WORDS = ("out of memory", "can't allocate memory", "failed to allocate memory", "status_alloc_failed")
_FRAMEWORKS = {"cupy", "cupy_backends", "jaxlib", "numba", "onnxruntime", "pycuda", "tensorflow", "torch", "xgboost"}
"""Packages whose errors count even if they are not RuntimeErrors."""

_EVENTS = (
    "device-side assert triggered",
    "an illegal (memory access|instruction) was encountered",
    "misaligned address",
    "invalid program counter",
    "hardware stack error",
    "operation not supported on global/shared address space",
    "unspecified launch failure",
    "the launch timed out and was terminated",
    "uncorrectable (ecc|nvlink) error",
    "context is destroyed",
)
"""What CUDA and HIP say in their messages."""

_NAMES = (
    "assert",
    "illegal_?(address|instruction)",
    "misaligned_?address",
    "invalid_?pc",
    "hardware_?stack_?error",
    "invalid_?address_?space",
    "launch_?(failed|failure|time_?out)",
    "(ecc|nvlink)_?(uncorrectable|not_?correctable)",
    "context_?is_?destroyed",
)
"""Ends of error names, such as CUDA_ERROR_ILLEGAL_ADDRESS and cudaErrorIllegalAddress."""

_LOST = re.compile(
    "|".join(
        [
            rf"(?i:\b(cuda|hip)|(?-i:\bcu[A-Z]))[^\n]*?(?i:{'|'.join(_EVENTS)})",
            rf"(?i:\b(cuda|hip)_?error_?({'|'.join(_NAMES)})\b)",
            r"\bGPU sync failed\b",  # TensorFlow
            r"\bGetDeviceRemovedReason\b|\b(0x)?887[Aa]00(05|06|07|20)\b",  # DirectX: removed, hung, reset, driver
            r"\b(UR|ZE|PI)(_RESULT)?_ERROR_DEVICE_LOST\b",  # Intel
            r"\bkIOGPUCommandBufferCallbackErrorSubmissionsIgnored\b",  # Metal
        ]
    )
)


def device_loss(error: BaseException) -> BaseException | None:
    """The error, or the one among its causes, after which no call of this process to its device can succeed.

    None for others: they are transient, such as lack of memory; or about the program, such as "no kernel image"; or
    they ended a host, which takes its lost device with it.
    """
    before_a_host = takewhile(lambda link: not isinstance(link, HostError), causes(error))
    return next(filter(_is_device_loss, before_a_host), None)


def one_line(error: BaseException) -> str:
    """An error's class and the first line of its message."""
    return f"{as_type_name(error)}: {next(iter(_text(error).splitlines()), '')}"


def _is_device_loss(error: BaseException) -> bool:
    if isinstance(error, DeviceLostError):
        return True
    is_frameworks = any(cls.__module__.partition(".")[0] in _FRAMEWORKS for cls in type(error).__mro__)
    return (is_frameworks or isinstance(error, RuntimeError)) and _LOST.search(_text(error)) is not None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


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

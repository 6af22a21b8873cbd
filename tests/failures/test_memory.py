"""Out-of-memory errors are told apart from all others, by the messages of every framework."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException

from headrace import ModelMemoryError
from headrace.failures.device import free_memory, is_out_of_memory
from large import torch


class ResourceExhaustedError(Exception):
    """Has the name of TensorFlow's."""


def numpys():
    numpy.empty(10**15)


def torchs():
    torch.empty(10**15)


@pytest.mark.parametrize("allocate", [numpys, pytest.param(torchs, marks=pytest.mark.large)])
def test_errors_of_allocators_are_out_of_memory(allocate):
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        allocate()
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (ModelMemoryError("m", "none"), True),
        (ResourceExhaustedError("OOM when allocating tensor"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (
            RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer"),
            True,
        ),
        (RuntimeException("[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer"), True),
        (RuntimeException("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Unexpected input data type"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("the row speaks of: out of memory"), False),
        (OSError("out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_out_of_memory_messages_are_recognized(error, expected):
    assert is_out_of_memory(error) is expected


def test_pytorch_cache_is_freed(monkeypatch):
    freed = []
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: freed.append("cache")))
    )
    free_memory()
    monkeypatch.delitem(sys.modules, "torch")
    free_memory()
    assert freed == ["cache"]

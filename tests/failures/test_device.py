"""A lost device is told apart from transient errors, by the messages of every framework."""

from __future__ import annotations

import pytest
import tensorflow
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from xgboost.core import XGBoostError

from headrace import DeviceLostError, HostDiedError
from headrace.failures.device import device_loss, one_line
from toys import with_attributes

pytestmark = pytest.mark.large

PYTORCH = """CUDA error: {}
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
ASSERT = PYTORCH.format("device-side assert triggered")


@pytest.mark.parametrize(
    "error",
    [
        DeviceLostError("the stick was pulled out"),
        torch.AcceleratorError(ASSERT),
        torch.AcceleratorError(PYTORCH.format("an illegal memory access was encountered")),
        torch.AcceleratorError(PYTORCH.format("an illegal instruction was encountered")),
        torch.AcceleratorError(PYTORCH.format("misaligned address")),
        torch.AcceleratorError(PYTORCH.format("unspecified launch failure")),
        torch.AcceleratorError(PYTORCH.format("the launch timed out and was terminated")),
        torch.AcceleratorError(PYTORCH.format("uncorrectable ECC error encountered")),
        torch.AcceleratorError(PYTORCH.format("uncorrectable NVLink error detected during the execution")),
        torch.AcceleratorError("HIP error: an illegal memory access was encountered\nSearch for `hipError"),
        RuntimeError("cuda runtime error (59) : device-side assert triggered at /torch/lib/THC/THCTensorCopy.c:18"),
        RuntimeError("Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
        RuntimeError("The GPU device instance has been suspended. Use GetDeviceRemovedReason to determine the ..."),
        RuntimeError("Ignored (for causing prior errors) (4:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"),
        RuntimeError("cuStreamSynchronize failed: an illegal memory access was encountered"),
        RuntimeError("INTERNAL: Failed to synchronize: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"),
        RuntimeError("CUDA_ERROR_ASSERT"),
        RuntimeError("hipErrorECCNotCorrectable"),
        tensorflow.errors.InternalError(None, None, "GPU sync failed"),
        tensorflow.errors.InternalError(None, None, "Failed to query event: CUDA_ERROR_LAUNCH_FAILED"),
        tensorflow.errors.UnknownError(None, None, "CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address"),
        Fail(
            "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; "
            "hostname=h ; expr=cudaStreamSynchronize(static_cast<cudaStream_t>(stream_));"
        ),
        Fail("[ONNXRuntimeError] : 1 : FAIL : ExecutionProvider.cpp(962): 887A0005 The GPU device instance has been"),
        XGBoostError("parallel_for failed: cudaErrorIllegalAddress: an illegal memory access was encountered"),
    ],
    ids=repr,
)
def test_device_loss_is_recognized(error):
    assert device_loss(error) is error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        torch.AcceleratorError(PYTORCH.format("no kernel image is available for execution on the device")),
        torch.AcceleratorError(PYTORCH.format("invalid device ordinal")),
        torch.AcceleratorError(PYTORCH.format("invalid configuration argument")),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("No CUDA GPUs are available"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB)"),
        RuntimeError("the current row: a misaligned address"),
        tensorflow.errors.ResourceExhaustedError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
        tensorflow.errors.InvalidArgumentError(None, None, "indices[0] = 7 is not in [0, 5)"),
        Fail("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0"),
        ValueError(f"no label can be read from the text {ASSERT!r}"),
        HostDiedError(ASSERT),
        MemoryError(),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_other_errors_are_no_device_loss(error):
    assert device_loss(error) is None


def test_what_led_to_an_error_counts_unless_it_is_over():
    lost, error = RuntimeError(ASSERT), ValueError("no prediction")
    assert device_loss(with_attributes(error, __context__=lost)) is lost
    assert device_loss(with_attributes(error, __suppress_context__=True)) is None
    assert device_loss(with_attributes(error, __cause__=with_attributes(OSError(), __cause__=lost))) is lost
    assert device_loss(with_attributes(error, __cause__=with_attributes(HostDiedError(), __cause__=lost))) is None
    assert device_loss(with_attributes(error, __cause__=with_attributes(OSError(), __cause__=error))) is None


def test_an_error_whose_text_raises_is_no_device_loss():
    class Mute(RuntimeError):
        def __str__(self):
            raise TypeError("no words")

    assert device_loss(Mute()) is None
    assert one_line(DeviceLostError()) == "headrace.core.errors.DeviceLostError: "

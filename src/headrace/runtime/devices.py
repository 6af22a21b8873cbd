"""What happens after this process has lost its GPU: from then on every call fails, and no element is to blame."""

from __future__ import annotations

from typing import Any

from headrace.core.errors import DeviceLostError
from headrace.failures.device import device_loss, one_line
from headrace.runtime.plan import ONLY, is_remote
from headrace.runtime.spec import SessionSpec

_lost: dict[str, str] = {}
"""The error message for each model cache of this process whose device is lost."""


def catches(spec: SessionSpec, error: BaseException, model: Any = ONLY) -> bool:
    """Whether an exception becomes a failure of elements; if not, the caller raises it.

    Args:
        spec: of the session.
        error: the exception.
        model: the name of the model that raised it, if one did.

    Raises:
        DeviceLostError: the exception shows that this process has lost its device.
    """
    models = spec.plan.models
    about = [models[model]] if model in models else models.values()
    is_of_endpoint = all(map(is_remote, about))  # its device is not this process's
    culprit = device_loss(error) if isinstance(error, Exception) and not is_of_endpoint else None
    if culprit is not None and str(error) != _lost.get(spec.cache_name):
        _lost[spec.cache_name] = (
            f"{spec.plan.name} is of no use in this process any more, which has lost its device "
            f"({one_line(culprit)}). Only a new process can go on. With isolate=True (headrace run: --isolate) the "
            "model has a process of its own, which is replaced, and only the element that caused the loss fails."
        )
        raise DeviceLostError(_lost[spec.cache_name]) from error
    return isinstance(error, spec.caught) and not isinstance(error, DeviceLostError)


def check_device(spec: SessionSpec) -> None:
    """Call this before using the models.

    Raises:
        DeviceLostError: this process has lost the device of these models.
    """
    if _lost and spec.cache_name in _lost:
        raise DeviceLostError(_lost[spec.cache_name])

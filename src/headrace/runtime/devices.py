"""What becomes of models whose process has lost its device: no element is to blame for what fails from then on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.core.errors import DeviceLostError, HostDiedError
from headrace.failures.device import device_loss, in_a_line
from headrace.runtime.plan import ONLY, is_client
from headrace.runtime.spec import SessionSpec

_lost: dict[str, str] = {}
"""What is said about the models of this process that have lost their device, by their store."""


class DeviceLostInHostError(HostDiedError, DeviceLostError):
    """A model cannot be loaded: its host has lost its device over it. This process has lost nothing."""

    retryable = False


def catches(spec: SessionSpec, error: BaseException, model: Any = ONLY) -> bool:
    """Whether an exception is to become a failure of elements; otherwise the caller raises it.

    Args:
        spec: of the session.
        error: the exception.
        model: the name of the model that it is about, where it is about one.

    Raises:
        DeviceLostError: the exception says that this process has lost its device.
    """
    models = spec.plan.models
    about = [models[model]] if model in models else models.values()
    is_of_endpoint = all(map(is_client, about))  # whose device is not this process's
    culprit = device_loss(error) if isinstance(error, Exception) and not is_of_endpoint else None
    if culprit is not None and str(error) != _lost.get(spec.store):
        _lost[spec.store] = (
            f"{spec.plan.name} is of no use in this process any more, which has lost its device "
            f"({in_a_line(culprit)}). Only a new process can go on. With isolate=True (headrace run: --isolate) the "
            "model has a process of its own, which is replaced, and only the element that caused the loss fails."
        )
        raise DeviceLostError(_lost[spec.store]) from error
    return isinstance(error, spec.caught) and not isinstance(error, DeviceLostError)


def check_device(spec: SessionSpec) -> None:
    """To be called before the models are.

    Raises:
        DeviceLostError: this process has lost their device.
    """
    if _lost and spec.store in _lost:
        raise DeviceLostError(_lost[spec.store])


@contextmanager
def on_device(spec: SessionSpec, model: Any = ONLY) -> Iterator[None]:
    """For what calls the handler of that model and catches nothing itself.

    Raises:
        DeviceLostError: this process has lost its device, now or before.
    """
    check_device(spec)
    try:
        yield
    except Exception as error:
        catches(spec, error, model)
        raise

"""Where a PyTorch model goes: the CPU, the GPU, or wherever its own arguments say."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, TypeVar

from headrace.core.errors import ConfigurationError, extra_required

with extra_required("pytorch"):
    import torch

__all__ = ["CPU", "AutoPlacement", "device_named", "device_of", "is_usable", "load_onto"]

_LOGGER = logging.getLogger(__name__)

ModelT = TypeVar("ModelT")

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def device_named(name: str | torch.device) -> torch.device:
    """The device of a name, in any case: ``"CPU"``, ``"GPU"`` (CUDA's), or one of PyTorch's, such as ``"cuda:1"``.

    Raises:
        ConfigurationError: it names no device.
    """
    try:
        return torch.device(re.sub("^gpu(?=:|$)", "cuda", str(name).lower()))
    except RuntimeError:
        raise ConfigurationError(
            f"device must be 'CPU', 'GPU', or a device of PyTorch's such as 'cuda:0', not {name!r}."
        ) from None


def is_usable(device: torch.device) -> bool:
    """Whether the device can compute; CUDA may report itself as available although a driver is missing."""
    if device.type == "cpu":
        return True
    if device.type == "cuda" and not torch.cuda.is_available():
        return False
    try:
        torch.zeros(1, device=device).item()
    except Exception:
        _LOGGER.debug("%s cannot be used.", device, exc_info=True)
        return False
    return True


def load_onto(device: str | torch.device, load: Callable[[torch.device], ModelT]) -> ModelT:
    """Loads a model onto a device: returns ``load(device)``.

    A device that cannot be used, or onto which the model does not load, is replaced by the CPU, with a warning in the
    log.
    """
    device = device_named(device)
    if device.type == "cpu":
        return load(CPU)
    if not is_usable(device):
        _LOGGER.warning("The device %s was asked for, but cannot be used here; the model goes to the CPU.", device)
        return load(CPU)
    try:
        return load(device)
    except RuntimeError as error:
        _LOGGER.warning("The model did not load onto %s and goes to the CPU: %s", device, error)
        return load(CPU)


def device_of(model: Any, asked: str | torch.device) -> torch.device:
    """The device of the model's first weights, where its inputs belong; without weights, ``asked``.

    They differ if another copy of the handler loaded the model, and could not use the device ``asked`` for.
    """
    if isinstance(model, torch.nn.Module):
        for tensor in chain(model.parameters(), model.buffers()):
            return tensor.device
    device = device_named(asked)
    return device if is_usable(device) else CPU


class AutoPlacement:
    """The device of a model whose loading function may choose one itself.

    Args:
        device: as ``device_named`` takes it; None: the GPU if it can be used.
        arguments: keyword arguments of the loading function, perhaps with ``model_kwargs``; a ``device`` or
            ``device_map`` in either chooses the device.
        name: of the handler's argument that holds them.

    Raises:
        ConfigurationError: the device is unknown, or is given twice.
    """

    def __init__(self, device: str | torch.device | None, arguments: Mapping[str, Any], name: str) -> None:
        self._device = device_named(device) if device else None
        chosen = _chosen(arguments)
        if device and chosen:
            raise ConfigurationError(
                f"{name} say where the model goes ({', '.join(chosen)}), so device={device!r} would have no effect; "
                "leave one of them out."
            )

    def load(self, load: Callable[..., ModelT], arguments: Mapping[str, Any]) -> ModelT:
        """Loads a model: ``load(device=...)``, or ``load()`` if its arguments choose the device; as ``load_onto``."""
        if _chosen(arguments):
            return load()
        device = self._device or (CUDA if is_usable(CUDA) else CPU)
        return load_onto(device, lambda device: load(device=device))


def _chosen(arguments: Mapping[str, Any]) -> list[str]:
    given = {**(arguments.get("model_kwargs") or {}), **arguments}
    return [place for place in ("device", "device_map") if given.get(place) is not None]

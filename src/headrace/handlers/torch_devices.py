"""Where a PyTorch model goes: the CPU, the GPU, or wherever its own arguments say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, TypeVar

from headrace.core.errors import ConfigurationError, extra_required

with extra_required("pytorch"):
    import torch

__all__ = ["CPU", "AutoPlacement", "cuda_is_usable", "device_named", "device_of", "load_onto"]

_LOGGER = logging.getLogger(__name__)

ModelT = TypeVar("ModelT")

CPU = torch.device("cpu")
DEVICES = {"CPU": CPU, "GPU": torch.device("cuda")}


def device_named(name: str) -> torch.device:
    """The device that ``"CPU"`` or ``"GPU"`` names.

    Raises:
        ConfigurationError: it is another name.
    """
    if name not in DEVICES:
        raise ConfigurationError(f"device must be 'CPU' or 'GPU', not {name!r}.")
    return DEVICES[name]


def cuda_is_usable() -> bool:
    """Whether CUDA can hold a tensor; it may report itself as available although a driver is missing."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.empty(1, device="cuda")
    except Exception:
        _LOGGER.debug("CUDA says that it is available, but cannot be used.", exc_info=True)
        return False
    return True


def load_onto(device: torch.device, load: Callable[[torch.device], ModelT]) -> ModelT:
    """Loads a model onto a device: returns ``load(device)``.

    A GPU that cannot be used, or onto which the model does not load, is replaced by the CPU, with a warning in the log.
    """
    if device == CPU:
        return load(CPU)
    if not cuda_is_usable():
        _LOGGER.warning("device='GPU' was asked for, but no GPU can be used here; the model goes to the CPU.")
        return load(CPU)
    try:
        return load(device)
    except RuntimeError as error:
        _LOGGER.warning("The model did not load onto the GPU and goes to the CPU: %s", error)
        return load(CPU)


def device_of(model: Any, asked: torch.device) -> torch.device:
    """The device of the model's first weights, where its inputs belong; without weights, ``asked``.

    They differ if another copy of the handler loaded the model, and could not use the device ``asked`` for.
    """
    if isinstance(model, torch.nn.Module):
        for tensor in chain(model.parameters(), model.buffers()):
            return tensor.device
    return asked if asked == CPU or cuda_is_usable() else CPU


class AutoPlacement:
    """The device of a model whose loading function may choose one itself.

    Args:
        device: ``"CPU"`` or ``"GPU"``, in any case; None: the GPU if it can be used.
        arguments: keyword arguments of the loading function, perhaps with ``model_kwargs``; a ``device`` or
            ``device_map`` in either chooses the device.
        name: of the handler's argument that holds them.

    Raises:
        ConfigurationError: the device is unknown, or is given twice.
    """

    def __init__(self, device: str | None, arguments: Mapping[str, Any], name: str) -> None:
        self._device = device_named(str(device).upper()) if device else None
        given = {**(arguments.get("model_kwargs") or {}), **arguments}
        self._chosen = [place for place in ("device", "device_map") if given.get(place) is not None]
        if device and self._chosen:
            raise ConfigurationError(
                f"{name} say where the model goes ({', '.join(self._chosen)}), so device={device!r} would have no "
                "effect; leave one of them out."
            )

    def load(self, load: Callable[..., ModelT]) -> ModelT:
        """Loads a model: returns ``load(device=...)``, or ``load()`` if its arguments choose the device.

        A GPU that cannot be used, or onto which the model does not load, is replaced by the CPU, with a warning in the
        log.
        """
        if self._chosen:
            return load()
        device = self._device or DEVICES["GPU" if cuda_is_usable() else "CPU"]
        return load_onto(device, lambda device: load(device=device))

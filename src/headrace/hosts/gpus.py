"""Which GPU each of several copies of a model has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_GPUS = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")


def gpu_of(number: int, copies: int, environment: Mapping[str, str], driver: Path = _DRIVER) -> dict[str, str]:
    """Which GPU a copy sees, in its environment: copies are dealt out to them in turn.

    A single copy sees all of them, as it would elsewhere; so do all where there is only one.
    """
    gpus = visible_gpus(environment, driver)
    return {_GPUS: gpus[number % len(gpus)]} if copies > 1 and len(gpus) > 1 else {}


def visible_gpus(environment: Mapping[str, str], driver: Path = _DRIVER) -> list[str]:
    """NVIDIA's GPUs, as CUDA's variable names them: those that it names already, else all."""
    named = environment.get(_GPUS)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    try:
        return [str(number) for number in range(len(os.listdir(driver)))]
    except OSError:
        return []

"""Assigns GPUs to the copies of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_GPUS = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")


def gpu_of(number: int, copies: int, environment: Mapping[str, str], driver: Path = _DRIVER) -> dict[str, str]:
    """The environment variable that gives copy ``number`` its GPU, round robin; empty with a single copy or GPU."""
    gpus = visible_gpus(environment, driver)
    return {_GPUS: gpus[number % len(gpus)]} if copies > 1 and len(gpus) > 1 else {}


def visible_gpus(environment: Mapping[str, str], driver: Path = _DRIVER) -> list[str]:
    """The ids in ``CUDA_VISIBLE_DEVICES`` if it is set, else the numbers of all NVIDIA GPUs."""
    named = environment.get(_GPUS)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    try:
        return [str(number) for number in range(len(os.listdir(driver)))]
    except OSError:
        return []

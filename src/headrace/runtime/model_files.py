"""Estimates a model's size before it is loaded, from the files that its handler names."""

from __future__ import annotations

import os
from typing import Any

_LIKELY = ("model", "state_dict", "weights")
"""An attribute whose name contains one of these may hold the path of a model's file."""


def bytes_of_model_files(handler: Any) -> int | None:
    """A lower bound in bytes for the loaded model, from the local files that the handler names; None: unknown.

    A model in memory is rarely smaller than its file, except when loading quantizes it: count half of the file.
    """
    sizes = [_size(value) for name, value in vars(handler).items() if any(word in name.lower() for word in _LIKELY)]
    return sum(sizes) // 2 or None


def _size(value: Any) -> int:
    if not isinstance(value, str | os.PathLike):
        return 0
    try:
        path = os.fspath(value)
        return os.path.getsize(path) if os.path.isfile(path) else 0
    except (OSError, ValueError):  # not a path, or not readable
        return 0

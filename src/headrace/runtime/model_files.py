"""What can be known of a model before it is loaded: the files that its handler names."""

from __future__ import annotations

import os
from typing import Any

_LIKELY = ("model", "state_dict", "weights")
"""What an attribute's name contains if it names a model's file."""


def bytes_of_model_files(handler: Any) -> int | None:
    """At least how many bytes loading takes, going by the local files that the handler names; None: nothing is known.

    A model in memory is hardly smaller than its file: what is compressed, or loaded with fewer bits, is an exception,
    so that only half of a file is counted.
    """
    sizes = [_size(value) for name, value in vars(handler).items() if any(word in name.lower() for word in _LIKELY)]
    return sum(sizes) // 2 or None


def _size(value: Any) -> int:
    if not isinstance(value, str | os.PathLike):
        return 0
    try:
        path = os.fspath(value)
        return os.path.getsize(path) if os.path.isfile(path) else 0
    except (OSError, ValueError):  # no path, or none that may be looked at
        return 0

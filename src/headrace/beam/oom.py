"""Beam's public helper for functions that may run out of GPU memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from headrace.failures.memory import free_memory

_LOGGER = logging.getLogger(__name__)


class OOMProtectedFn:
    """A function that frees torch's cached memory if it runs out of GPU memory; the error is raised all the same."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        try:
            return self.func(*args, **kwargs)
        except Exception as error:
            if "out of memory" in str(error) and "CUDA" in str(error):
                _LOGGER.warning("CUDA ran out of memory; freeing cached memory.")
                free_memory()
            raise

"""Waiting for a condition: what tests do instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> object:
    """Waits for ``condition()`` to be true; returns its last value, true or not."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.002)
    return value

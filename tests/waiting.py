"""Waiting for a condition: what tests do instead of sleeping."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> object:
    """Waits for ``condition()`` to be true; returns its last value, true or not."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.002)
    return value


def answers(url: str) -> bool:
    """Whether a server says there that all is well."""
    with suppress(OSError):
        urllib.request.urlopen(url, timeout=5).close()
        return True
    return False

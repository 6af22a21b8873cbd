"""How a run imports its libraries: sooner, and so that they leave its threads the cores."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_IDLE = {"OPENBLAS_THREAD_TIMEOUT": "20", "GOMP_SPINCOUNT": "10000"}
"""How long a thread of OpenBLAS (the logarithm of the cycles), or of OpenMP (turns of a loop), that has nothing to do
keeps its core busy before it sleeps: less than a millisecond. By default it is 10 to 30 ms behind each call, so nearly
always, and what reads, decodes and writes needs that core."""


@contextmanager
def importing() -> Iterator[None]:
    """While the context is open, no garbage is collected: what is imported stays, and to look for it takes 0.2 s."""
    for name, value in _IDLE.items():
        if name != "GOMP_SPINCOUNT" or "OMP_WAIT_POLICY" not in os.environ:  # which says the same of OpenMP's threads
            os.environ.setdefault(name, value)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

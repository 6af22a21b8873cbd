"""Spares the garbage collector what imports have made, while a pipeline runs."""

from __future__ import annotations

import gc
import threading

_lock = threading.Lock()
_frozen_at_start = gc.get_freeze_count()  # some versions of Python freeze a few objects themselves
_holders = 0
_frozen_by_us = False


def hold_heap() -> None:
    """Freezes what there is, before any model loads; to be released as often as held.

    The modules of Beam and a framework are a million objects. A full collection looks at each of them (0.2 s), and a
    few batches with some thousand results bring one about. Who froze the heap before is left alone.
    """
    global _holders, _frozen_by_us  # noqa: PLW0603 - the heap is the process's
    with _lock:
        if _holders == 0 and gc.get_freeze_count() <= _frozen_at_start:
            gc.freeze()
            _frozen_by_us = True
        _holders += 1


def release_heap() -> None:
    """With the last release, gives the heap back to the collector."""
    global _holders, _frozen_by_us  # noqa: PLW0603 - as above
    with _lock:
        _holders -= 1
        if _holders == 0 and _frozen_by_us:
            gc.unfreeze()
            _frozen_by_us = False

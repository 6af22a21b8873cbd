"""Keeps imported modules out of garbage collections while a pipeline runs."""

from __future__ import annotations

import gc
import threading

_lock = threading.Lock()
_frozen_at_start = gc.get_freeze_count()  # some versions of Python freeze a few objects themselves
_holders = 0
_frozen_by_us = False


def hold_heap() -> None:
    """Freezes all objects that exist now; call it before a model loads, and ``release_heap`` once for each call.

    Beam and a framework are a million objects. Each full collection visits them all (0.2 s), and a few batches with
    some thousand results trigger one. A heap that somebody else has frozen is left alone.
    """
    global _holders, _frozen_by_us  # noqa: PLW0603 - the heap belongs to the process
    with _lock:
        if _holders == 0 and gc.get_freeze_count() <= _frozen_at_start:
            gc.freeze()
            _frozen_by_us = True
        _holders += 1


def release_heap() -> None:
    """Unfreezes the heap at the last release."""
    global _holders, _frozen_by_us  # noqa: PLW0603 - as above
    with _lock:
        _holders -= 1
        if _holders == 0 and _frozen_by_us:
            gc.unfreeze()
            _frozen_by_us = False

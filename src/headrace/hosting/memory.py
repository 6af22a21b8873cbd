"""How much memory this process uses, and what of it the garbage collector need not look at."""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path

_SMAPS = Path("/proc/self/smaps_rollup")


def process_bytes() -> int:
    """Bytes of memory that are this process's own share now.

    On Linux the proportional set size (PSS): pages shared with other processes count in proportion, and unlike the
    peak resident size it falls when memory is freed. Elsewhere the peak resident size, the best that is at hand.
    """
    if _SMAPS.exists():
        for line in _SMAPS.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class FrozenHeap:
    """Spares the garbage collector, while it is held, the objects that there were before.

    The modules of Beam and a framework are a million objects. A full collection looks at each of them (0.2 s), and a
    batch with some thousand results soon brings one about. Whoever froze the heap before is left alone.
    """

    def __init__(self) -> None:
        self._frozen = False

    def hold(self) -> None:
        """Freezes what there is."""
        if gc.get_freeze_count() == 0:
            gc.freeze()
            self._frozen = True

    def release(self) -> None:
        """Gives it back to the collector."""
        if self._frozen:
            gc.unfreeze()
            self._frozen = False

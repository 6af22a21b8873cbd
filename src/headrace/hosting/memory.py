"""How much memory this process uses."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_SMAPS = Path("/proc/self/smaps_rollup")


def process_bytes() -> int:
    """Bytes of memory that are this process's own share now.

    On Linux the proportional set size (PSS): pages shared with other processes count in proportion, and unlike the
    peak resident size it falls when memory is freed. Elsewhere the peak resident size, the best that is at hand; on
    Windows nothing is, and it is 0.
    """
    if _SMAPS.exists():
        for line in _SMAPS.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return 0
    resource = importlib.import_module("resource")  # which Windows does not have
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""Locks of a handler that goes to another process: it gets new ones there, as with Beam's pickler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

LOCKS: Final[Mapping[type, Callable[[Any], Any]]] = {
    type(threading.Lock()): lambda _: (threading.Lock, ()),
    type(threading.RLock()): lambda _: (threading.RLock, ()),
}
"""Entries for a pickler's ``dispatch_table``. What a lock guards is copied, too, so nobody else holds the new one."""

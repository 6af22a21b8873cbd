"""SIGINT and SIGTERM, so that a command can end in an orderly way."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """While the context is open, a signal raises KeyboardInterrupt in the main thread and is remembered.

    It is remembered because modules that are being imported swallow some exceptions. A signal that the process was
    started to ignore stays ignored. Outside the main thread, the only one that can handle signals, nothing changes.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.heeded = True
        """Whether signals raise; not while one is being handled."""
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """What shells expect from a process that a signal ended."""
        return 128 + (self.received[0] if self.received else signal.SIGINT)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        if self.heeded:
            raise KeyboardInterrupt

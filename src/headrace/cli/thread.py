"""The thread that a run has to itself."""

from __future__ import annotations

import threading
from typing import Any


class RunThread(threading.Thread):
    """Runs the pipeline, so that the main thread can draw and be interrupted.

    Its end is an event: a ``Thread.join`` that an interrupt ends takes the thread for ended, too.
    """

    def __init__(self, run: Any) -> None:
        super().__init__(name="headrace-run", daemon=True)
        self._run = run
        self.done = threading.Event()
        self.report: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Runs it and keeps what came of it."""
        try:
            self.report = self._run.execute()
        except BaseException as error:  # the main thread reports it
            self.error = error
        finally:
            self.done.set()

"""Samples what the threads of this process are at, and what the process uses."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from headrace.core.events import Observer, WorkSampled
from headrace.core.phases import phase_of
from headrace.models.memory import resident_bytes

_PERIOD_SECS = 0.04
_REPORT_SECS = 0.5
_REST = 100
"""How many times longer than a sample takes the thread waits for the next one, at least."""


class Sampler:
    """A thread that samples this process, and reports ``WorkSampled`` twice a second; a context.

    Args:
        observer: receives the events, on that thread.
        clock: seconds.
    """

    def __init__(self, observer: Observer, clock: Callable[[], float] = time.monotonic) -> None:
        self._observer = observer
        self._clock = clock
        self._done: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread; only the first call does something."""
        if self._thread is None:
            self._done = threading.Event()
            arguments = (self._observer, self._done, self._clock)
            self._thread = threading.Thread(target=_sample, args=arguments, name="headrace-samples", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread, after a last report."""
        if self._thread is not None and self._done is not None:
            self._done.set()
            self._thread.join()

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sample(observer: Observer, done: threading.Event, clock: Callable[[], float]) -> None:
    """A phase gets the time since the last sample if any thread is in it.

    A call that holds the interpreter's lock delays the sample until it returns, in the function that made the call.
    Samples of hundreds of threads are fewer: they take a hundredth of the time.
    """
    phases: dict[str, float] = {}
    began = last = clock()
    computed = time.process_time()
    is_over, took = False, 0.0
    while not is_over:
        is_over = done.wait(max(_PERIOD_SECS, took * _REST))
        now, busy = clock(), time.thread_time()
        for phase in {phase_of(frame) for frame in sys._current_frames().values()}:
            if phase is not None:
                phases[phase.value] = phases.get(phase.value, 0.0) + now - last
        last, took = now, time.thread_time() - busy
        if is_over or now - began >= _REPORT_SECS:
            cpu = time.process_time()
            observer.on_event(WorkSampled(os.getpid(), now - began, phases, cpu - computed, resident_bytes()))
            began, computed, phases = now, cpu, {}

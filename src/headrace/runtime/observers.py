"""Distributes the events of this process, finds the recorders of what handlers count, and samples what is at work."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar
from weakref import ref

from headrace.core.events import Event, HandlerMetric, Observer, WorkSampled
from headrace.core.phases import Look, Phase, Sampled, phase_of
from headrace.models.memory import lines_of, resident_bytes

_PERIOD_SECS = 0.04
_REPORT_SECS = 0.5
_REST = 100
"""How many times longer than a sample takes the thread waits for the next one, at least."""

SampledT = TypeVar("SampledT", bound=Sampled)

_sampled: list[ref[Sampled]] = []
"""Changed and copied in one step each, without a lock, which a forked child might find taken."""
_subscribers: list[Observer] = []


@contextmanager
def subscribed(observer: Observer) -> Iterator[None]:
    """While the context is open, ``observer`` receives the events of every session of this process."""
    _subscribers.append(observer)
    try:
        yield
    finally:
        if observer in _subscribers:  # else this is a forked child
            _subscribers.remove(observer)


class FanOut:
    """Forwards events to the given observers and to all subscribers."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def on_event(self, event: Event) -> None:
        """Forwards the event."""
        for observer in (*self._observers, *_subscribers):
            observer.on_event(event)


class EngineMetrics:
    """The recorders of all engines that are imported, whose ``recording`` is that of this class; imports no engine.

    Create one per process: the constructor reads the metadata of every installed package (tens of milliseconds).
    """

    def __init__(self) -> None:
        self._unused = list(importlib.metadata.entry_points(group="headrace.recorders"))
        self._recorders: list[Any] = []

    def load_imported(self) -> None:
        """Loads the recorders of engines imported since the last call. Cheap if there are none."""
        for plug_in in [plug_in for plug_in in self._unused if plug_in.name in sys.modules]:
            self._recorders.append(plug_in.load()())
            self._unused.remove(plug_in)

    @contextmanager
    def recording(self, *, process_wide: bool = True) -> Iterator[list[HandlerMetric]]:
        """A list that holds, after the context, what this thread counted within it, and if so wanted all threads.

        It is also filled if an exception leaves the context. Metrics of an engine that is first imported within the
        context are recorded from the next context on.
        """
        self.load_imported()
        records: list[HandlerMetric] = []
        parts: list[list[HandlerMetric]] = []
        try:
            with ExitStack() as stack:
                parts += [stack.enter_context(one.recording(process_wide=process_wide)) for one in self._recorders]
                yield records
        finally:
            records += chain.from_iterable(parts)


def sample_also(one: SampledT) -> SampledT:
    """Has samplers look at something, which it returns, as long as anybody else keeps it."""
    _sampled.append(ref(one, _sampled.remove))
    return one


def _looks() -> Iterator[Look]:
    for one in (known() for known in list(_sampled)):
        with suppress(Exception):  # a host is just ending
            if one is not None:
                yield one.look()


class Sampler:
    """A thread that samples this process, and reports ``WorkSampled`` twice a second; a context.

    Args:
        observer: receives the events, on that thread.
        gpus: whether to sample the machine's GPUs.
    """

    def __init__(self, observer: Observer, *, gpus: bool = False) -> None:
        self._observer = observer
        self._gpus = gpus
        self._done: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Sampler:
        """Starts the thread; only the first call does something."""
        if self._thread is None:
            self._done = threading.Event()
            arguments = (self._observer, self._done, _gpu_figures() if self._gpus else dict)
            self._thread = threading.Thread(target=_sample, args=arguments, name="headrace-samples", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Ends the thread, after a last report."""
        if self._thread is not None and self._done is not None:
            self._done.set()
            self._thread.join()

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.close()


def _sample(observer: Observer, done: threading.Event, gpu_figures: Callable[[], Mapping[str, float]]) -> None:
    """A phase gets the time since the last sample if any thread is in it.

    A call that holds the interpreter's lock delays the sample until it returns, in the function that made the call.
    Samples of hundreds of threads are fewer: they take a hundredth of the time.
    """
    phases: dict[str, float] = {}
    began = last = time.monotonic()
    computed = time.process_time()
    is_over, took = False, 0.0
    while not is_over:
        is_over = done.wait(max(_PERIOD_SECS, took * _REST))
        now, busy = time.monotonic(), time.thread_time()
        looks = list(_looks())
        found = {phase_of(frame) for frame in sys._current_frames().values()}.union(*(look.phases for look in looks))
        if Phase.QUOTA in found:
            found.discard(Phase.ANSWERS)
        for phase in found:
            if phase is not None:
                phases[phase.value] = phases.get(phase.value, 0.0) + now - last
        last, took = now, time.thread_time() - busy
        if is_over or now - began >= _REPORT_SECS:
            cpu = time.process_time()
            hosts = {process: figures for look in looks for process in look.processes if (figures := _used(process))}
            gauges = Counter[str]({"memory": resident_bytes(), **gpu_figures()})
            for look in looks:
                gauges.update(look.gauges)
            observer.on_event(WorkSampled(os.getpid(), now - began, phases, cpu - computed, dict(gauges), hosts))
            began, computed, phases = now, cpu, {}


def _used(process: int) -> tuple[float, int] | None:
    """What another process has computed, in seconds, and its resident bytes; None: nobody knows."""
    fields = "".join(lines_of(Path(f"/proc/{process}/stat"))).rpartition(")")[2].split()
    if len(fields) < 22:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def _gpu_figures() -> Callable[[], dict[str, float]]:
    """What tells how busy the machine's GPUs are, and their memory in use: nothing without NVIDIA's, or ``pynvml``."""
    gpus: list[Any] = []
    with suppress(Exception):  # there is no such package, driver or device
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        gpus = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]

    def figures() -> dict[str, float]:
        try:
            busy = sum(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu for gpu in gpus) / 100
            memory = sum(nvml.nvmlDeviceGetMemoryInfo(gpu).used for gpu in gpus)
        except Exception:  # parts of a divided one do not say
            return {}
        return {"gpu_busy": busy, "gpu_memory": memory} if gpus else {}

    return figures


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_subscribers.clear)  # they watch another process

"""A thread samples what the others are at."""

from __future__ import annotations

import os
import threading

from headrace.core.events import Event, WorkSampled
from headrace.core.phases import Phase, during
from headrace.runtime.sampling import Sampler
from waiting import wait_until


class Samples:
    def __init__(self) -> None:
        self.events: list[WorkSampled] = []

    def on_event(self, event: Event) -> None:
        assert isinstance(event, WorkSampled)
        self.events.append(event)

    def spent(self, phase: Phase) -> float:
        return sum(event.phases.get(phase.value, 0.0) for event in list(self.events))


@during(Phase.MODEL)
def compute(done: threading.Event) -> None:
    done.wait()


@during(Phase.READING)
def read(done: threading.Event) -> None:
    done.wait()


def test_phases_of_all_threads_are_reported_and_nothing_stays_behind() -> None:
    samples, done = Samples(), threading.Event()
    threads = [threading.Thread(target=target, args=(done,)) for target in (compute, read)]
    try:
        with Sampler(samples):
            for thread in threads:
                thread.start()
            wait_until(lambda: samples.spent(Phase.MODEL) > 0 and samples.spent(Phase.READING) > 0)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert samples.spent(Phase.WRITING) == 0
    for event in samples.events:
        assert event.process == os.getpid()
        assert all(0 < spent <= event.seconds + 1e-6 for spent in event.phases.values())
        assert event.memory > 0
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-samples"]

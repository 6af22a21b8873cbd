"""A thread samples what the others are at."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import predict
from headrace.core.events import Event, WorkSampled
from headrace.core.phases import Look, Phase, during
from headrace.runtime.sampling import Sampler, sample_also
from headrace.testing import DoublingHandler
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
        assert event.gauges["memory"] > 0
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-samples"]


class Remote:
    """Something that is neither a thread nor here."""

    def __init__(self, process: int, *phases: Phase) -> None:
        self.phases, self.process = phases, process

    def look(self) -> Look:
        if not self.phases:
            raise OSError("it is ending")
        return Look(self.phases, {"in_flight": 7, "quota": 2.5}, [self.process])


def test_what_works_elsewhere_is_sampled_as_long_as_it_is_there() -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys\nwhile True: sum(range(1000))"]) as busy:
        one = sample_also(Remote(busy.pid, Phase.POSTPROCESSING, Phase.QUOTA))
        samples, done = Samples(), threading.Event()
        waiting = threading.Thread(target=wait_for_answers, args=(done,))
        waiting.start()
        try:
            with Sampler(samples):
                wait_until(lambda: samples.events and samples.events[-1].hosts[busy.pid][0] > 0.2)
        finally:
            busy.kill()
            done.set()
            waiting.join()
    assert samples.spent(Phase.POSTPROCESSING) > 0
    assert samples.spent(Phase.QUOTA) > 0
    assert samples.spent(Phase.ANSWERS) == 0, "what waits for a quota waits for no answer"
    assert samples.events[0].gauges["in_flight"] == 7
    assert samples.events[0].gauges["quota"] == 2.5
    del one
    ending = sample_also(Remote(busy.pid))
    later = Samples()
    with Sampler(later):
        wait_until(lambda: len(later.events) > 0)
    assert "quota" not in later.events[-1].gauges
    del ending


def test_what_an_isolated_host_is_at_is_sampled() -> None:
    def slow(value: Any) -> Any:
        time.sleep(0.2)
        return value

    samples = Samples()
    handler = DoublingHandler().with_preprocess_fn(slow).with_postprocess_fn(slow)
    with Sampler(samples):
        assert len(list(predict(handler, range(3), isolate=True))) == 3
    assert samples.spent(Phase.PREPROCESSING) > samples.spent(Phase.MODEL)
    assert samples.spent(Phase.POSTPROCESSING) > samples.spent(Phase.MODEL)
    assert any(event.hosts for event in samples.events)


@during(Phase.ANSWERS)
def wait_for_answers(done: threading.Event) -> None:
    done.wait()


def test_gpus_are_sampled_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=50 + gpu),
        nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(used=1000),
    )
    for module, figures in ((nvml, {"gpu_busy": 1.01, "gpu_memory": 2000}), (None, {})):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        samples = Samples()
        with Sampler(samples, gpus=True):
            pass
        assert {name: value for name, value in samples.events[-1].gauges.items() if "gpu" in name} == figures

"""A thread samples what the others are at."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

from headrace import predict
from headrace.core.phases import Look, Phase, during
from headrace.runtime.observers import Sampler, sample_also
from headrace.testing import DoublingHandler
from toys import Events
from waiting import wait_until


class Samples(Events):
    def spent(self, phase):
        return sum(event.phases.get(phase.value, 0.0) for event in self)


@during(Phase.MODEL)
def compute(done):
    done.wait()


@during(Phase.READING)
def read(done):
    done.wait()


@during(Phase.ANSWERS)
def wait_for_answers(done):
    done.wait()


@contextmanager
def running(*functions):
    done = threading.Event()
    threads = [threading.Thread(target=function, args=[done]) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_phases_of_all_threads_are_reported_and_nothing_stays_behind():
    samples = Samples()
    with running(compute, read), Sampler(samples):
        assert wait_until(lambda: samples.spent(Phase.MODEL) > 0 and samples.spent(Phase.READING) > 0)
    assert samples.spent(Phase.WRITING) == 0
    for event in samples:
        assert event.process == os.getpid()
        assert all(0 < spent <= event.seconds + 1e-6 for spent in event.phases.values())
        assert event.gauges["memory"] > 0
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-samples"]


class Remote:
    """Something that is neither a thread nor here."""

    def __init__(self, process, *phases):
        self.phases, self.process = phases, process

    def look(self):
        if not self.phases:
            raise OSError("it is ending")
        return Look(self.phases, {"in_flight": 7, "quota": 2.5}, [self.process])


def test_what_works_elsewhere_is_sampled_as_long_as_it_is_there(popen):
    busy = popen([sys.executable, "-c", "while True: sum(range(1000))"])
    one = sample_also(Remote(busy.pid, Phase.POSTPROCESSING, Phase.QUOTA))
    samples = Samples()
    with running(wait_for_answers), Sampler(samples):
        assert wait_until(lambda: samples and samples[-1].hosts[busy.pid][0] > 0.2)
    assert samples.spent(Phase.POSTPROCESSING) > 0
    assert samples.spent(Phase.QUOTA) > 0
    assert samples.spent(Phase.ANSWERS) == 0, "what waits for a quota waits for no answer"
    assert (samples[0].gauges["in_flight"], samples[0].gauges["quota"]) == (7, 2.5)
    del one
    ending = sample_also(Remote(busy.pid))
    later = Samples()
    with Sampler(later):
        assert wait_until(lambda: later)
    assert "quota" not in later[-1].gauges
    del ending


def test_what_an_isolated_host_is_at_is_sampled():
    def slow(value):
        time.sleep(0.2)
        return value

    samples = Samples()
    handler = DoublingHandler().with_preprocess_fn(slow).with_postprocess_fn(slow)
    with Sampler(samples):
        assert len(list(predict(handler, range(2), isolate=True))) == 2
    assert samples.spent(Phase.PREPROCESSING) > samples.spent(Phase.MODEL)
    assert samples.spent(Phase.POSTPROCESSING) > samples.spent(Phase.MODEL)
    assert any(event.hosts for event in samples)


def test_gpus_are_sampled_where_there_are_some(monkeypatch):
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
        assert {name: value for name, value in samples[-1].gauges.items() if "gpu" in name} == figures

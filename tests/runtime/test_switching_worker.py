"""Workers look for newer files while bundles run."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from headrace import KeyedModelHandler, KeyModelMapping, ModelHandler, ModelMetadata, PredictionResult
from headrace.core.events import ModelRefreshed, RefreshFailed
from headrace.runtime.plan import Refreshed
from headrace.runtime.prepare import InferenceRequest, prepare
from headrace.runtime.spec import FileWatch, ModelUpdate, Version, with_models
from headrace.runtime.switching_worker import SwitchingWorker
from headrace.runtime.worker import Worker
from headrace.testing import FakeClock
from toys import Events, run

INTERVAL = 10


class Named(ModelHandler):
    """Predicts its path; broken paths fail to load."""

    def __init__(self, path, broken=(), **options):
        super().__init__(**options)
        self.path = path
        self.broken = broken

    def load_model(self):
        if self.path in self.broken:
            raise ValueError(self.path)
        return self.path

    def update_model_path(self, model_path=None):
        self.path = model_path or self.path

    def run_inference(self, batch, model, inference_args=None):
        return [PredictionResult(example, model, self.path) for example in batch]


class Files:
    """A folder whose newest file is the one added last; listing it can be made to fail."""

    def __init__(self):
        self.clock = FakeClock()
        self.found = []
        self.looks = 0
        self.error = None
        self.broken = set()

    def put(self, path):
        self.found.insert(0, ModelUpdate(len(self.found), ModelMetadata(path, path)))

    def look(self):
        self.looks += 1
        if self.error is not None:
            raise self.error
        return list(self.found)


@pytest.fixture
def files():
    return Files()


@pytest.fixture
def open_worker(files, wait_until):
    """Opens a worker of the transform that watches the files."""
    stack, transform = ExitStack(), uuid.uuid4().hex

    def fresh():
        spec = prepare(Named("v0", files.broken), InferenceRequest(clock=files.clock))
        return replace(spec, transform=transform, watch=FileWatch("*.bin", files.look, INTERVAL))

    def make(until=stack):
        return until.enter_context(closing(SwitchingWorker(fresh)))

    with stack:
        yield make
    assert wait_until(lambda: "headrace-refresh" not in [one.name for one in threading.enumerate()])


def ask(worker, events=None):
    """The prediction of the serving model, for a bundle of one element."""
    bundle = worker.bundle(lambda _: Events() if events is None else events)
    bundle.follow(ModelUpdate(0, None))
    outcomes = [*bundle.add(1, None), *bundle.finish()]
    return next(value.inference for outcome in outcomes for value in outcome.values)


def test_newer_file_serves_after_the_next_look_and_one_that_fails_is_reported(files, open_worker, wait_until):
    worker, events = open_worker(), Events()
    ask(worker, events)
    files.put("v1")
    files.clock.advance(INTERVAL - 1)
    assert ask(worker, events) == "v0"
    assert files.looks == 1
    files.clock.advance(1)
    assert wait_until(lambda: ask(worker, events) == "v1")
    files.error = OSError("the store is away")
    files.clock.advance(INTERVAL)
    assert wait_until(lambda: ask(worker, events) == "v1" and events.of(RefreshFailed))
    assert (files.looks, len(events.of(ModelRefreshed)), len(events.of(RefreshFailed))) == (3, 1, 1)
    files.error = None
    files.put("v2")
    files.clock.advance(INTERVAL)
    assert wait_until(lambda: ask(worker, events) == "v2")


def test_worker_reopened_for_each_bundle_looks_in_time(files, open_worker, wait_until):
    def ask_anew():
        with ExitStack() as one:
            return ask(open_worker(one))

    assert ask_anew() == "v0"
    files.put("v1")
    files.clock.advance(INTERVAL)
    assert wait_until(lambda: ask_anew() == "v1")
    assert ask_anew() == "v1"
    assert files.looks == 2


def test_threads_that_begin_together_wait_for_one_look_and_have_the_newest_file(files, open_worker):
    files.put("older")
    files.put("v1")
    workers = [open_worker() for _ in range(4)]
    together = threading.Barrier(len(workers))

    def begin(worker):
        together.wait()
        return ask(worker)

    with ThreadPoolExecutor(len(workers)) as threads:
        assert list(threads.map(begin, workers)) == ["v1"] * len(workers)
    assert files.looks == 1


def test_first_model_is_the_previous_file_if_the_newest_fails_to_load(files, open_worker, wait_until):
    for path in ("v1", "bad", "worse"):
        files.put(path)
    files.broken |= {"bad", "worse"}
    worker = open_worker()
    assert ask(worker) == "v1"
    files.put("v2")
    files.clock.advance(INTERVAL)
    assert wait_until(lambda: ask(worker) == "v2")


def test_next_bundle_looks_again_if_the_first_look_fails_or_no_first_model_loads(files, open_worker):
    files.put("bad")
    files.broken |= {"bad", "v0"}
    worker = open_worker()
    files.error = OSError("no such folder")
    with pytest.raises(OSError, match="no such folder"):
        ask(worker)
    files.error = None
    with pytest.raises(ValueError, match="v0"):
        ask(worker)
    files.put("v2")
    assert ask(worker) == "v2"


def test_a_model_that_gets_a_path_of_its_own_keeps_its_options_and_its_cache(tmp_path):
    def fresh():
        handler = KeyedModelHandler([KeyModelMapping(["a", "b"], Named("v0", max_batch_size=2))])
        return prepare(handler, InferenceRequest(cache=str(tmp_path / "cache")))

    spec = with_models(Version().after({"b": Refreshed("v1", "second")}), fresh)
    assert {name: spec.plan.batching_of(name).max_batch_size for name in spec.plan.models} == {"a": 2, "b": 2}
    with closing(Worker(spec)) as worker:
        found = run(worker, [("a", 1), ("b", 1)])
    assert [(key, value.inference) for key, value in found] == [("a", "v0"), ("b", "v1")]

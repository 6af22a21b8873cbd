"""A newer model loads beside the older one, wherever models live, and replaces it between two batches."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import weakref
from functools import partial

import cloudpickle
import pytest

from headrace import (
    DeviceLostError,
    KeyedModelHandler,
    KeyModelMapping,
    KeyModelPathMapping,
    ModelHandler,
    ModelMetadata,
)
from headrace.core.events import BatchCompleted, ModelRefreshed, RefreshFailed
from headrace.core.result import PredictionResult
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.refresh import VersionedModels
from headrace.runtime.spec import ModelUpdate, SessionSpec
from headrace.runtime.switching_worker import SwitchingWorker
from headrace.testing import FakeDevice
from toys import Events

pytestmark = pytest.mark.usefixtures("module_travels")

PLACES = {
    "process": {},
    "isolated": {"isolate": True},
    "mapped": {"placement": "machine"},
    "mapped and isolated": {"placement": "machine", "isolate": True},
    "copies": {},
}
COPIES = {"copies": {"model_copies": 2}}


class Model:
    """Refers to itself, as models do."""

    def __init__(self, path):
        self.path = path
        self.itself = self


class Versioned(ModelHandler):
    """Predicts the path of its model and says so; loads a path when a file of its name is in the folder.

    Paths that begin with "bad" cannot be loaded. In the folder lies a note of each load and of each path asked for.
    """

    def __init__(self, folder, path="v0", **options):
        super().__init__(**options)
        self.folder, self._model_uri = folder, path

    def load_model(self):
        path = self._model_uri
        if path.startswith("bad"):
            raise ValueError(path)
        (self.folder / f"asked-{path}").touch()
        while not (path == "v0" or (self.folder / path).exists()):
            time.sleep(0.002)
        (self.folder / f"loaded-{path}-{os.getpid()}-{os.urandom(3).hex()}").touch()
        return Model(path)

    def update_model_path(self, model_path=None):
        self._model_uri = model_path or self._model_uri

    def run_inference(self, batch, model, inference_args=None):
        assert model.path == self._model_uri
        return [PredictionResult(example, (model.path, len(batch)), self._model_uri) for example in batch]


class Thread:
    """One thread's switching worker, and its outcomes and events."""

    def __init__(self, spec, first=ModelUpdate(0, None), waits=False):
        self.spec, self.events, self.moment = spec, Events(), 9
        self.worker = SwitchingWorker(partial(cloudpickle.loads, cloudpickle.dumps(spec)), waits=waits)
        self.begin(first)

    def close(self):
        if self.worker is not None:
            self.worker.close()
        self.worker = None

    @property
    def models(self):
        return self.worker.models

    def begin(self, first=ModelUpdate(0, None)):
        self.bundle = self.worker.bundle(lambda _: self.events)
        self.outcomes = []
        self.bundle.follow(first)

    def told(self, value):
        self.moment += 1
        update = ModelUpdate(self.moment, value if isinstance(value, list) else ModelMetadata(value, value))
        self.bundle.follow(update)
        return update

    def add(self, *elements):
        for element in elements:
            self.outcomes += self.bundle.add(element, element)

    def finish(self):
        self.outcomes += self.bundle.finish()
        values = [value for outcome in self.outcomes for value in outcome.values]
        self.begin()
        return values

    def ask(self, *elements):
        self.add(*elements)
        return self.finish()


@pytest.fixture
def place(request):
    """Arguments that place the model; on the machine, with a runtime directory of the test's own."""
    name = getattr(request, "param", "process")
    if "mapped" in name or name == "copies":
        request.getfixturevalue("runtime")
    return name


@pytest.fixture
def thread(place, wait_until):
    threads = []

    def make(handler, caught=(), **options):
        is_spec = isinstance(handler, SessionSpec)
        spec = handler if is_spec else catching(prepare(handler, InferenceRequest(**PLACES[place])), caught)
        threads.append(Thread(spec, **options))
        return threads[-1]

    yield make
    for one in threads:
        one.close()
    assert wait_until(lambda: "headrace-refresh" not in [one.name for one in threading.enumerate()])


@pytest.fixture
def serves(wait_until):
    """Waits until a version serves."""

    def wait(thread, path):
        assert wait_until(lambda: path in str(thread.models.serving.version))

    return wait


def models(path):
    """Weak references to the models that this process loaded from a path."""
    everything = gc.get_objects()
    return [weakref.ref(one) for one in everything if type(one) is Model and one.path == path]


def loads(folder, path):
    return len(list(folder.glob(f"loaded-{path}-*")))


def ids(values):
    return [value.model_id for value in values]


@pytest.mark.large
@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_old_model_serves_until_a_new_one_is_loaded(thread, serves, wait_until, tmp_path, place, caplog):
    one = thread(Versioned(tmp_path, max_batch_size=2, **COPIES.get(place, {})), caught=Exception)
    assert ids(one.ask(1, 2, 3)) == ["v0"] * 3
    with caplog.at_level(logging.WARNING, "headrace.runtime.refresh"):
        one.told("bad")
        assert wait_until(lambda: caplog.records)
    assert caplog.messages == ["Versioned: the refresh to bad failed; the handler's own goes on: ValueError('bad')"]
    one.told("v1")
    assert ids(one.ask(1, 2, 3)) == ["v0"] * 3
    (tmp_path / "v1").touch()
    serves(one, "v1")
    assert ids(one.ask(1, 2, 3)) == ["v1"] * 3
    assert (loads(tmp_path, "v0"), loads(tmp_path, "v1")) == (1, 1)
    one.finish()
    assert (len(one.events.of(RefreshFailed)), len(one.events.of(ModelRefreshed))) == (1, 1)


class Losing(Versioned):
    """Loses its device when it loads the model of that name."""

    device = FakeDevice()

    def load_model(self):
        if self._model_uri == "lost":
            self.device.lose()
        return super().load_model()


@pytest.mark.parametrize("place", ["process", "isolated"], indirect=True)
def test_new_model_over_which_the_device_is_lost(thread, wait_until, tmp_path, caplog, place):
    """In this process the device is lost for the older model, too; in a host of its own it is not."""
    one = thread(Losing(tmp_path), caught=Exception)
    one.ask(1)
    with caplog.at_level(logging.WARNING, "headrace.runtime.refresh"):
        one.told("lost")
        assert wait_until(lambda: [text for text in caplog.messages if "the refresh to lost failed" in text])
    if place == "isolated":
        assert ids(one.ask(1)) == ["v0"]
        return
    with pytest.raises(DeviceLostError, match="isolate=True"):
        one.ask(1)


def test_batch_has_one_model_although_it_changes_within_a_bundle(thread, serves, tmp_path):
    one = thread(Versioned(tmp_path, max_batch_size=4, min_batch_size=4))
    (tmp_path / "v1").touch()
    one.add(1, 2, 3, 4, 5, 6)
    one.told("v1")
    serves(one, "v1")
    values = one.ask(7, 8, 9, 10, 11)
    assert [value.inference for value in values] == [("v0", 4)] * 4 + [("v0", 2)] * 2 + [("v1", 4)] * 4 + [("v1", 1)]
    assert [value.example for value in values] == list(range(1, 12))


def test_old_model_drains_and_is_freed(thread, serves, wait_until, tmp_path):
    handler = Versioned(tmp_path)
    gc.collect()
    busy = thread(handler)
    idle = thread(busy.models.spec)
    assert idle.models is busy.models
    idle.ask(1)
    busy.add(1)
    (tmp_path / "v1").touch()
    busy.told("v1")
    serves(busy, "v1")
    old, new = models("v0"), models("v1")
    assert (len(old), len(new)) == (1, 1)
    assert ids(busy.ask(2)) == ["v0", "v1"]
    assert wait_until(lambda: old[0]() is None)
    assert new[0]() is not None


def test_old_model_that_cannot_be_released_ends_no_refresh(thread, serves, tmp_path, monkeypatch, caplog):
    one = thread(Versioned(tmp_path))
    old = one.models.serving.preloader

    def close(linger=False):
        type(old).close(old, linger=linger)
        raise OSError("no")

    monkeypatch.setattr(old, "close", close)
    for path in ("v1", "v2"):
        (tmp_path / path).touch()
        one.told(path)
        serves(one, path)
    assert ids(one.ask(1)) == ["v2"]
    assert "an older model could not be released" in caplog.text


def test_update_that_does_not_fit_the_handler_is_reported_once(thread, tmp_path):
    one = thread(Versioned(tmp_path))
    mappings = [KeyModelPathMapping(["a"], "v1")]
    one.bundle.follow(ModelUpdate(1, mappings))
    one.bundle.follow(ModelUpdate(1, mappings))
    one.bundle.follow(ModelUpdate(2, "v1"))
    assert ids(one.ask(1)) == ["v0"]
    messages = [str(event.error) for event in one.events.of(RefreshFailed)]
    assert len(messages) == 2
    assert "it is refreshed with a ModelMetadata, not [KeyModelPathMapping" in messages[0]
    assert "it is refreshed with a ModelMetadata, not 'v1'" in messages[1]


def test_threads_wait_for_their_own_models(thread, tmp_path):
    for path in ("v1", "v2"):
        (tmp_path / path).touch()
    one = thread(Versioned(tmp_path), waits=True)
    others = [thread(one.spec, waits=True) for _ in range(2)]
    one.told("v1")
    for other in others:
        other.told("v2")
    assert ids(one.ask(1)) == ["v1"]
    assert [ids(other.ask(1)) for other in others] == [["v2"], ["v2"]]
    assert loads(tmp_path, "v0") == loads(tmp_path, "v1") == loads(tmp_path, "v2") == 1


def test_worker_opened_during_an_earlier_load_gets_that_model(thread, serves, tmp_path, monkeypatch, wait_until):
    monkeypatch.setattr("headrace.runtime.refresh._LONGEST_END_SECS", 0.0)
    one = thread(Versioned(tmp_path))
    update = one.told("v1")
    loading = one.models
    assert wait_until((tmp_path / "asked-v1").exists)
    one.close()
    again = thread(one.spec, first=update)
    assert ids(again.ask(1)) == ["v0"]
    (tmp_path / "v1").touch()
    serves(again, "v1")
    assert ids(again.ask(1)) == ["v1"]
    assert wait_until(lambda: loading._thread is None)


def test_model_that_loads_when_the_transform_ends_is_released(tmp_path, thread, wait_until, when_in, monkeypatch):
    monkeypatch.setattr("headrace.runtime.refresh._LONGEST_END_SECS", 120.0)
    gc.collect()
    one = thread(Versioned(tmp_path))
    one.told("v1")
    assert wait_until((tmp_path / "asked-v1").exists)
    when_in(VersionedModels.close, (tmp_path / "v1").touch)
    one.bundle = None
    one.close()
    assert loads(tmp_path, "v1") == 1
    gc.collect()
    assert models("v0") == models("v1") == []


@pytest.mark.large
@pytest.mark.parametrize("place", ["process", "isolated", "mapped", "mapped and isolated"], indirect=True)
def test_update_changes_only_the_models_of_its_keys(thread, serves, tmp_path, place):
    mappings = [
        KeyModelMapping(["a", "b"], Versioned(tmp_path, "ab")),
        KeyModelMapping(["c"], Versioned(tmp_path, "c")),
    ]
    for path in ("ab", "c", "b2"):
        (tmp_path / path).touch()
    one = thread(KeyedModelHandler(mappings))
    answers = {key: value.model_id for key, value in one.ask(("a", 1), ("b", 2), ("c", 3))}
    assert answers == {"a": "ab", "b": "ab", "c": "c"}
    one.told([KeyModelPathMapping(["b"], "b2", "second")])
    serves(one, "b2")
    answers = {key: value.model_id for key, value in one.ask(("a", 1), ("b", 2), ("c", 3))}
    assert answers == {"a": "ab", "b": "b2", "c": "c"}
    if place != "isolated":
        assert loads(tmp_path, "ab") == loads(tmp_path, "c") == loads(tmp_path, "b2") == 1
    assert {event.model for event in one.events.of(BatchCompleted)} == {"a", "c", "b-second"}

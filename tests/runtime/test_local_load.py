"""Loads of shared models in a worker process: what they leave as it was, what they report, and what they let go."""

from __future__ import annotations

import copy
import gc
import os
import weakref
from dataclasses import replace
from functools import partial

import numpy
import pytest

from headrace import KeyedModelHandler, KeyModelMapping
from headrace.core.events import ModelLoaded
from headrace.ipc.weights_file import export
from headrace.machine.messages import ModelGrant
from headrace.runtime.acquire import LocalLoad, acquire
from headrace.runtime.model_source import Loaded, bytes_of_model_files
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, prepare
from headrace.testing import DoublingHandler

LOADED = ModelLoaded("", 1.0, 0)


class Weights:
    def __init__(self):
        self.numbers = numpy.arange(10_000.0)


def loading(make, *attributes):
    """A load that sets the model as attributes of its handler, too."""

    def load():
        model = make()
        return Loaded(model, "", {(): dict.fromkeys(attributes, model)}), LOADED

    return load


def here(make, *attributes):
    return LocalLoad(loading(make, *attributes))


class OthersLease:
    """A lease whose manager died after this process had loaded the model; with the next one, another process did."""

    def take(self, local):
        exported, _ = local()
        files, layout = export(Loaded(Weights(), "", {}), destroys=False)
        grant = ModelGrant(exported._replace(layout=layout), 0, is_first=False, variant="", free=0)
        return grant, [os.dup(files[0]), *files]


def test_load_that_another_process_replaces_is_not_reported(monkeypatch):
    monkeypatch.setattr("headrace.runtime.acquire.Lease", lambda load_request: OthersLease())
    events = []
    spec = prepare(DoublingHandler(large_model=True), InferenceRequest())
    acquired = acquire(spec, ONLY, events.extend, loading(Weights))
    acquired.close_files()
    assert acquired.loaded is None
    assert events == []


def test_closed_load_keeps_no_model():
    local = here(Weights)
    _, [file] = local()
    (mapped, _, _, _), events = local.mapped_from(file)
    assert events == [LOADED]
    gone = weakref.ref(mapped)
    del mapped
    assert gone() is not None
    local.close()
    assert gone() is None


@pytest.mark.large
@pytest.mark.parametrize("holder", ["nobody", "handler", "cache"])
def test_tensors_move_unless_something_else_holds_the_model(holder):
    import torch

    tensor = torch.rand(10_000)
    before = tensor.data_ptr()
    cache = []

    def make():
        model = {"weight": tensor}
        if holder == "cache":
            cache.append(model)
        return model

    local = here(make, *(["model"] if holder == "handler" else []))
    local()
    local.close()
    assert (tensor.data_ptr() == before) == (holder == "cache")


def test_model_in_a_reference_cycle_is_not_kept_beside_its_mapping():
    made = []

    def cycle():
        model = Weights()
        model.itself = model
        made.append(weakref.ref(model))
        return model

    gc.disable()
    try:
        local = here(cycle)
        local()
        assert [one() for one in made] == [None]
    finally:
        gc.enable()
    local.close()


def test_export_that_fails_has_another_process_load(monkeypatch):
    monkeypatch.setattr("headrace.runtime.acquire.export", partial(fail, RuntimeError("no such tensor")))
    exported, files = here(Weights)()
    assert exported.reason == "copying it failed (RuntimeError: no such tensor)"
    assert not files


def fail(error, *args, **options):
    raise error


def test_load_in_vain_leaves_nothing_on_the_handler_of_its_thread(home):
    mapping = KeyModelMapping(["a"], home.handler(home.guarded, large_model=True))
    spec = home.spec(KeyedModelHandler([mapping]))
    first = home.open(spec)
    second = home.open(replace(spec, plan=copy.deepcopy(spec.plan)))
    second.load("a")
    assert len(home.noted("loaded")) == 2  # here in vain, and by a host
    for worker in (first, second):
        assert not hasattr(worker.plan.models["a"], "made")


def test_model_that_is_loaded_again_sets_attributes_of_every_threads_handler(home, monkeypatch):
    monkeypatch.setattr("headrace.runtime.placement.allowed_cores", lambda: 1)
    spec = home.spec(home.handler(), placement="auto")
    specs = [replace(spec, plan=replace(spec.plan, models={ONLY: copy.copy(spec.plan.handler)})) for _ in range(2)]
    assert home.run(specs[0])[0] == home.run(specs[1])[0]
    assert len(home.noted("loaded")) == 2  # for all, to learn its size, and for this process


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(1000))
    return path


def bytes_of(**attributes):
    handler = DoublingHandler()
    vars(handler).update(attributes)
    return bytes_of_model_files(handler)


@pytest.mark.parametrize("name", ["model_uri", "_model", "state_dict_path", "the_WEIGHTS"])
def test_estimate_is_half_of_the_files_that_a_handler_names(file, name):
    assert bytes_of(**{name: str(file), "weights": file, "vocabulary_path": str(file)}) == 1000


@pytest.mark.parametrize(
    "value", ["gs://bucket/model.bin", "no such file", "a\0null", "x" * 5000, "", "/tmp", None, 7, b"model", ["m"]]
)
def test_estimate_is_unknown_without_a_local_file(value):
    assert bytes_of(model_uri=value) is None

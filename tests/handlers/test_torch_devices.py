"""Where PyTorch models go: the device asked for, or else the CPU, with a warning in the log."""

from __future__ import annotations

import logging

import pytest
import torch

from headrace import ConfigurationError
from headrace.handlers import torch_models
from headrace.handlers.torch_models import CPU, device_named, device_of, load_onto, refuse_two_devices

pytestmark = pytest.mark.large


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_devices_are_pytorchs_in_any_case():
    names = {"CPU": "cpu", "Cpu": "cpu", "GPU": "cuda", "gpu": "cuda", "CUDA": "cuda", "GPU:1": "cuda:1", "Mps": "mps"}
    for given, device in names.items():
        assert device_named(given) == device_named(device) == device_named(torch.device(device)) == torch.device(device)
    for wrong in ("", None, "graphics", "gpu0", "cuda:"):
        with pytest.raises(ConfigurationError, match=r"device must be 'CPU', 'GPU', or .* such as 'cuda:0', not"):
            device_named(wrong)


@pytest.mark.parametrize("device", ["GPU", "cuda:7", "mps", "meta"])
def test_model_goes_to_the_cpu_without_the_device(device, no_gpu, caplog):
    assert load_onto(device, lambda place: place, {}) == CPU
    assert {(one.levelno, "cannot be used here" in one.message) for one in caplog.records} == {(logging.WARNING, True)}


def test_cpu_is_no_reason_to_warn(no_gpu, caplog):
    for device in ("cpu", None):
        assert load_onto(device, lambda place: place, {}) == CPU
    assert caplog.records == []


def test_model_that_does_not_fit_the_gpu_goes_to_the_cpu(monkeypatch, caplog):
    failures = iter([RuntimeError("CUDA out of memory")])

    def load(place):
        for failure in failures:
            raise failure
        return place

    monkeypatch.setattr(torch_models, "is_usable", lambda _: True)
    assert load_onto("GPU", load, {}) == CPU
    (record,) = caplog.records
    assert record.message == "The model did not load onto cuda and goes to the CPU: CUDA out of memory"


@pytest.mark.parametrize(
    "where", [{"device": "cpu"}, {"device_map": "cpu"}, {"model_kwargs": {"device_map": "cpu"}}], ids=str
)
def test_arguments_of_the_loader_may_name_the_device(where):
    assert load_onto(None, lambda place: place, where) is None
    with pytest.raises(ConfigurationError, match="load_args say where the model goes"):
        refuse_two_devices("CPU", where, "load_args")


@pytest.mark.parametrize(
    ("model", "device"),
    [
        (torch.nn.Linear(3, 2, device="meta"), "meta"),
        (torch.nn.BatchNorm1d(3, affine=False, device="meta"), "meta"),
        (torch.nn.ReLU(), "cpu"),
        (len, "cpu"),
    ],
    ids=["parameters", "buffers", "neither", "no module"],
)
@pytest.mark.parametrize("asked", ["CPU", "GPU"])
def test_inputs_go_where_the_model_is(model, device, asked, no_gpu):
    assert device_of(model, asked).type == device

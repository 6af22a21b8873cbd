"""One element of many makes its host lose its device: it is the only dead letter, wherever the host runs."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest

from headrace import BatchingConfig, Failure, HostDiedError, Stage, predict
from headrace.testing import DeviceLosingHandler, DoublingHandler, FakeDevice
from toy_engine import Engine
from toys import fixed

pytestmark = pytest.mark.large

SAID = "RuntimeError: CUDA error: device-side assert triggered"
BATCHING = BatchingConfig(16, 16)
PLACES = {
    "isolated": ({}, {"isolate": True}),
    "timed": ({}, {"timeout": 60}),
    "mapped and isolated": ({}, {"isolate": True, "placement": "machine"}),
    "copies": ({"model_copies": 2}, {}),
}


@pytest.fixture(params=PLACES)
def place(request, own_runtime):
    with own_runtime() if request.param in ("mapped and isolated", "copies") else nullcontext():
        yield request.param


def sorted_out(outcomes):
    outcomes = list(outcomes)
    failures = [one for one in outcomes if isinstance(one, Failure)]
    return [one for one in outcomes if not isinstance(one, Failure)], failures


def test_a_device_lost_in_inference_fails_its_element_alone(place):
    """Two batches later another element does so; the batches between succeed."""
    options, asked = PLACES[place]
    handler = DeviceLosingHandler(5, 40, **options)
    good, bad = sorted_out(predict(handler, range(64), on_failure="yield", batching=BATCHING, **asked))
    assert [one.inference for one in good] == [2 * n for n in range(64) if n not in (5, 40)]
    assert [(one.element, one.stage, one.index) for one in bad] == [(5, Stage.INFERENCE, 0), (40, Stage.INFERENCE, 0)]
    for failure, position in zip(bad, (5, 8), strict=True):
        where = f"element {position} (counted from 0) of a batch of 16."
        assert type(failure.error) is HostDiedError
        assert str(failure.error) == f"the host lost its device ({SAID}) while it was running inference on {where}"


class LostOnTheWay(DoublingHandler):
    """Its predictions stay on a device until they are sent; only then does the loss of the device show."""

    def __init__(self, *poison):
        super().__init__()
        self._poison, self._device = poison, FakeDevice()

    def run_inference(self, batch, model, inference_args=None):
        self._device.use()
        fetch = self._device.lose if any(one in self._poison for one in batch) else None
        return [OnDevice(2 * one, fetch) for one in batch]


class OnDevice:
    def __init__(self, value, fetch):
        self._value, self._fetch = value, fetch

    def __reduce__(self):
        if self._fetch is not None:
            self._fetch()
        return int, (self._value,)


def test_predictions_that_cannot_be_fetched():
    good, [failure] = sorted_out(
        predict(LostOnTheWay(13), range(32), isolate=True, on_failure="yield", batching=BATCHING)
    )
    assert good == [2 * n for n in range(32) if n != 13]
    assert failure.element == 13
    assert SAID in str(failure.error)


class ReadOntoDevice:
    """Shows, where it is unpickled, that the device of that process is lost."""

    def __init__(self, number, folder):
        self.number, self._folder = number, folder

    def __reduce__(self):
        return read, (self.number, self._folder)

    def lose(self):
        (self._folder / str(os.getpid())).touch()


def read(number, folder):
    if (folder / str(os.getpid())).exists():
        raise RuntimeError("CUDA error: device-side assert triggered")
    return ReadOntoDevice(number, folder)


def answer(example):
    if example.number == 0:
        example.lose()
    return example.number


class LostInBetween(DoublingHandler):
    def run_inference(self, batch, model, inference_args=None):
        return list(map(answer, batch))


class LostInEngine(Engine):
    async def submit(self, example, model, inference_args=None):
        return answer(example)


@pytest.mark.parametrize("handler", [LostInBetween(), LostInEngine(None, max_concurrent=1)])
def test_elements_that_cannot_be_read(handler, tmp_path):
    """The host is replaced; they succeed there, and the worker has not lost its own device."""
    elements = [ReadOntoDevice(n, tmp_path) for n in range(4)]
    asked = {} if isinstance(handler, Engine) else {"batching": fixed(1)}
    good, bad = sorted_out(predict(handler, elements, isolate=True, on_failure="yield", **asked))
    assert sorted(good) == [0, 1, 2, 3]
    assert bad == []
    assert len(list(tmp_path.iterdir())) == 1

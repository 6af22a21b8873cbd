"""One element of many makes its host lose its device: it is the only dead letter, wherever the host runs."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from headrace import BatchingConfig, Failure, HostDiedError, Stage, predict
from headrace.testing import DeviceLosingHandler, DoublingHandler, FakeDevice

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

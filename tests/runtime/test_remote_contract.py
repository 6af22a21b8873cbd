"""A remote handler passes the suite for handlers, and predicts the same wherever it is asked to be."""

from __future__ import annotations

import asyncio

import pytest

from headrace import ElementFailure, RemoteModelHandler, predict
from headrace.testing import HandlerContract

pytestmark = pytest.mark.usefixtures("module_travels")


class Tripled(RemoteModelHandler):
    def create_client(self):
        return 3

    async def request(self, batch, model, inference_args=None):
        await asyncio.sleep(0)
        return [one * model if one else ElementFailure(ValueError("nothing")) for one in batch]


class TestRemoteModelHandler(HandlerContract):
    def handler(self):
        return Tripled(num_retries=0)

    def bad_example(self):
        return 0

    def examples(self):
        return [1, 2, 3, 4, 5]


@pytest.mark.parametrize("options", [{"placement": "machine"}, {"placement": "auto"}, {"ordered": False}])
def test_requests_are_sent_from_the_worker_wherever_models_are(options):
    assert sorted(predict(Tripled(), [1, 2], **options)) == [3, 6]

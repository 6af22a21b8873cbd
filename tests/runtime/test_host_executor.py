"""Batches run in hosts while the bundle's thread preprocesses; the number in flight is bounded."""

from __future__ import annotations

import time

import pytest

from headrace import BatchingConfig, ModelHandler
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, prepare
from toys import Events

pytestmark = pytest.mark.usefixtures("module_travels")


class Patient(ModelHandler):
    """Answers a batch once a file exists."""

    def __init__(self, file, **options):
        super().__init__(**options)
        self.file = file

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        while not self.file.exists():
            time.sleep(0.002)
        return batch


@pytest.mark.large
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("isolate", [False, True])
def test_elements_are_accepted_while_batches_run_in_a_host(tmp_path, isolate):
    file, most = tmp_path / "go", 4  # two for each host

    def go(element):
        if element == most:
            file.touch()
        return element

    handler = Patient(file, model_copies=2)
    handler = handler if isolate else handler.with_preprocess_fn(go)  # which an isolated model's host does
    worker = open_worker(prepare(handler, InferenceRequest(batching=BatchingConfig(1, 1), isolate=isolate)))
    worker.ready()
    try:
        bundle, outcomes = worker.bundle(Events()), []
        for element in range(20):
            go(element)  # as whatever comes before in the pipeline does
            outcomes += bundle.add(element, element)
            assert len(bundle._executor._tasks) <= most
            assert outcomes == [] or element >= most
        outcomes += bundle.finish()
        assert [value for outcome in outcomes for value in outcome.values] == list(range(20))
    finally:
        worker.close()

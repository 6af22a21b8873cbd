"""MLServer, with a model of scikit-learn, over both protocols."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import joblib
import numpy
import pytest
from sklearn.linear_model import LogisticRegression

from headrace import predict
from headrace.handlers.kserve_inference import KServeModelHandler
from headrace.testing import HandlerContract
from ports import new_port
from waiting import answers, wait_until

pytestmark = pytest.mark.usefixtures("module_travels")

RNG = numpy.random.default_rng(7)
ROWS = list(RNG.normal(size=(40, 3)))
MODEL = LogisticRegression().fit(ROWS, [int(row.sum() > 0) for row in ROWS])
START_SECS = 240


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    """Ports of a server that is ready, by protocol."""
    folder = tmp_path_factory.mktemp("mlserver")
    joblib.dump(MODEL, folder / "model.joblib")
    http, grpc, metrics = new_port(), new_port(), new_port()
    settings = {"host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    (folder / "settings.json").write_text(json.dumps({**settings, "parallel_workers": 0, "debug": False}))
    model = {"name": "sums", "implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "model.joblib"}}
    (folder / "model-settings.json").write_text(json.dumps(model))
    command = [str(Path(sys.executable).with_name("mlserver")), "start", str(folder)]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        ready = f"http://127.0.0.1:{http}/v2/models/sums/ready"
        wait_until(lambda: answers(ready) or server.poll() is not None, START_SECS)
        assert server.poll() is None, (folder / "log").read_text()
        yield {"http": http, "grpc": grpc}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture(params=["http", "grpc"])
def make(request, ports):
    """Makes handlers for the server, by both protocols."""
    protocol = request.param
    return partial(KServeModelHandler, f"127.0.0.1:{ports[protocol]}", "sums", protocol=protocol)


@pytest.mark.usefixtures("make")
class TestOnArrays(HandlerContract):
    examples = ROWS[:5]
    bad_example = numpy.zeros(5)

    def handler(self, make):
        return make(num_retries=0)


def test_predictions_are_those_of_the_model(make):
    found = [one.inference for one in predict(make(min_batch_size=8, max_batch_size=8), ROWS)]
    assert [one.item() for one in found] == MODEL.predict(ROWS).tolist()


def test_outputs_may_be_chosen(make):
    found = [one.inference for one in predict(make(outputs=["predict", "predict_proba"]), ROWS[:3])]
    assert numpy.allclose([one["predict_proba"] for one in found], MODEL.predict_proba(ROWS[:3]))
    assert [one["predict"].item() for one in found] == MODEL.predict(ROWS[:3]).tolist()

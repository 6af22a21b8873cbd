"""Ctrl-C in the user's own process while a host computes without end: one is enough, and it is quick."""

from __future__ import annotations

import os
import signal
import sys
import textwrap

import pytest

SCRIPT = """
from headrace import predict
from headrace.testing import FaultyHandler, {fault}

class Handler(FaultyHandler):
    def run_inference(self, batch, model, inference_args=None):
        if 3 in batch:
            print("begun", flush=True)
        return super().run_inference(batch, model, inference_args)

def run_predict():
    list(predict(Handler({fault}, 3), range(8), isolate=True))

def run_pipeline():
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from headrace.beam import RunInference
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create(list(range(8)), reshuffle=False) | RunInference(Handler({fault}, 3), isolate=True)

import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
{run}()
"""


@pytest.mark.large
@pytest.mark.parametrize(
    ("run", "fault"),
    [("run_predict", "hang"), ("run_predict", "hang_holding_gil"), ("run_pipeline", "hang_holding_gil")],
)
def test_ctrl_c_ends_the_run_and_its_hosts(tmp_path, census, popen, wait_until, run, fault):
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(textwrap.dedent(SCRIPT.format(run=run, fault=fault)))
    with log.open("w") as file:
        process = popen([sys.executable, script], stderr=file, start_new_session=True)
    assert wait_until(lambda: "begun" in log.read_text(), 60), log.read_text()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: its fork server and host are in groups of their own
    process.wait(60)  # what hangs is killed, not waited for
    assert wait_until(lambda: not census.processes(), 60), census.processes()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in log.read_text().splitlines()[-1]

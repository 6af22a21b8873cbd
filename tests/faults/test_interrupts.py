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

import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
list(predict(Handler({fault}, 3), range(8), isolate=True))
"""


@pytest.mark.large
@pytest.mark.parametrize("fault", ["hang", "hang_holding_gil"])
def test_ctrl_c_ends_the_run_and_its_hosts(tmp_path, census, popen, wait_until, fault):
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(textwrap.dedent(SCRIPT.format(fault=fault)))
    with log.open("w") as file:
        process = popen([sys.executable, script], stderr=file, start_new_session=True)
    assert wait_until(lambda: "begun" in log.read_text(), 60), log.read_text()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: its fork server and host are in groups of their own
    process.wait(60)  # what hangs is killed, not waited for
    assert wait_until(lambda: not census.processes(), 60), census.processes()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in log.read_text().splitlines()[-1]

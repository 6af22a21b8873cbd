"""However a run ends, nothing of it is left: the census at the end of each test sees to it, and Ctrl-C is enough."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys

import pytest

from headrace import BatchingConfig, Failure, predict
from headrace.testing import BrokenLoadHandler, DoublingHandler, FaultyHandler, hang

ONE_BY_ONE = BatchingConfig(1, 1)


def start(handler=None, elements=range(8), **options):
    return predict(handler or DoublingHandler(), elements, isolate=True, batching=ONE_BY_ONE, **options)


def test_a_run_that_ends_leaves_nothing(census):
    def elements():
        yield from range(3)
        raise OSError("no more")

    assert len(list(start())) == 8
    assert census.processes() == {}
    with pytest.raises(OSError, match="cannot be loaded"):
        list(start(BrokenLoadHandler()))
    assert census.processes() == {}
    with pytest.raises(OSError, match="no more"):
        list(start(elements=elements()))
    assert census.processes() == {}


@pytest.mark.parametrize("handler", [DoublingHandler(), FaultyHandler(hang, 2)], ids=["busy", "hanging"])
def test_a_run_that_is_closed_in_the_middle_leaves_nothing(census, handler):
    """The next batches have already been sent; a host has a second to finish its batch."""
    with contextlib.closing(start(handler, ordered=False)) as run:
        assert next(run).inference == 0
        assert len(census.processes()) == 2
    assert census.processes() == {}


def test_a_run_that_is_garbage_collected_leaves_nothing(census):
    run = start()
    assert next(run).inference == 0
    del run
    gc.collect()
    assert census.processes() == {}


class OwningHandler(DoublingHandler):
    """Has a host of its own, which hangs on the example 3."""

    def run_inference(self, batch, model, inference_args=None):
        yield from predict(FaultyHandler(hang, 3), batch, isolate=True)


@pytest.mark.large
def test_hosts_within_a_host_are_ended():
    outcomes = predict(OwningHandler(), [0, 1, 2, 4], isolate=True, batching=ONE_BY_ONE)
    assert [one.inference for one in outcomes] == [0, 2, 4, 8]
    (failure,) = predict(OwningHandler(), [3], timeout=3, on_failure="yield")
    assert isinstance(failure, Failure)


SCRIPT = """
import os, signal, sys, threading
from headrace import predict, BatchingConfig
from headrace.testing import DoublingHandler, hang
run = predict(DoublingHandler(), range(8), isolate=True, batching=BatchingConfig(1, 1))
print(next(run).inference, flush=True)
{ending}
"""


@pytest.mark.large
@pytest.mark.parametrize(
    ("ending", "code"),
    {
        "": 0,
        "os._exit(3)": 3,
        "os.abort()": -signal.SIGABRT,
        "raise ValueError": 1,
        "threading.Thread(target=lambda: list(run)).start()": 0,
        "threading.Thread(target=lambda: list(run), daemon=True).start()": 0,
        "sys.run = run": 0,
    }.items(),
)
def test_ends_of_an_owner_leave_nothing(census, wait_until, ending, code):
    command = [sys.executable, "-c", SCRIPT.format(ending=ending)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (code, "0\n"), done.stderr
    assert done.stderr == "" or code in (1, -signal.SIGABRT)
    assert wait_until(lambda: not census.processes()), census.processes()


INTERRUPTED = """
import logging
from headrace import predict
from headrace.testing import FaultyHandler, {fault}

class Handler(FaultyHandler):
    def run_inference(self, batch, model, inference_args=None):
        if 3 in batch:
            print("begun", flush=True)
        return super().run_inference(batch, model, inference_args)

logging.basicConfig(level=logging.INFO, format="%(message)s")
list(predict(Handler({fault}, 3), range(8), isolate=True))
"""


@pytest.mark.large
@pytest.mark.parametrize("fault", ["hang", "hang_holding_gil"])
def test_ctrl_c_ends_the_run_and_its_hosts(tmp_path, census, popen, wait_until, fault):
    log = tmp_path / "log"
    with log.open("w") as file:
        command = [sys.executable, "-c", INTERRUPTED.format(fault=fault)]
        process = popen(command, stderr=file, start_new_session=True)
    assert wait_until(lambda: "begun" in log.read_text(), 60), log.read_text()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: its fork server and host are in groups of their own
    process.wait(60)  # what hangs is killed, not waited for
    assert wait_until(lambda: not census.processes(), 60), census.processes()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in log.read_text().splitlines()[-1]

"""However a run ends, nothing of it is left: the census at the end of each test sees to it."""

from __future__ import annotations

import contextlib
import gc
import signal
import subprocess
import sys

import pytest

from headrace import BatchingConfig, Failure, predict
from headrace.testing import BrokenLoadHandler, DoublingHandler, FaultyHandler, hang

ONE_BY_ONE = BatchingConfig(1, 1)


def test_a_finished_run_leaves_nothing(census):
    assert len(list(predict(DoublingHandler(), range(8), isolate=True))) == 8
    assert census.processes() == {}


def test_a_run_closed_in_the_middle_leaves_nothing(census):
    """The next batches have already been sent."""
    with contextlib.closing(predict(DoublingHandler(), range(8), isolate=True, batching=ONE_BY_ONE)) as run:
        assert next(run).inference == 0
        assert len(census.processes()) == 2
    assert census.processes() == {}


def test_a_run_that_is_garbage_collected_leaves_nothing(census):
    run = predict(DoublingHandler(), range(8), isolate=True, batching=ONE_BY_ONE)
    assert next(run).inference == 0
    del run
    gc.collect()
    assert census.processes() == {}


def test_a_run_closed_while_its_host_hangs_leaves_nothing(census):
    """The host has a second to finish its batch."""
    with contextlib.closing(
        predict(FaultyHandler(hang, 2), range(8), isolate=True, ordered=False, batching=ONE_BY_ONE)
    ) as run:
        assert next(run).inference == 0
    assert census.processes() == {}


def test_elements_that_raise_leave_nothing(census):
    def elements():
        yield from range(3)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(predict(DoublingHandler(), elements(), isolate=True, batching=ONE_BY_ONE))
    assert census.processes() == {}


def test_a_model_that_cannot_be_loaded_leaves_nothing(census):
    with pytest.raises(OSError, match="cannot be loaded"):
        list(predict(BrokenLoadHandler(), range(8), isolate=True))
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


def end(ending):
    script = SCRIPT.format(ending=ending)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.large
@pytest.mark.parametrize(
    ("ending", "code"),
    {
        "": 0,
        "sys.exit(3)": 3,
        "os._exit(3)": 3,
        "os.abort()": -signal.SIGABRT,
        "raise ValueError": 1,
        "threading.Thread(target=lambda: list(run)).start()": 0,
        "threading.Thread(target=lambda: list(run), daemon=True).start()": 0,
        "sys.run = run": 0,
    }.items(),
)
def test_ends_of_an_owner_leave_nothing(census, wait_until, ending, code):
    done = end(ending)
    assert (done.returncode, done.stdout) == (code, "0\n"), done.stderr
    assert done.stderr == "" or code in (1, -signal.SIGABRT)
    assert wait_until(lambda: not census.processes()), census.processes()

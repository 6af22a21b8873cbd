"""Each faulty handler goes wrong in its own way, and only there."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys

import pytest

from headrace.testing import (
    BrokenGeneratorHandler,
    BrokenLoadHandler,
    DeviceLosingHandler,
    DoublingHandler,
    FaultyHandler,
    FaultyLoadHandler,
    MemoryHungryHandler,
    MiscountingHandler,
    NoneHandler,
    PoisonHandler,
    hang,
)


def infer(handler, batch):
    return handler.run_inference(batch, handler.load_model())


@pytest.mark.parametrize(("surplus", "count"), [(-1, 2), (-3, 0), (-9, 0), (0, 3), (1, 4), (4, 7)])
def test_a_miscounting_handler_returns_a_wrong_number(surplus, count):
    assert len(infer(MiscountingHandler(surplus), [1, 2, 3])) == count


@pytest.mark.parametrize(
    "handler",
    [
        PoisonHandler(1, max_batch_size=3),
        MiscountingHandler(1, max_batch_size=3),
        NoneHandler(max_batch_size=3),
        BrokenGeneratorHandler(max_batch_size=3),
        MemoryHungryHandler(1, max_batch_size=3),
        BrokenLoadHandler(max_batch_size=3),
        FaultyHandler(os.abort, 1, max_batch_size=3),
        FaultyLoadHandler(hang, max_batch_size=3),
    ],
    ids=lambda handler: type(handler).__name__,
)
def test_faults_pickle_and_take_the_options_of_every_handler(handler):
    assert vars(pickle.loads(pickle.dumps(handler))) == vars(handler)
    assert handler.batch_elements_kwargs() == {"max_batch_size": 3}


def test_a_lost_device_stays_lost_in_its_process_and_nowhere_else():
    handler = DeviceLosingHandler(13)
    model = handler.load_model()
    again = pickle.loads(pickle.dumps(handler))
    assert handler.run_inference([1, 2], model) == infer(DoublingHandler(), [1, 2])
    for attempt in (lambda: handler.run_inference([13], model), lambda: infer(again, [1]), again.load_model):
        with pytest.raises(RuntimeError, match=r"^CUDA error: device-side assert triggered$"):
            attempt()
    assert infer(DeviceLosingHandler(13), [1]) == infer(DoublingHandler(), [1])
    code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read()).load_model()"
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(handler), check=True)


def test_a_segmentation_fault_kills_the_process():
    done = subprocess.run([sys.executable, "-c", "from headrace.testing import segfault; segfault()"], check=False)
    assert done.returncode == -signal.SIGSEGV


@pytest.mark.parametrize(("name", "others_go_on"), [("hang", True), ("hang_in_c", True), ("hang_holding_gil", False)])
def test_a_hanging_handler_never_returns(name, others_go_on):
    """Another thread of the process prints a moment later, unless the fault holds the GIL."""
    code = (
        "import threading; from headrace import testing; "
        "threading.Timer(0.2, print, ['here'], dict(flush=True)).start(); "
        f"print('hanging', flush=True); testing.{name}()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, bufsize=0)
    try:
        assert process.stdout.readline() == b"hanging\n"
        ready, _, _ = select.select([process.stdout], [], [], 30 if others_go_on else 1)
        assert bool(ready) is others_go_on
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()

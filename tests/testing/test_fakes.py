"""The working fakes do what they promise; each faulty handler goes wrong in its own way, and only there."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import PredictionResult, predict
from headrace.testing import (
    BrokenGeneratorHandler,
    BrokenLoadHandler,
    DeviceLosingHandler,
    DoublingHandler,
    FakeClock,
    FaultyHandler,
    FaultyLoadHandler,
    LoadCountingHandler,
    MemoryHungryHandler,
    MiscountingHandler,
    NoneHandler,
    PoisonHandler,
    SlowHandler,
    hang,
)


def test_doubling_gives_results_with_their_examples():
    assert list(predict(DoublingHandler(), [1, "a"])) == [PredictionResult(1, 2), PredictionResult("a", "aa")]


def test_a_slow_batch_costs_a_fixed_time_and_some_for_each_example():
    clock = FakeClock()
    handler = SlowHandler(clock, fixed=2.0, each=0.5)
    start = clock.time_ns()
    handler.run_inference([1, 2, 3], handler.load_model())
    assert clock.time_ns() - start == 3_500_000_000


def test_loads_are_counted_by_token_across_copies_and_threads():
    handler = LoadCountingHandler("shared by these two")
    other = LoadCountingHandler("shared by these two")
    apart = LoadCountingHandler()
    copies = [pickle.loads(pickle.dumps(handler)) for _ in range(20)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda copied: copied.load_model(), copies))
    assert (handler.loads, other.loads, apart.loads) == (20, 20, 0)


def test_clock_does_not_run_backwards():
    with pytest.raises(ValueError, match=r"advance\(-1\)"):
        FakeClock().advance(-1)


def infer(handler, batch):
    return handler.run_inference(batch, handler.load_model())


@pytest.mark.parametrize(("surplus", "count"), [(-1, 2), (-3, 0), (-9, 0), (0, 3), (1, 4), (4, 7)])
def test_a_miscounting_handler_returns_a_wrong_number(surplus, count):
    assert len(infer(MiscountingHandler(surplus), [1, 2, 3])) == count


@pytest.mark.parametrize(
    "handler",
    [
        *(cls(1, max_batch_size=3) for cls in (PoisonHandler, MiscountingHandler, MemoryHungryHandler)),
        *(cls(max_batch_size=3) for cls in (NoneHandler, BrokenGeneratorHandler, BrokenLoadHandler)),
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


@pytest.mark.parametrize(("name", "others_go_on"), [("hang_in_c", True), ("hang_holding_gil", False)])
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

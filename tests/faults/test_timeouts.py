"""Operations that take too long: only elements that hang fail, within a bounded time."""

from __future__ import annotations

import functools
import signal
import statistics
import time

import pytest

from headrace import BatchingConfig, Failure, KeyedModelHandler, KeyModelMapping, predict
from headrace.core.result import Stage
from headrace.testing import (
    DoublingHandler,
    FakeClock,
    FaultyFunction,
    FaultyHandler,
    FaultyLoadHandler,
    hang,
    hang_holding_gil,
    hang_in_c,
)

TIMEOUT = 0.4
HANGS = {
    "in Python": hang,
    "in C": hang_in_c,
    "in C, holding the GIL": hang_holding_gil,
    "stopped": functools.partial(signal.raise_signal, signal.SIGSTOP),
}


def run(handler, elements=range(64), size=64, timeout=TIMEOUT):
    return list(predict(handler, elements, timeout=timeout, on_failure="yield", batching=BatchingConfig(size, size)))


def assert_only(outcomes, culprits):
    failures = {place: one for place, one in enumerate(outcomes) if isinstance(one, Failure)}
    assert list(failures) == culprits
    assert {type(one.error) for one in failures.values()} == {TimeoutError}
    assert [one.inference for one in outcomes if not isinstance(one, Failure)] == [
        2 * n for n in range(64) if n not in culprits
    ]


@pytest.mark.large
@pytest.mark.parametrize("fault", HANGS.values(), ids=HANGS)
def test_one_hanging_element_of_64_fails_alone(fault):
    outcomes = run(FaultyHandler(fault, 13))
    assert_only(outcomes, [13])
    assert (outcomes[13].stage, outcomes[13].index, outcomes[13].element) == (Stage.INFERENCE, 0, 13)
    what = "running inference on element 13 (counted from 0) of a batch of 64"
    assert str(outcomes[13].error) == f"{what} took longer than 0.4 s."


@pytest.mark.large
def test_elements_that_all_hang_fail_in_bounded_time(counted):
    """The batch, a part of it, then one by one: elements unanswered after the fourth of these fail."""
    outcomes = run(FaultyHandler(counted.then(hang_holding_gil), *range(64)))
    assert [type(one.error) for one in outcomes] == [TimeoutError] * 64
    assert [one.element for one in outcomes] == list(range(64))
    assert counted.count() == 6


class Dilatory(DoublingHandler):
    """Answers with the size of the batch, which takes 50 seconds and two for each example by a fake clock."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def run_inference(self, batch, model, inference_args=None):
        self._clock.advance(50 + 2 * len(batch))
        return [len(batch)] * len(batch)


def test_sizes_that_adapt_stay_below_the_limit():
    clock = FakeClock()
    batching = BatchingConfig(target_batch_duration_secs=None, clock=clock.seconds)
    sizes = list(predict(Dilatory(clock), range(4000), timeout=600, batching=batching))
    assert sizes[0] == 1
    assert 100 <= statistics.median(sizes) <= 160
    assert max(sizes) < 0.75 * 275


def test_timeouts_in_pre_and_postprocessing_fail_their_elements_alone():
    handler = DoublingHandler()
    for value in (99, 7, 98):
        handler = handler.with_preprocess_fn(FaultyFunction(hang_holding_gil, value))
    for value in ((99, 99), (40, 80)):
        handler = handler.with_postprocess_fn(FaultyFunction(hang, (*value, None)))
    outcomes = run(handler)
    assert_only(outcomes, [7, 40])
    assert (outcomes[7].stage, outcomes[7].index, outcomes[7].element) == (Stage.PREPROCESSING, 1, 7)
    assert (outcomes[40].stage, outcomes[40].index, outcomes[40].element[:2]) == (Stage.POSTPROCESSING, 1, (40, 80))
    assert str(outcomes[7].error).startswith("preprocessing element 7 (counted from 0) of a batch of 64 took longer")
    assert str(outcomes[40].error).startswith("postprocessing element 40 (counted from 0) of a batch of 64 took longer")


def test_a_load_that_times_out_fails_every_batch_at_once(counted):
    """The model is not loaded again for every batch: they fail at once."""
    outcomes = run(FaultyLoadHandler(counted.then(hang_holding_gil)), size=4)
    assert [type(one.error) for one in outcomes] == [TimeoutError] * 64
    assert {str(one.error) for one in outcomes} == {"loading the model of FaultyLoadHandler took longer than 0.4 s."}
    assert counted.count() == 1


class SlowToImport(DoublingHandler):
    """Its modules take longer to import than the time limit of any operation."""

    def __setstate__(self, state):
        time.sleep(2 * TIMEOUT)
        self.__dict__.update(state)


@pytest.mark.large
@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("options", [{"large_model": True}, {"model_copies": 2}])
def test_the_time_limit_of_a_load_excludes_waiting_for_the_machine(options):
    """The host asks for the model at its first key, and waits for the manager, imports, and other loads."""
    handler = KeyedModelHandler([KeyModelMapping([key], SlowToImport(**options)) for key in "ab"])
    pairs = [(key, n) for n in range(8) for key in "ab"]
    outcomes = list(predict(handler, pairs, timeout=TIMEOUT, on_failure="yield"))
    assert [(key, one.inference) for key, one in outcomes] == [(key, 2 * n) for key, n in pairs]


@pytest.mark.large
@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(("bad", "failed", "timeouts"), [([13], 1, 3), (range(64), 64, 6)])
def test_keyed_models_in_machine_hosts_cost_no_more_timeouts(counted, bad, failed, timeouts):
    handler = FaultyHandler(counted.then(hang_holding_gil), *bad, model_copies=2)
    outcomes = run(KeyedModelHandler([KeyModelMapping(["a"], handler)]), [("a", n) for n in range(64)])
    failures = [one for one in outcomes if isinstance(one, Failure)]
    assert [type(one.error) for one in failures] == [TimeoutError] * failed
    assert {one.element for one in failures} == {("a", n) for n in bad}
    assert [one[1].inference for one in outcomes if not isinstance(one, Failure)] == [
        2 * n for n in range(64) if n not in bad
    ]
    assert counted.count() == timeouts


class Counted:
    """Counts, in a file, calls in processes that do not survive them."""

    def __init__(self, path):
        self._path = path

    def then(self, fault):
        return functools.partial(count_and, fault, self._path)

    def count(self):
        return len(self._path.read_text())


def count_and(fault, path):
    with path.open("a") as file:
        file.write("x")
    fault()


@pytest.fixture
def counted(tmp_path):
    return Counted(tmp_path / "count")

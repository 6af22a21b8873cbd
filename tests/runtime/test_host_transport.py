"""Engines in a host: what they cost when they do not load, die, hang or misbehave, and what they leave behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from functools import partial
from operator import is_

import pytest

from headrace import Budget, BudgetError, PredictionResult, predict, report_generation
from headrace.core.errors import HostDiedError, HostStartError
from headrace.core.events import HostLost, ModelLoaded, UsageReported
from headrace.hosts.fork_server_client import ForkServerProcess
from headrace.runtime.open_worker import open_worker
from headrace.runtime.placement import EngineSource
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, prepare
from http_endpoint import events_and_outcomes, failures_among
from toy_engine import LONG_SECS, Engine, dead, die, double, outcomes_of, stuck, where
from toy_hosts import has_ended
from toys import Events, Unloadable, run, with_attributes
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("census", "requests_end")


def test_what_does_not_pickle_fails_alone():
    async def act(example, engine):
        answers = {1: threading.Lock(), 2: Unloadable()}
        return "ready" if callable(getattr(example, "acquire", None)) else answers.get(example, example)

    given = [0, 1, 2, threading.Lock(), 4]
    found = outcomes_of(act, given)
    assert dead(found) == {1: TypeError, 2: ValueError, given[3]: TypeError}
    assert "cannot leave the model's process" in str(found[1].error)
    assert [found[0], found[4]] == [0, 4]


def test_usage_reaches_the_worker_and_its_budget():
    async def act(example, engine):
        report_generation("m", input_tokens=3, output_tokens=example, seconds=2.0, first_token_secs=0.5)
        return example

    events, _ = events_and_outcomes(Engine(act), [1, 2], isolate=True)
    reported = sorted(events.of(UsageReported), key=str)
    assert reported == [UsageReported("m", 3, n, seconds=2.0, first_token_secs=0.5) for n in (1, 2)]
    assert len(events.of(ModelLoaded)) == 1
    with pytest.raises(BudgetError, match="is spent"):
        outcomes_of(act, range(10_000), budget=Budget(max_tokens=100))


def test_element_that_kills_the_host_is_found_and_each_host_gets_the_arguments():
    async def act(example, engine, plus):
        if example == 13:
            die(signal.SIGSEGV)
        return await double(example, engine, plus)

    found = outcomes_of(act, range(20), inference_args={"plus": 1})
    assert dead(found) == {13: HostDiedError}
    assert "the host was killed by SIGSEGV" in str(found[13].error)
    assert [one for one in found if isinstance(one, int)] == [2 * n + 1 for n in range(20) if n != 13]


def test_host_that_is_killed_from_outside_costs_no_element(tmp_path):
    async def act(example, engine):
        if example == 13 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            die()
        return await double(example, engine)

    events, found = events_and_outcomes(Engine(act), range(20), isolate=True)
    assert sorted(found) == [2 * n for n in range(20)]
    assert [lost.timed_out for lost in events.of(HostLost)] == [False]
    assert len(events.of(ModelLoaded)) == 2


@pytest.mark.parametrize("dies", [False, True])
def test_prediction_has_the_element_itself_also_after_a_loss(dies, tmp_path):
    async def act(example, engine):
        if dies and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            die()
        return PredictionResult(example, example.pop("number"))

    given = [{"number": n} for n in range(3)]
    found = sorted(predict(Engine(act), given, isolate=True), key=lambda one: one.inference)
    assert [one.example for one in found] == [{"number": n} for n in range(3)]
    assert all(map(is_, (one.example for one in found), given))


@pytest.mark.large
def test_many_that_kill_cost_a_bounded_number_of_hosts():
    async def act(example, engine):
        die()

    events, found = events_and_outcomes(Engine(act), range(60), isolate=True)
    assert set(dead(found).values()) == {HostDiedError}
    assert len(failures_among(found)) == len(found) == 60
    assert len(events.of(HostLost)) < 60


def test_death_is_raised_without_exception_handling():
    async def act(example, engine):
        die()

    with pytest.raises(HostDiedError, match="the host was killed by SIGKILL while it was answering 1 request"):
        list(predict(Engine(act), [1], isolate=True))


def test_lost_device_ends_the_host_and_not_the_worker():
    async def act(example, engine):
        if example == 3:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return await double(example, engine)

    found = outcomes_of(act, range(6))
    assert dead(found) == {3: HostDiedError}
    assert "lost its device (RuntimeError: CUDA error" in str(found[3].error)
    assert [one for one in found if isinstance(one, int)] == [0, 2, 4, 8, 10]


@pytest.mark.large  # as long as the time limit
@pytest.mark.parametrize("may_be_dropped", [True, False])
def test_request_that_takes_too_long_is_dropped_by_the_engine_and_keeps_nothing_up(may_be_dropped, tmp_path):
    async def act(example, engine):
        while example == 0:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                (tmp_path / "dropped").touch()
                if may_be_dropped:
                    raise
        return example

    events, found = events_and_outcomes(Engine(act), range(6), isolate=True, timeout_secs=LONG_SECS)
    assert dead(found) == {0: TimeoutError}
    assert "Engine.submit took longer than 3 s." in str(failures_among(found)[0].error)
    assert sorted(one for one in found if isinstance(one, int)) == [1, 2, 3, 4, 5]
    assert (tmp_path / "dropped").exists()
    assert not events.of(HostLost)


@pytest.mark.large
@pytest.mark.parametrize("how", ["holds the thread", "answers nobody"])
def test_engine_that_hangs_is_killed_and_others_are_tried_again(how):
    act = partial(stuck, which=3, how=how)
    events, found = events_and_outcomes(Engine(act, list), range(6), isolate=True, timeout_secs=LONG_SECS)
    assert dead(found) == {3: TimeoutError}
    assert sorted(one for one in found if isinstance(one, int)) == [0, 1, 2, 4, 5]
    assert all(lost.timed_out for lost in events.of(HostLost))


@pytest.mark.large
def test_engine_that_hangs_after_others_have_ended_is_killed_and_the_rest_are_tried_again(tmp_path):
    hung = tmp_path / "hung"

    async def act(example, engine):
        engine.append(example)
        if example == 3:
            hung.touch()
        while not hung.exists() or (3 in engine and (example > 1 or 5 not in engine)):
            await asyncio.sleep(0.01)
        return example

    _, found = events_and_outcomes(Engine(act, list), range(6), isolate=True, timeout_secs=LONG_SECS)
    assert (dead(found), len(found)) == ({3: TimeoutError}, 6)


def test_bundle_that_is_abandoned_takes_its_requests_back(tmp_path, close_later):
    async def act(example, engine):
        (tmp_path / f"begun {example}").touch()
        try:
            await asyncio.sleep(1000 if example else 0)
        except asyncio.CancelledError:
            (tmp_path / f"dropped {example}").touch()
            raise

    worker = close_later(open_worker(prepare(Engine(act), InferenceRequest(isolate=True))))
    bundle = worker.bundle(Events())
    for tag in range(4):
        bundle.add(tag, tag)
    assert wait_until(lambda: len(list(tmp_path.glob("begun*"))) == 4)
    other = worker.bundle(Events())  # which abandons the one before
    assert wait_until(lambda: len(list(tmp_path.glob("dropped*"))) == 3)
    assert len([*other.add(0, 0), *other.finish()]) == 1


def test_host_ends_with_its_worker_and_runs_finalizers(tmp_path):
    class Model:
        def __init__(self):
            self.itself = self

        def __del__(self):
            (tmp_path / "finalized").touch()

    async def act(example, engine):
        (tmp_path / f"begun {example}").touch()
        await asyncio.sleep(1000 if example == 2 else 0)
        return os.getpid()

    worker = open_worker(prepare(Engine(act, Model), InferenceRequest(isolate=True)))
    [host] = run(worker, [1])
    worker.bundle(Events()).add(2, 2)
    assert wait_until((tmp_path / "begun 2").exists)
    worker.close()
    assert wait_until(lambda: has_ended(host))
    assert (tmp_path / "finalized").exists()


@pytest.mark.parametrize("dies", [False, True])
def test_host_and_its_fork_server_end_although_an_error_is_kept(dies, tmp_path):
    """Without the garbage collector, which may not come for long."""

    def load():
        if (tmp_path / "loaded").exists():
            raise LookupError("gone")
        (tmp_path / "loaded").write_text(f"{os.getpid()} {os.getppid()}")

    async def act(example, engine):
        if dies:
            die()
        raise LookupError(example)

    gc.disable()
    try:
        with pytest.raises(LookupError) as kept:
            list(predict(Engine(act, load), [1], isolate=True))
        started = map(int, (tmp_path / "loaded").read_text().split())
        assert all(wait_until(lambda process=process: has_ended(process)) for process in started)
        assert kept.value.__traceback__ is not None
    finally:
        gc.enable()


def test_engine_that_is_collected_by_its_own_thread_ends(monkeypatch):
    """The collector may come to any thread at any time; here, while that one asks the fork server."""

    def ask(fork_server, message):
        if threading.current_thread() is waiting:
            gc.collect()
        return asks(fork_server, message)

    asks, others = ForkServerProcess.ask, threading.enumerate()
    source = EngineSource(prepare(Engine(where), InferenceRequest(isolate=True)), lambda events: None)
    engine = source.load(ONLY, Unloadable).model
    [(host, _)] = asyncio.run(engine.predict([1], None))
    [waiting] = [one for one in threading.enumerate() if one not in others and one.name.endswith("for an engine")]
    monkeypatch.setattr(ForkServerProcess, "ask", ask)
    gc.disable()
    try:
        itself = [engine]
        itself.append(itself)
        del engine, itself
        os.kill(host, signal.SIGKILL)
        waiting.join(60)
        assert not waiting.is_alive()
    finally:
        gc.enable()


def test_forked_child_has_a_host_of_its_own():
    worker = open_worker(prepare(Engine(where), InferenceRequest(isolate=True)))
    [(host, _)] = run(worker, [1])
    child = os.fork()
    if not child:
        code = 1
        try:
            [(other, _)] = run(worker, [1])
            worker.close()
            code = int(other == host)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(worker, [1]) == [(host, host)]
    worker.close()


def test_load_that_dies_is_tried_once_more(tmp_path):
    def load(always):
        if always or not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            die()
        return os.getpid()

    assert outcomes_of(double, [1], partial(load, always=False)) == [2]
    found = outcomes_of(double, [1], partial(load, always=True))
    assert dead(found) == {1: HostDiedError}
    assert "while it was loading the model of Engine" in str(found[0].error)


def test_host_that_cannot_start_is_always_raised():
    handler = with_attributes(Engine(double), unknown=Unloadable())
    with pytest.raises(HostStartError, match="cannot be unpickled there"):
        list(predict(handler, [1], isolate=True, on_failure="yield"))

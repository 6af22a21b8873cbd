"""Engines that do not load in their host: errors are raised here, deaths and hangs cost elements and not the worker."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import pytest

from headrace import predict
from headrace.core.errors import HostDiedError, HostStartError
from headrace.hosts.provider import HostFailure
from headrace.ipc.progress import Activity, ActivitySnapshot
from headrace.runtime import engine_starter
from headrace.runtime.engine_turns import EVERYBODY
from headrace.runtime.hosted_engine import EngineHosts
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, prepare
from toy_engine import Engine, dead, die, double, loads_once, outcomes_of
from toys import Unloadable, with_attributes

pytestmark = pytest.mark.usefixtures("census", "requests_end")


def test_load_that_raises_is_raised_here():
    def load():
        raise LookupError("no such engine")

    with pytest.raises(LookupError, match="no such engine"):
        outcomes_of(double, [1], load)


def test_engine_may_be_started_where_requests_run():
    async def load():
        return threading.current_thread().name

    async def act(example, engine):
        return engine

    assert outcomes_of(act, [1], load) == ["headrace-requests"]


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


def test_load_that_takes_too_long_is_not_tried_again(tmp_path):
    def load():
        (tmp_path / str(os.getpid())).touch()
        time.sleep(1000)

    found = outcomes_of(double, [1, 2], load, timeout=0.5)
    assert dead(found) == {1: TimeoutError, 2: TimeoutError}
    assert len(list(tmp_path.iterdir())) == 1


def test_host_that_cannot_start_is_always_raised():
    handler = with_attributes(Engine(double), unknown=Unloadable())
    with pytest.raises(HostStartError, match="cannot be unpickled there"):
        list(predict(handler, [1], isolate=True, on_failure="yield"))


def test_engine_that_cannot_be_loaded_again_fails_what_is_left(tmp_path):
    async def act(example, engine):
        die()

    assert dead(outcomes_of(act, [1, 2], loads_once(tmp_path))) == {1: LookupError, 2: LookupError}


def test_shared_engine_that_always_dies_of_others_is_given_up(monkeypatch):
    """Another process's request is at fault each time, as far as its progress page shows."""

    class Lost:
        def __init__(self, provider, timeout_secs):
            begun.append(self)

        def receive(self):
            serving = ActivitySnapshot(0, Activity.INFERENCE, 0, 0, 0)
            return HostFailure(serving, timed_out=False, exit_text="died")

        def end(self):
            pass

    begun, spec = [], prepare(Engine(double, large_model=True), InferenceRequest())
    monkeypatch.setattr(engine_starter, "HostStream", Lost)
    monkeypatch.setattr(engine_starter, "pause_before_retry", lambda *_, **__: 0.0)
    starter = engine_starter.EngineStarter(spec, ONLY, None, lambda events: None)
    with pytest.raises(HostDiedError, match="died"):
        starter.start(lambda stream: None)
    assert 2 < len(begun) < 100


def test_request_is_not_blamed_for_a_host_that_another_process_lost_while_it_had_the_engine():
    hosts = EngineHosts(prepare(Engine(double), InferenceRequest(isolate=True)), ONLY, None, lambda events: None)
    with_attributes(hosts, _is_shared=True, _have_alone=lambda: None, _send=lambda requests: None)
    calls = [hosts._client + 1, EVERYBODY, hosts._client]
    lost = [HostFailure(ActivitySnapshot(call, Activity.INFERENCE, -1, 0, 0), False, "died") for call in calls]
    left = list(lost)
    with_attributes(hosts, _await_answers=lambda is_settled: left.pop(0))
    assert hosts._try([]) is lost[-1]

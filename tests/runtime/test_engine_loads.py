"""Engines that do not load in their host: errors are raised here, deaths and hangs cost elements and not the worker."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest

from headrace import predict
from headrace.core.errors import HostDiedError, HostStartError
from toy_engine import Engine, dead, die, double, loads_once, outcomes_of
from toys import Unloadable, with_attributes

pytestmark = pytest.mark.usefixtures("census", "requests_end")


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

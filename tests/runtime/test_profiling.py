"""A handler's profile is what a pipeline would experience; nothing is left behind."""

from __future__ import annotations

import glob
import os
import threading

import pytest

import headrace
from headrace.core.errors import ConfigurationError
from headrace.runtime import profiling
from headrace.runtime.placement import Choice
from headrace.runtime.profiling import Cost, ModelFindings, Profile, measure, profile_handler, profiling_spec
from metered import Metered
from toy_engine import ToyEngineHandler
from toys import Acting, each

pytestmark = pytest.mark.usefixtures("module_travels")

MB = 10**6


@pytest.fixture(autouse=True)
def _nothing_stays(directory, monkeypatch, wait_until):
    """The last manager removes what it has made."""
    monkeypatch.setattr(profiling, "_ENOUGH_SECS", 0.0)
    yield
    assert wait_until(lambda: not glob.glob(f"{directory}/*"))


def look(handler, rows=None, **options):
    return profile_handler(profiling_spec(handler), rows, **options)


def test_profile_of_a_model_in_a_host():
    found = look(Acting(each(lambda _: os.getpid()), threading.Lock, max_batch_size=8), iter([1, 2]))
    (model,) = found.models
    assert not model.mapped
    assert "lock" in model.reason
    assert (model.attach_seconds, model.first_attach_seconds, model.private) == (None, None, None)
    assert model.nbytes > 0
    assert [cost.size for cost in model.costs] == [1, 8]


def test_profile_of_an_engine_is_that_of_batches():
    (model,) = look(ToyEngineHandler(large_model=True), [1, 2]).models
    assert (model.mapped, model.trouble, [cost.size for cost in model.costs]) == (False, "", [1])
    assert model.reason.startswith("it is an engine")


def test_profile_of_models_by_key():
    mappings = [headrace.KeyModelMapping(["a"], Acting()), headrace.KeyModelMapping(["b"], Acting())]
    found = look(headrace.KeyedModelHandler(mappings, max_models_per_worker_hint=1), [("a", 1), ("c", 1), ("a", 2)])
    assert found.routed
    assert [(model.name, bool(model.costs)) for model in found.models] == [("a", True), ("b", False)]
    assert "belongs to no KeyModelMapping" in found.models[1].trouble


def test_profile_calls_handlers_as_a_pipeline_does_and_leaves_out_rows_that_fail_in_preprocessing():
    seen = set()

    def predict(batch):
        seen.update((one, os.environ["A_VARIABLE_OF_THIS_TEST"]) for one in batch)
        return batch

    handler = Acting(predict, max_batch_size=8, env_vars={"A_VARIABLE_OF_THIS_TEST": "set"})
    found = look(handler.with_preprocess_fn(lambda row: 6 // row), [1, 0, 2], processes=7)
    del os.environ["A_VARIABLE_OF_THIS_TEST"]
    assert seen == {(6, "set"), (3, "set")}
    (model,) = found.models
    assert ([cost.size for cost in model.costs], model.trouble) == ([1, 8], "")
    assert all(cost.seconds > 0 and cost.calls >= 1 for cost in model.costs)
    assert (found.handler, found.default, found.copies, found.processes) == ("Acting", "process", 1, 7)
    assert (model.name, model.mapped, model.reason) == ("", True, "")
    assert 0 < model.load_seconds < model.ready_seconds
    assert 10 * MB < model.peak < found.memory_limit
    assert model.attach_seconds > 0
    assert found.choice == Choice(model.nbytes, found.cores, found.memory_available)


@pytest.mark.parametrize("load", [dict, threading.Lock])
def test_failed_batches_end_the_measurement_but_not_the_profile(load):
    def predict(batch):
        if len(batch) > 8:
            raise RuntimeError("too large")
        return list(batch)

    (model,) = look(Acting(predict, load), [1]).models
    assert [cost.size for cost in model.costs] == [1, 8]
    assert model.trouble == "RuntimeError: too large"


def test_remote_handler_has_no_local_model():
    with pytest.raises(ConfigurationError, match="sends requests to an endpoint"):
        look(Metered())


@pytest.mark.parametrize(
    ("one_call", "largest", "sizes"),
    [(0.001, 4096, [1, 8, 64, 512, 4096]), (0.001, 10, [1, 8, 10]), (0.02, 4096, [1, 8, 64]), (5, 4096, [1])],
)
def test_batches_grow_until_one_takes_a_second(one_call, largest, sizes):
    now, calls = [0.0], []

    def run(batch):
        calls.append(len(batch))
        now[0] += one_call * (1 if one_call < 0.01 else len(batch))

    costs = list(measure(run, lambda count: [0] * count, largest, clock=lambda: now[0]))
    assert [cost.size for cost in costs] == sizes
    assert sum(cost.calls for cost in costs) + 1 == len(calls)
    assert costs[0].seconds == pytest.approx(one_call)


@pytest.mark.parametrize(
    ("copies", "routed", "reason", "expected"),
    [
        (1, False, "", 100 + 4 * 10),
        (2, False, "", 100 + 2 * 10),
        (1, False, "no", 100),
        (2, False, "no", 200),
        (1, True, "no", 100),
    ],
)
def test_memory_needed_for_sharing(copies, routed, reason, expected):
    model = ModelFindings("", 1.0, 2.0, 300, 100, reason, private=None if reason else 10, costs=(Cost(1, 1.0, 1),))
    choice = Choice(100, 2, 1000)
    found = Profile("H", "process", copies, 2, 2000, 1000, (model,), 4, choice, routed)
    assert (found.copy_each, found.copy_per_machine) == (400, expected)
    assert found.asked_choice == Choice(100, 4, 1000)

"""The contract of handlers over engines: what submit may return, what is refused, and calls without a transform."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future

import pytest

from headrace import ConfigurationError, EngineModelHandler, PredictionCountError, predict
from headrace.testing import HandlerContract
from toy_engine import Engine, ToyEngineHandler, where
from toys import infer


class TestEngineModelHandler(HandlerContract):
    def handler(self):
        return ToyEngineHandler()

    def examples(self):
        return [1, 2, 3, 4, 5]

    def bad_example(self):
        return "bad"

    def inference_args(self):
        return {"plus": 1}


class Submitting(EngineModelHandler):
    def __init__(self, submit):
        super().__init__()
        self.way = submit

    def load_model(self):
        return None

    def submit(self, example, model, inference_args=None):
        return self.way(example)


async def soon(example):
    await asyncio.sleep(0)
    return 2 * example


def in_a_future(example):
    future = Future()
    asyncio.get_running_loop().call_soon(future.set_result, 2 * example)
    return future


async def piece_by_piece(example):
    yield None
    await asyncio.sleep(0)
    yield 2 * example


async def nothing(example):
    return
    yield


@pytest.mark.parametrize("way", [soon, in_a_future, piece_by_piece])
def test_submit_may_return_anything_that_can_be_waited_for(way):
    assert infer(Submitting(way), [1, 2, 3]) == [2, 4, 6]
    assert list(predict(Submitting(way), range(5))) == [0, 2, 4, 6, 8]


NO_AWAITABLE = "Submitting.submit must return an awaitable.*async def submit"


@pytest.mark.parametrize(
    ("way", "error", "message"),
    [
        (lambda example: 2 * example, ConfigurationError, NO_AWAITABLE),
        (nothing, PredictionCountError, "Submitting.submit.*0 predictions"),
    ],
)
def test_submit_that_returns_nothing_to_wait_for_is_told_so(way, error, message):
    with pytest.raises(error, match=message):
        infer(Submitting(way), [1])
    with pytest.raises(error, match=message):
        list(predict(Submitting(way), [1]))


def test_run_inference_waits_for_all_before_it_raises():
    ended = []

    async def submit(example):
        if not example:
            raise ValueError("zero")
        await asyncio.sleep(0)
        ended.append(example)

    with pytest.raises(ValueError, match="zero"):
        infer(Submitting(submit), [0, 1, 2])
    assert ended == [1, 2]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "many", None])
def test_max_concurrent_is_a_positive_int(wrong):
    with pytest.raises(ConfigurationError, match="max_concurrent must be an int, at least 1"):
        ToyEngineHandler(max_concurrent=wrong)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"max_batch_size": 8, "min_batch_size": 8}, "leave out max_batch_size, min_batch_size; max_concurrent says"),
        ({"max_concurent": 2}, "max_concurent"),
    ],
)
def test_options_that_engines_do_not_take_are_refused(option, message):
    with pytest.raises(ConfigurationError, match=message):
        ToyEngineHandler(**option)


@pytest.mark.parametrize("gpus", [1, 2])
def test_more_copies_than_gpus_are_refused(monkeypatch, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
    with pytest.raises(ConfigurationError, match=rf"model_copies=3 engines needs a GPU.* machine has {gpus}"):
        list(predict(ToyEngineHandler(model_copies=3), [1]))


def test_one_in_each_worker_process_may_be_asked_for_all_the_same():
    assert set(predict(Engine(where, model_copies=2), range(9), placement="process")) == {(os.getpid(), os.getpid())}

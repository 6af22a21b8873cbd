"""Each faulty handler goes wrong in its own way, and only there."""

from __future__ import annotations

import pickle

import pytest

from headrace import BatchingConfig, Failure, PredictionCountError, PredictionResult, predict
from headrace.testing import (
    BrokenGeneratorHandler,
    BrokenLoadHandler,
    DoublingHandler,
    MemoryHungryHandler,
    MiscountingHandler,
    NoneHandler,
    PoisonHandler,
)


def infer(handler, batch):
    return handler.run_inference(batch, handler.load_model())


def test_poison_fails_a_batch_and_nothing_else():
    handler = PoisonHandler(13, 17)
    assert infer(handler, [1, 2]) == infer(DoublingHandler(), [1, 2])
    with pytest.raises(ValueError, match=r"poisonous examples: \[17\]"):
        infer(handler, [1, 17, 2])


def test_the_kind_of_poison_can_be_chosen():
    with pytest.raises(ConnectionError):
        infer(PoisonHandler("x", error=ConnectionError), ["x"])


def test_poison_becomes_one_failure():
    outcomes = list(predict(PoisonHandler(3), range(8), on_failure="yield", batching=BatchingConfig(8, 8)))
    assert [place for place, outcome in enumerate(outcomes) if isinstance(outcome, Failure)] == [3]


@pytest.mark.parametrize(("surplus", "count"), [(-1, 2), (-3, 0), (-9, 0), (0, 3), (1, 4), (4, 7)])
def test_miscounting(surplus, count):
    assert len(infer(MiscountingHandler(surplus), [1, 2, 3])) == count


@pytest.mark.parametrize("handler", [MiscountingHandler(-1), MiscountingHandler(1), NoneHandler()])
def test_the_runtime_refuses_a_wrong_number_of_predictions(handler):
    with pytest.raises(PredictionCountError):
        list(predict(handler, [1, 2, 3]))


def test_none():
    assert infer(NoneHandler(), [1]) is None


def test_a_broken_generator_breaks_after_its_call():
    answer = infer(BrokenGeneratorHandler(good=2), [1, 2, 3])
    assert [next(answer), next(answer)] == [PredictionResult(1, 2), PredictionResult(2, 4)]
    with pytest.raises(RuntimeError, match="broke after 2"):
        next(answer)


def test_a_generator_that_comes_to_its_end_does_not_break():
    assert len(list(infer(BrokenGeneratorHandler(good=2), [1, 2]))) == 2


def test_memory_runs_out_above_the_limit():
    handler = MemoryHungryHandler(limit=2)
    assert len(infer(handler, [1, 2])) == 2
    with pytest.raises(MemoryError, match="3 examples, of which 2 fit"):
        infer(handler, [1, 2, 3])


@pytest.mark.parametrize("error", [OSError, ImportError])
def test_a_model_that_cannot_be_loaded(error):
    with pytest.raises(error, match="cannot be loaded"):
        BrokenLoadHandler(error).load_model()


@pytest.mark.parametrize(
    "handler",
    [
        PoisonHandler(1, max_batch_size=3),
        MiscountingHandler(1, max_batch_size=3),
        NoneHandler(max_batch_size=3),
        BrokenGeneratorHandler(max_batch_size=3),
        MemoryHungryHandler(1, max_batch_size=3),
        BrokenLoadHandler(max_batch_size=3),
    ],
    ids=lambda handler: type(handler).__name__,
)
def test_faults_pickle_and_take_the_options_of_every_handler(handler):
    assert vars(pickle.loads(pickle.dumps(handler))) == vars(handler)
    assert handler.batch_elements_kwargs() == {"max_batch_size": 3}

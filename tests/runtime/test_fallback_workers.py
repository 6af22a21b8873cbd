"""A model and its fallback in threads and across workers: each is loaded once, and what fails is nobody else's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, prepare
from headrace.testing import DoublingHandler, LoadCountingHandler
from toys import Acting, run


class Picky(LoadCountingHandler):
    """Refuses some examples."""

    def run_inference(self, batch, model, inference_args=None):
        if any(example < 0 for example in batch):
            raise ValueError("negative")
        return [model(example) for example in batch]


def loaded_by(*handlers):
    return [handler.loads for handler in handlers]


def test_both_models_linger_until_another_transform_opens():
    first, fallback = Picky(), LoadCountingHandler()
    spec = prepare(first, InferenceRequest(fallback=fallback))
    for _ in range(3):
        worker = open_worker(spec)
        run(worker, [1, -1])
        worker.close(linger=True)
    assert loaded_by(first, fallback) == [1, 1]
    open_worker(prepare(DoublingHandler(), InferenceRequest())).close()
    open_worker(spec).close()
    assert loaded_by(first, fallback) == [2, 2]


def test_other_version_of_a_model_shares_the_fallback(opened):
    first, fallback = Picky(), LoadCountingHandler()
    spec = prepare(first, InferenceRequest(fallback=fallback))
    opened(spec)
    opened(replace(spec, branch="other arguments"))
    opened(replace(spec, plan=replace(spec.plan, refreshed={})))
    assert loaded_by(first, fallback) == [1, 1]


@pytest.mark.parametrize("place", [{}, {"isolate": True}])
def test_worker_whose_fallback_cannot_be_loaded_leaves_nothing(place, opened):
    def load():
        raise FileNotFoundError("no such model")

    spec = prepare(Acting(), InferenceRequest(fallback=Acting(load=load), **place))
    with pytest.raises(FileNotFoundError):
        run(opened(spec), [1])

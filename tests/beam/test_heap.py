"""While a pipeline runs, garbage collections skip the objects from before it, and no others."""

from __future__ import annotations

import gc

import pytest

from headrace.beam import ModelHandler
from headrace.models.memory import hold_heap, release_heap
from toys import Acting

pytestmark = pytest.mark.usefixtures("own_heap")

AT_START = gc.get_freeze_count()


def test_heap_is_frozen_until_its_last_release():
    hold_heap()
    assert gc.get_freeze_count() > AT_START + 1000
    later = [[] for _ in range(1000)]
    hold_heap()
    assert {id(new) for new in later} <= {id(tracked) for tracked in gc.get_objects()}
    release_heap()
    assert gc.get_freeze_count() > AT_START
    release_heap()
    assert gc.get_freeze_count() == 0


class Frozen(ModelHandler):
    def load_model(self):
        model = []
        model.append(model)
        return model

    def run_inference(self, batch, model, inference_args=None):
        tracked = any(model is candidate for candidate in gc.get_objects())
        return [(gc.get_freeze_count() > AT_START, tracked) for _ in batch]


def test_pipeline_freezes_the_heap_but_not_its_models(run):
    assert run.infer([1], Frozen()) == [(True, True)]
    assert gc.get_freeze_count() == 0


def test_pipeline_whose_model_fails_to_load_unfreezes_the_heap(run):
    def fail():
        raise OSError("no disk")

    with pytest.raises(Exception, match="no disk"):
        run.infer([1], Acting(load=fail))
    assert gc.get_freeze_count() == 0

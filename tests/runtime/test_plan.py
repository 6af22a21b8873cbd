"""A handler, Headrace's or Beam's, is parsed into data."""

from __future__ import annotations

import apache_beam.ml.inference.base as incumbent
import pytest

from headrace import ConfigurationError, KeyedModelHandler, KeyModelMapping, ModelHandler
from headrace.runtime.plan import ONLY, make_plan


class Ours(ModelHandler):
    pass


class Theirs(incumbent.ModelHandler):
    pass


@pytest.mark.parametrize("cls", [Ours, Theirs])
def test_functions_are_taken_off_the_handler(cls):
    plan = make_plan(cls().with_preprocess_fn(int).with_postprocess_fn(str).with_preprocess_fn(float))
    assert plan.preprocess == (float, int)
    assert plan.postprocess == (str,)
    assert type(plan.models[ONLY]) is cls
    assert (plan.keyed, plan.routed, plan.prebatched, plan.remote) == (False, False, False, frozenset())


@pytest.mark.parametrize(
    ("keyed", "mapping", "cls"),
    [(KeyedModelHandler, KeyModelMapping, Ours), (incumbent.KeyedModelHandler, incumbent.KeyModelMapping, Theirs)],
)
def test_keyed_handler_with_a_model_for_each_set_of_keys(keyed, mapping, cls):
    handler = keyed([mapping(["a", "b"], cls()), mapping(["c"], cls())], max_models_per_worker_hint=1)
    plan = make_plan(handler.with_preprocess_fn(str))
    assert (plan.keyed, plan.routed, plan.model_limit) == (True, True, 1)
    assert list(plan.models) == ["a", "c"]
    assert plan.handler.cohort("b") == "a"


@pytest.mark.parametrize("keyed", [KeyedModelHandler, incumbent.KeyedModelHandler])
def test_subclass_of_a_keyed_handler_keeps_its_own_behaviour(keyed):
    class Mine(keyed):
        def run_inference(self, batch, model, inference_args=None):
            return [("mine", example) for _, example in batch]

    plan = make_plan(Mine(Ours()))
    assert not plan.keyed
    assert type(plan.models[ONLY]) is Mine


def test_subclass_of_beams_keyed_handler_keeps_its_own_answers():
    class Mine(incumbent.KeyedModelHandler):
        def get_metrics_namespace(self):
            return "Mine"

        def get_resource_hints(self):
            return {"min_ram": "1GB"}

    handler = make_plan(Mine([incumbent.KeyModelMapping(["a"], Theirs())])).handler
    assert handler.get_metrics_namespace() == "Mine"
    assert handler.get_resource_hints() == {"min_ram": "1GB"}
    assert not handler.override_metrics("ns")


@pytest.mark.since_beam("2.65", reason="Beam has no RemoteModelHandler before")
def test_remote_models_are_recognized():
    class Theirs(incumbent.RemoteModelHandler):
        def create_client(self):
            return None

        def request(self, batch, model, inference_args=None):
            return batch

    assert make_plan(Theirs("namespace")).remote == {ONLY}
    assert make_plan(incumbent.KeyedModelHandler(Theirs("namespace"))).remote == {ONLY}


def test_unknown_batching_options_are_refused():
    class Wrong(ModelHandler):
        def batch_elements_kwargs(self):
            return {"batch_size": 3}

    with pytest.raises(ConfigurationError, match=r"Wrong.batch_elements_kwargs\(\).*'batch_size'"):
        make_plan(Wrong())

"""Keyed handlers, called by hand and asked for their options."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import pytest

from headrace import (
    ConfigurationError,
    KeyedModelHandler,
    KeyModelMapping,
    MaybeKeyedModelHandler,
    ModelHandler,
    PredictionCountError,
    UnknownKeyError,
)
from headrace.core.keyed import OfExample


class Adder(ModelHandler):
    def __init__(self, amount=1, loads=None, **options):
        super().__init__(**options)
        self.amount = amount
        self.loads = [] if loads is None else loads

    def load_model(self):
        self.loads.append(self.amount)
        return self.amount

    def run_inference(self, batch, model, inference_args=None):
        return [example + model for example in batch]

    def get_metrics_namespace(self):
        return "Adder"

    def get_resource_hints(self):
        return {"min_ram": "1GB"}

    def get_num_bytes(self, batch):
        return 10 * len(batch)

    def validate_inference_args(self, inference_args):
        if inference_args:
            raise ValueError("no arguments, please")


class Shorter(Adder):
    def run_inference(self, batch, model, inference_args=None):
        return list(super().run_inference(batch, model))[:-1]


def by_key():
    return KeyedModelHandler([KeyModelMapping(["a", "b"], Adder(10)), KeyModelMapping(["c"], Adder(20))])


def run(handler, batch):
    return list(handler.run_inference(batch, handler.load_model()))


def test_a_handler_for_each_set_of_keys_keeps_the_order_of_the_batch():
    assert run(by_key(), [("c", 1), ("a", 1), ("b", 2), ("c", 2)]) == [("c", 21), ("a", 11), ("b", 12), ("c", 22)]
    with pytest.raises(UnknownKeyError, match="'d' belongs to no KeyModelMapping"):
        run(by_key(), [("d", 1)])


@pytest.mark.parametrize("handler", [KeyedModelHandler(Shorter()), MaybeKeyedModelHandler(Shorter())])
def test_too_few_predictions_are_never_lost_in_pairing(handler):
    with pytest.raises(PredictionCountError, match="given 2 examples and returned 1"):
        run(handler, [("x", 1), ("y", 2)])


def options_of(handler):
    with pytest.raises(ValueError, match="no arguments"):
        handler.validate_inference_args({"a": 1})
    sharing = handler.share_model_across_processes(), handler.model_copies()
    return handler.get_metrics_namespace(), handler.get_resource_hints(), handler.batch_elements_kwargs(), *sharing


def test_one_handler_gives_the_keyed_handler_its_options_and_of_mappings_they_are_defaults():
    one = KeyedModelHandler(Adder(min_batch_size=3, large_model=True, model_copies=2))
    assert options_of(one) == ("Adder", {"min_ram": "1GB"}, {"min_batch_size": 3}, True, 2)
    assert options_of(by_key()) == ("BeamML_KeyedModels", {}, {}, True, 1)
    with pytest.raises(ConfigurationError, match="model_copies"):
        KeyedModelHandler([KeyModelMapping(["a"], Adder(model_copies=2))]).model_copies()


@pytest.mark.parametrize("keyed", [KeyedModelHandler, MaybeKeyedModelHandler])
def test_a_subclass_may_ask_its_base_and_travels(keyed):
    class Mine(keyed):
        def load_model(self):
            return -super().load_model()

        def batch_elements_kwargs(self):
            return {**super().batch_elements_kwargs(), "max_batch_size": 9}

    handler = cloudpickle.loads(cloudpickle.dumps(Mine(Adder(5, min_batch_size=3))))
    assert handler.load_model() == -5
    assert handler.batch_elements_kwargs() == {"min_batch_size": 3, "max_batch_size": 9}
    assert run(handler, [("a", 1)]) == [("a", -4)]


def model_of(models, name):
    with models.use(name) as model:
        return model


def test_models_called_by_hand_load_once_for_all_threads_and_keep_the_limit():
    loads = []
    mappings = [KeyModelMapping([n], Adder(n, loads)) for n in range(3)]
    models = KeyedModelHandler(mappings).load_model()
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda n: model_of(models, n), [0, 1, 2] * 20)) == [0, 1, 2] * 20
    assert sorted(loads) == [0, 1, 2]
    limited = KeyedModelHandler(mappings, max_models_per_worker_hint=2).load_model()
    for n in (0, 1, 2):
        assert model_of(limited, n) == n
        assert len(limited._cache) <= 2


def test_a_key_may_occur_twice_in_one_mapping_but_not_in_two():
    handler = KeyedModelHandler([KeyModelMapping(["k", "k", "l"], Adder())])
    assert run(handler, [("k", 1), ("l", 1)]) == [("k", 2), ("l", 2)]
    for second in (["k"], ["m", "k"]):
        with pytest.raises(ConfigurationError, match="key k maps to multiple model handlers"):
            KeyedModelHandler([KeyModelMapping(["k", "l"], Adder()), KeyModelMapping(second, Adder())])


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ([], "at least one KeyModelMapping"),
        ([KeyModelMapping([], Adder())], "Empty list"),
        ([Adder()], "one handler or KeyModelMappings"),
        ({"a": Adder()}, "a handler is needed"),
        (Adder, "a handler is needed"),
        ([KeyModelMapping(["a"], None)], "a handler is needed"),
        ([KeyModelMapping({"a"}, Adder())], "a list of hashables"),
        ([KeyModelMapping("ab", Adder())], r"not 'ab': each letter would be a key; a single key is written \['ab'\]"),
        ([KeyModelMapping([["a"]], Adder())], "a list of hashables"),
    ],
    ids=["none", "no-keys", "no-mappings", "dict", "class", "mapping-of-nothing", "set", "text", "unhashable"],
)
def test_an_argument_that_is_no_handler_or_mapping_is_refused(given, cure):
    with pytest.raises(ConfigurationError, match=cure):
        KeyedModelHandler(given)


@pytest.mark.parametrize("processed", [Adder().with_preprocess_fn(int), Adder().with_postprocess_fn(int)])
@pytest.mark.parametrize(
    "make", [KeyedModelHandler, MaybeKeyedModelHandler, lambda mh: KeyedModelHandler([KeyModelMapping(["a"], mh)])]
)
def test_processing_functions_inside_a_mapping_are_refused(make, processed):
    with pytest.raises(ConfigurationError, match="on the keyed handler around it"):
        make(processed)


def test_length_of_a_pairs_example_leaves_what_is_no_pair_to_the_model():
    measure = OfExample(len, if_any=True)
    assert [measure(("key", "abc")), measure(7), measure(("alone",)), measure({})] == [3, 1, 1, 1]


def test_environment_variables_of_all_mappings_are_set(monkeypatch):
    for name in ("KEYED_ONE", "KEYED_BOTH"):
        monkeypatch.setenv(name, "before")
    handlers = [Adder(env_vars={"KEYED_ONE": "1"}), Adder(env_vars={"KEYED_BOTH": "2"})]
    KeyedModelHandler([KeyModelMapping([n], handler) for n, handler in enumerate(handlers)]).set_environment_vars()
    assert (os.environ["KEYED_ONE"], os.environ["KEYED_BOTH"]) == ("1", "2")


def test_bytes_are_those_of_keys_and_examples():
    batch = [("a", 1), ("c", 2), ("a", 3)]
    keys = len(pickle.dumps(("a", "c", "a")))
    assert by_key().get_num_bytes(batch) == keys + 30
    assert KeyedModelHandler(Adder()).get_num_bytes(batch) == keys + 30
    assert MaybeKeyedModelHandler(Adder()).get_num_bytes(batch) == keys + 30
    assert MaybeKeyedModelHandler(Adder()).get_num_bytes([1, 2]) == 20


def test_maybe_keyed_accepts_keyed_and_plain_examples_and_leaves_a_tuple_whole_that_is_no_pair():
    handler = MaybeKeyedModelHandler(Adder())
    assert run(handler, [1, 2]) == [2, 3]
    assert run(handler, [("a", 1), ("b", 2)]) == [("a", 2), ("b", 3)]
    assert run(handler, [1, ("a", 1), 2]) == [2, ("a", 2), 3]
    assert handler.get_num_bytes([1, ("a", 1)]) == len(pickle.dumps(("a",))) + 20
    with pytest.raises(TypeError, match=r"pairs, not \('a', 1, 2\)"):
        run(handler, [1, ("a", 1), ("a", 1, 2)])


@pytest.mark.parametrize("limit", [0, 1.5, "2"])
def test_a_limit_is_a_whole_number_of_at_least_one(limit):
    with pytest.raises(ConfigurationError, match="an int, at least 1"):
        KeyedModelHandler([KeyModelMapping(["a"], Adder())], max_models_per_worker_hint=limit)

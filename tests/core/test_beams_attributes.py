"""Handlers have Beam's private attributes, since published code derives from Beam's handlers and uses them."""

from __future__ import annotations

import pytest

from headrace import KeyedModelHandler, KeyModelMapping, MaybeKeyedModelHandler, ModelHandler, predict


class Times(ModelHandler):
    def load_model(self):
        return 2

    def run_inference(self, batch, model, inference_args=None):
        return [example * model for example in batch]


def test_keyed_handlers_have_beams_attributes():
    one, other = Times(), Times()
    for keyed in (KeyedModelHandler(one), MaybeKeyedModelHandler(one)):
        assert keyed._unkeyed is one
        keyed._unkeyed = other
        assert keyed.unkeyed is other
    mapped = KeyedModelHandler([KeyModelMapping(["a", "b"], one)], max_models_per_worker_hint=3)
    assert (mapped._id_to_mh_map, mapped._key_to_id_map) == ({"a": one}, {"a": "a", "b": "a"})
    assert mapped._max_models_per_worker_hint == 3
    assert list(predict(mapped, [("b", 2)])) == [("b", 4)]


def test_what_a_class_lacks_is_an_attribute_error():
    with pytest.raises(AttributeError, match="max_models"):
        _ = MaybeKeyedModelHandler(Times())._max_models_per_worker_hint

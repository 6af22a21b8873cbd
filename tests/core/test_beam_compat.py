"""What published code and Beam itself expect of handlers: private attributes, and a warning in Beam's own transform."""

from __future__ import annotations

import warnings

import apache_beam as beam
import pytest
from apache_beam.ml.inference import base

import headrace.beam
from headrace import KeyedModelHandler, KeyModelMapping, MaybeKeyedModelHandler, ModelHandler, predict
from headrace.core import beam_compat
from headrace.testing import DoublingHandler


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


@pytest.fixture(autouse=True)
def _unwarned(monkeypatch):
    monkeypatch.setattr(beam_compat, "_warned", False)


def build(transform):
    return beam.Pipeline() | beam.Create([1]) | transform


@pytest.mark.parametrize(
    "handler",
    [
        DoublingHandler(),
        DoublingHandler().with_preprocess_fn(int),
        DoublingHandler().with_no_batching(),
        base.KeyedModelHandler(DoublingHandler()),
        headrace.KeyedModelHandler(DoublingHandler()),
    ],
    ids=["plain", "preprocessing", "prebatched", "in Beam's wrapper", "in ours"],
)
def test_handler_of_ours_in_beams_transform_is_a_warning_where_the_pipeline_is_built(handler):
    said = r"own RunInference runs .*Handler, .* from headrace\.beam .*`headrace mig"
    with pytest.warns(UserWarning, match=said) as caught:
        build(base.RunInference(handler))
    assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(base.RunInference(handler))  # it comes once


class Theirs(base.ModelHandler):
    pass


@pytest.mark.parametrize(
    "transform",
    [
        lambda: base.RunInference(Theirs()),
        lambda: headrace.beam.RunInference(DoublingHandler()),
        lambda: headrace.beam.RunInference(base.KeyedModelHandler(DoublingHandler())),
    ],
    ids=["theirs alone", "ours alone", "their wrapper"],
)
def test_right_transform_gives_no_warning(transform):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(transform())

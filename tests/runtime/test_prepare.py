"""What is wrong is said at once; what has no effect yet is said once."""

from __future__ import annotations

import warnings

import apache_beam.ml.inference.base as incumbent
import pytest

from headrace import (
    ConfigurationError,
    KeyedModelHandler,
    KeyModelMapping,
    ModelHandler,
    NotYetHonouredWarning,
    PlacementConfig,
    RetryConfig,
    UnsupportedError,
)
from headrace.runtime.prepare import Request, catching, prepare


class Handler(ModelHandler):
    def load_model(self):
        raise AssertionError("a model must not load at construction")

    def run_inference(self, batch, model, inference_args=None):
        return batch


@pytest.mark.parametrize("given", ["handler", Handler, None])
def test_no_handler(given):
    with pytest.raises(ConfigurationError, match="no model handler"):
        prepare(given, Request())


def test_batching_must_be_a_batching_config():
    with pytest.raises(ConfigurationError, match="batching must be a BatchingConfig"):
        prepare(Handler(), Request(batching={"max_batch_size": 3}))


@pytest.mark.parametrize("given", ["ValueError", [ValueError], (ValueError, 3), int])
def test_only_exceptions_can_be_caught(given):
    with pytest.raises(ConfigurationError, match="exc_class must be"):
        catching(prepare(Handler(), Request()), given)


@pytest.mark.parametrize(
    ("request_", "feature"),
    [
        (Request(placement="machine"), "placement='machine'"),
        (Request(placement="auto"), "placement='auto'"),
        (Request(placement=PlacementConfig(linger_secs=3)), "linger_secs"),
        (Request(retry=RetryConfig()), "retry"),
    ],
)
def test_what_cannot_be_done_yet_is_a_clear_error(request_, feature):
    with pytest.raises(UnsupportedError, match=f"{feature}.* is not available in this version of Headrace; "):
        prepare(Handler(), request_)


@pytest.mark.parametrize("placement", [None, "process", PlacementConfig(), PlacementConfig("process")])
def test_the_process_is_where_models_live(placement):
    assert prepare(Handler(), Request(placement=placement)).plan.models


@pytest.mark.parametrize("base", [Handler, incumbent.ModelHandler])
def test_options_without_effect_give_one_warning(base):
    handler = base(
        large_model=True,
        model_copies=2,
        max_batch_duration_secs=1,
        batch_length_fn=len,
        batch_bucket_boundaries=[1],
    )
    with pytest.warns(NotYetHonouredWarning) as record:
        prepare(handler, Request())
    assert len(record) == 1
    for option in ("large_model", "model_copies", "max_batch_duration_secs", "length_fn", "bucket_boundaries"):
        assert option in str(record[0].message)


def test_keyed_models_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(KeyedModelHandler([KeyModelMapping(["a"], Handler())]), Request())


def test_the_handler_may_refuse_arguments():
    class Strict(Handler):
        def validate_inference_args(self, inference_args):
            if inference_args:
                raise ValueError("none, please")

    with pytest.raises(ValueError, match="none, please"):
        prepare(Strict(), Request(inference_args={"a": 1}))


def test_identifiers():
    one, two = prepare(Handler(), Request()), prepare(Handler(), Request())
    assert one.transform != two.transform
    assert one.model_identifier != two.model_identifier
    shared = [prepare(Handler(), Request(model_identifier="m")) for _ in range(2)]
    assert shared[0].model_identifier == shared[1].model_identifier == "m"
    assert shared[0].transform != shared[1].transform

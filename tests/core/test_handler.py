"""The contract's defaults, and how pre- and postprocessing are added to a handler."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass

import apache_beam.ml.inference.base as beams_base
import cloudpickle
import numpy as np
import pytest

from headrace import ConfigurationError, ModelHandler
from headrace.core.handler import bare


class Adder(ModelHandler):
    def load_model(self):
        return 1

    def run_inference(self, batch, model, inference_args=None):
        return [example + model for example in batch]


def apply(fns, value):
    for fn in fns:
        value = fn(value)
    return value


def test_options_become_batch_elements_kwargs():
    sizes = {"min_batch_size": 1, "max_batch_size": 2, "max_batch_duration_secs": 3, "max_batch_weight": 4}
    lengths = {"length_fn": len, "bucket_boundaries": [5]}
    of_beam = ModelHandler(**sizes, element_size_fn=len, batch_length_fn=len, batch_bucket_boundaries=[5])
    assert of_beam.batch_elements_kwargs() == {**sizes, "element_size_fn": len, **lengths}
    assert ModelHandler(**lengths).batch_elements_kwargs() == lengths
    with pytest.raises(ConfigurationError, match="batch_length_fn and length_fn are the same; give one of them"):
        ModelHandler(length_fn=len, batch_length_fn=len)


def test_sharing_options_set_sharing_and_copies():
    assert not ModelHandler().share_model_across_processes()
    assert ModelHandler(large_model=True).share_model_across_processes()
    assert ModelHandler(model_copies=2).share_model_across_processes()
    assert ModelHandler(model_copies=2).model_copies() == 2
    assert ModelHandler().model_copies() == 1


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_model_copies_are_a_positive_int(wrong):
    with pytest.raises(ConfigurationError, match="model_copies must be an int, at least 1"):
        ModelHandler(model_copies=wrong)


def test_a_subclass_need_not_call_the_constructor():
    class Terse(Adder):
        def __init__(self):
            pass

    handler = Terse()
    assert handler.batch_elements_kwargs() == {}
    assert handler.model_copies() == 1
    assert not handler.share_model_across_processes()
    handler.set_environment_vars()


def test_env_vars_are_set(monkeypatch):
    monkeypatch.setenv("HEADRACE_TEST_VARIABLE", "before")
    ModelHandler(env_vars={"HEADRACE_TEST_VARIABLE": "after"}).set_environment_vars()
    assert os.environ["HEADRACE_TEST_VARIABLE"] == "after"
    with pytest.raises(ConfigurationError, match="env_vars must map strings to strings, not 'A' to 1"):
        ModelHandler(env_vars={"A": 1})


def test_abstract_methods_name_the_class_and_what_is_missing():
    with pytest.raises(NotImplementedError, match=r"^ModelHandler does not implement load_model, which makes the mod"):
        ModelHandler().load_model()
    with pytest.raises(NotImplementedError, match="does not implement run_inference, which returns a prediction for"):
        ModelHandler().run_inference([], None)


def test_bytes_are_those_of_a_pickle_without_copying_buffers():
    small, large = [np.zeros(10)], [np.zeros(100_000)]
    handler = ModelHandler()
    assert handler.get_num_bytes(large) - handler.get_num_bytes(small) == pytest.approx(8 * 99_990, abs=20)
    assert handler.get_num_bytes(["abc"]) == len(pickle.dumps(["abc"], protocol=5))


def test_the_last_preprocessing_and_the_first_postprocessing_function_added_run_first():
    handler = Adder().with_preprocess_fn(lambda x: x * 2).with_preprocess_fn(int)
    handler = handler.with_postprocess_fn(lambda x: x * 2).with_postprocess_fn(str)
    handler.get_preprocess_fns().clear()  # a copy
    assert apply(handler.get_preprocess_fns(), "5") == 10
    assert apply(handler.get_postprocess_fns(), 5) == "10"


def test_the_original_is_unchanged_and_the_copy_is_of_its_class():
    original = Adder()
    assert type(original.with_preprocess_fn(int).with_postprocess_fn(str).with_no_batching()) is Adder
    assert (original.get_preprocess_fns(), original.get_postprocess_fns()) == ([], [])
    assert not original.should_skip_batching()


class Opinionated(Adder):
    def get_preprocess_fns(self):
        return [int]


def test_added_functions_extend_those_of_a_subclass_and_travel():
    handler = Opinionated().with_preprocess_fn(str.strip).with_postprocess_fn(lambda x: -x).with_no_batching()
    copy = cloudpickle.loads(cloudpickle.dumps(handler))
    assert copy.get_preprocess_fns() == [str.strip, int]
    assert apply(copy.get_postprocess_fns(), 5) == -5
    assert copy.should_skip_batching()


@pytest.mark.parametrize("base", [Adder(), beams_base.ModelHandler()])
def test_bare_removes_all_added_functions(base):
    handler = bare(base.with_preprocess_fn(int).with_postprocess_fn(str).with_no_batching())
    assert (handler.get_preprocess_fns(), handler.get_postprocess_fns()) == ([], [])
    assert not handler.should_skip_batching()


def test_frozen_dataclasses_may_be_handlers():
    @dataclass(frozen=True)
    class Frozen(ModelHandler):
        amount: int

    assert Frozen(3).with_preprocess_fn(int).get_preprocess_fns() == [int]


def test_an_added_function_that_is_not_callable_is_refused():
    for method in (ModelHandler().with_preprocess_fn, ModelHandler().with_postprocess_fn):
        with pytest.raises(ConfigurationError, match="must be callable, not 'x'"):
            method("x")

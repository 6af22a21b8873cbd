"""A fallback that cannot fit is an error at construction, with the cure; one that fits shares what it has to."""

from __future__ import annotations

import pytest

from headrace import BatchingConfig, ConfigurationError, KeyedModelHandler, MaybeKeyedModelHandler
from headrace.runtime.prepare import InferenceRequest, isolated, prepare
from headrace.runtime.spec import SessionSpec
from headrace.testing import DoublingHandler
from http_endpoint import Remote
from toys import Acting, DeviceLosingColumns, Poisoned


class InColumns(DeviceLosingColumns):
    """Asks for columnar elements itself."""

    def batch_elements_kwargs(self):
        return {"columnar": True, "max_batch_size": 7}


HANDLER = Acting()
OTHER = Acting()
COLUMNAR = BatchingConfig(columnar=True)


def prepared(handler, fallback, **options) -> SessionSpec:
    return prepare(handler, InferenceRequest(fallback=fallback, **options))


@pytest.mark.parametrize(
    ("handler", "fallback", "options", "said"),
    [
        (HANDLER, HANDLER, {}, "it is the handler itself"),
        (HANDLER, [], {}, "the list is empty"),
        (HANDLER, [OTHER, Poisoned(), OTHER], {}, "is in the list twice"),
        (HANDLER, [HANDLER], {}, "it is the handler itself"),
        (HANDLER, [[OTHER]], {}, "is no model handler"),
        (HANDLER, Acting, {}, "is no model handler"),
        (HANDLER, Acting(max_batch_size=0), {}, "max_batch_size must be at least 1"),
        (HANDLER, KeyedModelHandler(Acting()), {}, "leave KeyedModelHandler out"),
        (MaybeKeyedModelHandler(HANDLER), KeyedModelHandler(Acting()), {}, "leave KeyedModelHandler out"),
        (MaybeKeyedModelHandler(HANDLER), Acting().with_preprocess_fn(abs), {}, "put MaybeKeyedModelHandler around it"),
        (HANDLER, Acting().with_no_batching(), {}, "batches for the fallback only"),
        (HANDLER.with_no_batching(), Acting(), {}, "batches for the handler only"),
        (DeviceLosingColumns(), Acting(), {"batching": COLUMNAR}, "Acting does not take columnar elements: give it"),
        (HANDLER, InColumns(), {}, "elements are columnar for InColumns only"),
        (
            DeviceLosingColumns(),
            InColumns().with_preprocess_fn(abs),
            {"batching": COLUMNAR},
            "in InColumns.run_columns",
        ),
        (DeviceLosingColumns(), InColumns().with_postprocess_fn(abs), {"batching": COLUMNAR}, "functions of its own"),
        (HANDLER, Acting(act=(one for one in ())), {"isolate": True}, "act"),
    ],
)
def test_fallback_that_does_not_fit_is_refused(handler, fallback, options, said):
    with pytest.raises(ConfigurationError, match=r"^fallback: ") as caught:
        prepared(handler, fallback, **options)
    assert said in str(caught.value)


def test_arguments_are_checked_by_both_handlers():
    class Picky(DoublingHandler):
        def validate_inference_args(self, inference_args):
            raise ValueError("no arguments, please")

    with pytest.raises(ValueError, match="no arguments, please"):
        prepared(HANDLER, Picky(), inference_args={"by": 2})


def test_batching_of_the_request_is_not_that_of_the_fallback():
    fallback = Acting(max_batch_size=3, max_batch_duration_secs=5)
    own = prepared(HANDLER, fallback, batching=BatchingConfig(max_batch_size=2)).fallbacks[0]
    assert own.plan.batching.max_batch_size == 3
    assert not own.plan.may_wait


def test_elements_are_columnar_for_both_and_the_sizes_of_the_fallback_its_own():
    own = prepared(DeviceLosingColumns(), InColumns(), batching=BatchingConfig(columnar=True, max_batch_size=3))
    assert own.plan.batching.max_batch_size == 3
    batching = own.fallbacks[0].plan.batching
    assert (batching.columnar, batching.max_batch_size) == (True, 7)


@pytest.mark.parametrize("fallback", [Remote("http://localhost"), Acting()], ids=["remote", "local"])
@pytest.mark.parametrize("first", [Remote("http://localhost"), Acting()], ids=["remote", "local"])
def test_time_limit_is_that_of_each_of_the_two(first, fallback):
    for spec in (prepared(first, fallback, timeout_secs=3, isolate=True), isolated(prepared(first, fallback), 3)):
        assert [one.timeout_secs for one in (spec, *spec.fallbacks)] == [3, 3]
        assert spec.isolated == isinstance(first, Acting)
        assert spec.fallbacks[0].isolated == isinstance(fallback, Acting)


def test_resource_hints_are_those_of_both():
    class Hinting(Acting):
        def get_resource_hints(self):
            return self.hints

    first, fallback = Hinting(), Hinting()
    first.hints, fallback.hints = {"min_ram": "1GB"}, {"min_ram": "2GB", "accelerator": "gpu"}
    assert prepared(first, fallback).resource_hints == {"min_ram": "1GB", "accelerator": "gpu"}

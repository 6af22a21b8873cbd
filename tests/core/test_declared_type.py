"""What a handler declares that it predicts, by annotation or as a type argument."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import pytest

from headrace import KeyedModelHandler, ModelHandler, PredictionResult
from headrace.core.declared_type import declared_prediction_type

ThingT = TypeVar("ThingT")
OtherT = TypeVar("OtherT")


class Late:
    pass


def declaring(*bases, returns=None):
    def run_inference(self, batch, model, inference_args=None):
        return batch

    run_inference.__annotations__ |= {} if returns is None else {"return": returns}
    return types.new_class(
        "Declaring", bases, {}, lambda names: names.update(run_inference=run_inference, __module__=__name__)
    )


ByArgument = declaring(ModelHandler[str, float, Any])
Open = declaring(ModelHandler[ThingT, tuple[OtherT, ThingT], Any], Generic[OtherT, ThingT])
LateOpen = declaring(ModelHandler[ThingT, "tuple[OtherT, ThingT]", Any], Generic[OtherT, ThingT])


class Closed(Open[int, str]):
    pass


class LateClosed(LateOpen[int, str]):
    pass


class Mixed(declaring(), ModelHandler[str, bytes, Any]):
    pass


@pytest.mark.parametrize(
    ("handler", "declared"),
    [
        (ModelHandler, Any),
        (declaring(ModelHandler), Any),
        (declaring(ModelHandler, returns=Iterator[dict[str, float]]), dict[str, float]),
        (declaring(returns=list[int]), int),
        (ByArgument, float),
        (declaring(ModelHandler[str, float, Any], returns=Sequence[int]), int),
        (declaring(ModelHandler[str, "Late", Any]), Late),
        (declaring(ModelHandler["missing.Example", float, Any], returns="Iterable[missing.Prediction]"), float),
        (declaring(ByArgument), Any),
        (declaring(ByArgument, returns=list[str]), str),
        (Open, tuple[Any, Any]),
        (Closed, tuple[int, str]),
        (LateClosed, tuple[int, str]),
        (Mixed, bytes),
    ],
)
def test_declaration_is_found(handler, declared):
    assert declared_prediction_type(handler()) == declared


def test_declaration_of_a_keyed_handler_is_left_to_those_who_know_the_keys():
    assert declared_prediction_type(KeyedModelHandler(ByArgument())) == tuple[Any, Any]


def test_method_taken_over_on_the_instance_hides_the_class():
    handler = ByArgument()
    handler.run_inference = lambda batch, model, inference_args=None: batch
    assert declared_prediction_type(handler) is Any


class WithFunction(ModelHandler[str, PredictionResult, Any]):
    def __init__(self, inference_fn):
        super().__init__()
        self._inference_fn = inference_fn

    def run_inference(self, batch, model, inference_args=None):
        return self._inference_fn(batch)


def annotated(batch, scale=1) -> list[float]:
    return [scale * one for one in batch]


@pytest.mark.parametrize(
    ("function", "declared"),
    [
        *((None, PredictionResult), (list, Any), (lambda batch: batch, Any)),
        *((annotated, float), (functools.partial(annotated, scale=2), float)),
    ],
)
def test_function_of_the_users_declares_for_itself(function, declared):
    assert declared_prediction_type(WithFunction(function)) == declared

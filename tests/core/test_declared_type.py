"""What a handler declares that it predicts, by annotation or as a type argument."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import pytest

from headrace import KeyedModelHandler, ModelHandler, PredictionResult
from headrace.core.declared_type import declared_prediction_type

ThingT = TypeVar("ThingT")
OtherT = TypeVar("OtherT")


class Plain(ModelHandler):
    def run_inference(self, batch, model, inference_args=None):
        return batch


class ByArgument(ModelHandler[str, float, Any]):
    def run_inference(self, batch, model, inference_args=None):
        return map(len, batch)


class ByAnnotation(ModelHandler):
    def run_inference(self, batch, model, inference_args=None) -> Iterator[dict[str, float]]:
        yield from batch


class ByBoth(ModelHandler[str, float, Any]):
    def run_inference(self, batch, model, inference_args=None) -> Sequence[int]:
        return batch


class ByLateName(ModelHandler[str, "Late", Any]):
    def run_inference(self, batch, model, inference_args=None):
        return batch


class Late:
    pass


class ByMissingName(ModelHandler["missing.Example", float, Any]):
    def run_inference(self, batch, model, inference_args=None) -> Iterable[missing.Prediction]:  # noqa: F821
        return batch


class Overriding(ByArgument):
    def run_inference(self, batch, model, inference_args=None):
        return list(map(str, batch))


class Redeclaring(ByArgument):
    def run_inference(self, batch, model, inference_args=None) -> list[str]:
        return list(map(str, batch))


class Open(ModelHandler[ThingT, tuple[OtherT, ThingT], Any], Generic[OtherT, ThingT]):
    def run_inference(self, batch, model, inference_args=None):
        return batch


class Closed(Open[int, str]):
    pass


class LateOpen(ModelHandler[ThingT, "tuple[OtherT, ThingT]", Any], Generic[OtherT, ThingT]):
    def run_inference(self, batch, model, inference_args=None):
        return batch


class LateClosed(LateOpen[int, str]):
    pass


class Mixin:
    def run_inference(self, batch, model, inference_args=None):
        return batch


class Mixed(Mixin, ModelHandler[str, bytes, Any]):
    pass


class Alone:
    def run_inference(self, batch, model) -> list[int]:
        return batch


@pytest.mark.parametrize(
    ("handler", "declared"),
    [
        (Plain, Any),
        (ByArgument, float),
        (ByAnnotation, dict[str, float]),
        (ByBoth, int),
        (ByLateName, Late),
        (ByMissingName, float),
        (Overriding, Any),
        (Redeclaring, str),
        (Open, tuple[Any, Any]),
        (Closed, tuple[int, str]),
        (LateClosed, tuple[int, str]),
        (Mixed, bytes),
        (Alone, int),
        (ModelHandler, Any),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
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
    [(None, PredictionResult), (list, Any), (lambda batch: batch, Any), (annotated, float)],
)
def test_function_of_the_users_declares_for_itself(function, declared):
    assert declared_prediction_type(WithFunction(function)) == declared


def test_partial_function_declares_what_the_function_does():
    assert declared_prediction_type(WithFunction(functools.partial(annotated, scale=2))) is float

"""A handler whose results lead back to the elements that they are of, whatever preprocessing made of these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.answer import SKIP
from headrace.core.errors import ConfigurationError
from headrace.core.handler import ModelHandler, bare
from headrace.core.keyed import KeyedModelHandler
from headrace.core.lengths import OfExample
from headrace.core.result import PredictionResult


def with_sources(handler: Any) -> Any:
    """A copy of a handler whose results lead back to their elements.

    The ``example`` of a result is what the model was fed, after preprocessing; of this handler's it is the element as
    it came. A prediction that is no ``PredictionResult`` becomes one. The elements travel beside their examples, as the
    keys of pairs do, so they have to pickle where the model lives in a host; a dead letter of inference or later holds
    the pair (element, example).

    Args:
        handler: with all its preprocessing and postprocessing, Headrace's or Beam's.

    Raises:
        ConfigurationError: elements have keys, which lead back already, or are batches.
    """
    if isinstance(handler, KeyedModelHandler) or handler.should_skip_batching():
        raise ConfigurationError(
            "with_sources is for a handler of single examples: a key leads back to its element by itself, and a batch "
            "has no prediction of its own. Leave it out."
        )
    first, *others = list(handler.get_preprocess_fns()) or [_same]
    pairs: Any = _Pairs(bare(handler))
    for fn in reversed([_Pairing(first), *map(_OnExample, others)]):
        pairs = ModelHandler.with_preprocess_fn(pairs, fn)
    *before, last = list(handler.get_postprocess_fns()) or [_same]
    for fn in [*map(_OnExample, before), _Leading(last)]:
        pairs = ModelHandler.with_postprocess_fn(pairs, fn)
    return pairs


class _Pairs(KeyedModelHandler[Any, Any, Any, Any]):
    """Takes pairs of an element and its example; functions among its batching options measure the example."""

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """The handler's options."""
        given = dict(super().batch_elements_kwargs())
        for option in given.keys() & {"element_size_fn", "length_fn"}:
            given[option] = given[option] and OfExample(given[option])
        return given


class _Function(ABC):
    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    @abstractmethod
    def __call__(self, value: Any) -> Any: ...


class _Pairing(_Function):
    """Makes the pair of an element and its example."""

    def __call__(self, value: Any) -> Any:
        example = self._fn(value)
        return SKIP if example is SKIP else (value, example)


class _OnExample(_Function):
    """Applies a function to the second of a pair."""

    def __call__(self, value: Any) -> Any:
        source, example = value
        made = self._fn(example)
        return SKIP if made is SKIP else (source, made)


class _Leading(_Function):
    """Makes a result of the element and the prediction in a pair."""

    def __call__(self, value: Any) -> Any:
        source, prediction = value
        made = self._fn(prediction)
        if made is SKIP:
            return SKIP
        is_result = isinstance(made, tuple) and hasattr(made, "inference") and hasattr(made, "_replace")
        return made._replace(example=source) if is_result else PredictionResult(source, made)


def _same(value: Any) -> Any:
    return value

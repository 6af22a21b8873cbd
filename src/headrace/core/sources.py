"""A handler whose results lead back to the elements that they are of, whatever preprocessing made of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace.core.answer import SKIP
from headrace.core.errors import ConfigurationError
from headrace.core.handler import ModelHandler, bare
from headrace.core.keyed import KeyedModelHandler, OfExample, within_pair
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
    fns: list[Callable[[Any], Any]] = [partial(_paired, first), *map(within_pair, others)]
    for fn in reversed(fns):
        pairs = ModelHandler.with_preprocess_fn(pairs, fn)
    *before, last = list(handler.get_postprocess_fns()) or [_same]
    fns = [*map(within_pair, before), partial(_as_result, last)]
    for fn in fns:
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


def _paired(fn: Callable[[Any], Any], source: Any) -> Any:
    example = fn(source)
    return SKIP if example is SKIP else (source, example)


def _as_result(fn: Callable[[Any], Any], pair: tuple[Any, Any]) -> Any:
    source, prediction = pair
    made = fn(prediction)
    if made is SKIP:
        return SKIP
    is_result = isinstance(made, tuple) and hasattr(made, "inference") and hasattr(made, "_replace")
    return made._replace(example=source) if is_result else PredictionResult(source, made)


def _same(value: Any) -> Any:
    return value

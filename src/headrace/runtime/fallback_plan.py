"""Checks whether a fallback fits the handler that it is for, and fits its plan to that one's elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.answer import SKIP
from headrace.core.config import BatchingConfig
from headrace.core.errors import ConfigurationError
from headrace.core.handler import bare
from headrace.core.keyed import KeyedModelHandler, MaybeKeyedModelHandler
from headrace.runtime.plan import Handler, Plan, make_plan


def fitted_handler(fallback: Handler, first: Handler, plan: Plan) -> Handler:
    """The fallback's handler for elements that a model gets: if they have keys, one for all keys, unless it has many.

    Args:
        fallback: the handler, as given.
        first: the handler that it is for.
        plan: that one, parsed.

    Raises:
        ConfigurationError: the two do not fit together.
    """
    if fallback is first:
        raise ConfigurationError("it is the handler itself; give another one, which may succeed where it fails.")
    own = make_plan(fallback)
    if plan.batching.columnar:
        _refuse_functions(own)
        return fallback
    if own.batching.columnar:
        raise ConfigurationError(
            f"elements are columnar for {own.name} only; run the handler with BatchingConfig(columnar=True), too, or "
            "leave columnar out of the fallback's batch_elements_kwargs()."
        )
    if own.prebatched != plan.prebatched:
        which = "the handler" if plan.prebatched else "the fallback"
        raise ConfigurationError(
            f"elements are batches for {which} only; call with_no_batching() on both handlers, or on neither."
        )
    if _needs_pairs(own) and not _needs_pairs(plan):
        raise ConfigurationError(
            f"{own.name} takes (key, example) pairs, and {plan.name} does not; leave KeyedModelHandler out, or put it "
            "around the handler, too."
        )
    return _with_keys(fallback, own, plan)


def columnar_batching(fallback: Handler) -> BatchingConfig:
    """The batch sizes that a fallback asks for, of rows: its elements are columnar where the first handler's are.

    Raises:
        ConfigurationError: its options of batching are wrong, or not for columnar elements.
    """
    return BatchingConfig.from_kwargs({**fallback.batch_elements_kwargs(), "columnar": True}, fallback)


def _refuse_functions(own: Plan) -> None:
    """What a function makes of an element that is cut into batches has no rows that one could find again."""
    if own.preprocess or own.postprocess:
        raise ConfigurationError(
            "with BatchingConfig(columnar=True) it has no functions of its own, since the rows that they failed could "
            f"not be found; do what with_preprocess_fn and with_postprocess_fn are to do in {own.name}.run_columns."
        )


def _with_keys(fallback: Handler, own: Plan, plan: Plan) -> Handler:
    if isinstance(own.handler, KeyedModelHandler | MaybeKeyedModelHandler):
        return fallback
    if isinstance(plan.handler, KeyedModelHandler):
        keyed: Handler = KeyedModelHandler(bare(fallback))
    elif not isinstance(plan.handler, MaybeKeyedModelHandler):
        return fallback
    elif own.preprocess or own.postprocess:
        raise ConfigurationError(
            "put MaybeKeyedModelHandler around it, as around the handler, before with_preprocess_fn and "
            "with_postprocess_fn: only you know what they are to do with keys."
        )
    else:
        keyed = MaybeKeyedModelHandler(bare(fallback))
    return keyed.with_no_batching() if own.prebatched else keyed


def fitted_plan(plan: Plan, given: Handler, fitted: Handler) -> Plan:
    """The plan of a fallback. Its elements wait for those of other bundles no longer.

    Args:
        plan: that of ``fitted``.
        given: the handler, as given.
        fitted: what ``fitted_handler`` made of it.
    """
    batching = replace(plan.batching, max_batch_duration_secs=None)
    if fitted is not given:
        before, after = (
            tuple(map(_WithinPair, fns)) for fns in (given.get_preprocess_fns(), given.get_postprocess_fns())
        )
        plan = replace(plan, preprocess=before, postprocess=after)
    return replace(plan, batching=batching)


def _needs_pairs(plan: Plan) -> bool:
    return isinstance(plan.handler, KeyedModelHandler)


@dataclass(frozen=True)
class _WithinPair:
    """Applies a function for examples, or predictions, to one with a key."""

    function: Callable[[Any], Any]

    def __call__(self, pair: Any) -> Any:
        key, value = pair
        result = self.function(value)
        return SKIP if result is SKIP else (key, result)

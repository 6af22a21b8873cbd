"""Validates a user's request and turns it into a spec for workers. All configuration errors are raised here."""

from __future__ import annotations

import math
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.core.clock import Clock, SystemClock
from headrace.core.config import BatchingConfig, Budget, CacheConfig, PlacementConfig, RetryConfig, Scope
from headrace.core.engine import EngineModelHandler
from headrace.core.errors import ConfigurationError, NotYetHonouredWarning
from headrace.core.handler import bare
from headrace.core.keyed import KeyedModelHandler, MaybeKeyedModelHandler, within_pair
from headrace.hosts.system import why_no_hosts
from headrace.runtime.endpoints import quota_names
from headrace.runtime.plan import Handler, Plan, make_plan
from headrace.runtime.prediction_cache import cache_spec
from headrace.runtime.spec import BudgetSpec, SessionSpec

Placement = Scope | PlacementConfig | None


@dataclass(frozen=True)
class InferenceRequest:
    """The options of ``RunInference`` and ``predict``, apart from the handler."""

    inference_args: dict[str, Any] | None = None
    placement: Placement = None
    batching: BatchingConfig | None = None
    retry: RetryConfig | None = None
    isolate: bool = False
    timeout_secs: float | None = None
    fallback: Any = None
    cache: str | CacheConfig | None = None
    budget: Budget | None = None
    model_identifier: str | None = None
    clock: Clock | None = None
    column_types: Mapping[str, Any] = field(default_factory=dict)


def prepare(handler: Any, request: InferenceRequest) -> SessionSpec:
    """Validates the request and builds the spec.

    Raises:
        ConfigurationError: an option is wrong or not available; the message says what to do.
    """
    fallbacks = _given_fallbacks(request.fallback)
    spec = _prepared(handler, request, has_fallback=bool(fallbacks))
    prepared = (_prepared_fallback(handler, spec.plan, request, rank) for rank in range(1, len(fallbacks) + 1))
    spec = replace(spec, fallbacks=tuple(prepared))
    if request.budget is not None and request.budget.max_cost_per_row is not None and not spec.sends_requests:
        raise ConfigurationError(
            f"max_cost_per_row is for handlers that send requests (RemoteModelHandler), unlike {spec.plan.name}."
        )
    return spec


def _given_fallbacks(given: Any) -> Sequence[Any]:
    if not isinstance(given, list | tuple):
        return () if given is None else (given,)
    if not given:
        raise ConfigurationError("fallback: the list is empty; name a handler, or leave fallback out.")
    if len(set(map(id, given))) < len(given):
        raise ConfigurationError("fallback: a handler is in the list twice, and would fail again; name it once.")
    return given


def _prepared(handler: Any, request: InferenceRequest, *, rank: int = 0, has_fallback: bool = False) -> SessionSpec:
    _refuse_mistyped(handler, request)
    handler.validate_inference_args(request.inference_args)
    plan = make_plan(handler, request.batching)
    are_judged = any(hasattr(model, "refuse_types") for model in plan.models.values())
    types = request.column_types if are_judged else {}
    plan = replace(plan, rank=rank, has_fallback=has_fallback, column_types=types)
    _refuse_columns(plan)
    given = request.placement
    config = given if isinstance(given, PlacementConfig) else PlacementConfig(given)
    origin = uuid.uuid4().hex
    spec = SessionSpec(
        plan=plan,
        transform=origin,
        model_identifier=request.model_identifier or origin,
        clock=request.clock or SystemClock(),
        inference_args=request.inference_args,
        retry=request.retry or RetryConfig(),
        origin=origin,
        linger_secs=config.linger_secs,
        quota_names=quota_names(plan),
        cache=cache_spec(plan, request.cache, request.inference_args),
        budget=None if request.budget is None else BudgetSpec(request.budget, origin),
    )
    return isolated(_shared(spec, config.scope), request.timeout_secs, isolate=request.isolate or config.isolate)


def _prepared_fallback(first: Any, plan: Plan, request: InferenceRequest, rank: int) -> SessionSpec:
    """The spec of a fallback, with the options of the request; those of batching are its handler's own."""
    given, name = _given_fallbacks(request.fallback), request.model_identifier
    handler, has_fallback = given[rank - 1], rank < len(given)
    own = replace(request, batching=None, model_identifier=f"{name}\0fallback{rank}" if name else None)
    try:
        _refuse_mistyped(handler, own)
        if plan.batching.columnar:
            sizes = {**handler.batch_elements_kwargs(), "columnar": True}
            own = replace(own, batching=BatchingConfig.from_kwargs(sizes, handler))
        fitted = _fitted_handler(handler, first, plan)
        spec = _prepared(fitted, own, rank=rank, has_fallback=has_fallback)
        return replace(spec, plan=_fitted_plan(spec.plan, handler, fitted))
    except ConfigurationError as error:
        which = f"fallback[{rank - 1}]" if len(given) > 1 else "fallback"
        raise type(error)(f"{which}: {error}") from error


def _fitted_handler(fallback: Handler, first: Handler, plan: Plan) -> Handler:
    """The fallback's handler for elements that a model gets: if they have keys, one for all keys, unless it has many.

    Raises:
        ConfigurationError: the two do not fit together.
    """
    if fallback is first:
        raise ConfigurationError("it is the handler itself; give another one, which may succeed where it fails.")
    own = make_plan(fallback)
    if plan.batching.columnar:
        if own.preprocess or own.postprocess:  # what they make of an element that is cut up has no rows to be found
            raise ConfigurationError(
                "with BatchingConfig(columnar=True) it has no functions of its own, since the rows that they failed "
                "could not be found; do what with_preprocess_fn and with_postprocess_fn are to do in "
                f"{own.name}.run_columns."
            )
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
    if isinstance(own.handler, KeyedModelHandler) and not isinstance(plan.handler, KeyedModelHandler):
        raise ConfigurationError(
            f"{own.name} takes (key, example) pairs, and {plan.name} does not; leave KeyedModelHandler out, or put it "
            "around the handler, too."
        )
    return _with_keys(fallback, own, plan)


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


def _fitted_plan(plan: Plan, given: Handler, fitted: Handler) -> Plan:
    """The plan of a fallback. Its elements wait for those of other bundles no longer."""
    batching = replace(plan.batching, max_batch_duration_secs=None)
    if fitted is not given:
        functions = given.get_preprocess_fns(), given.get_postprocess_fns()
        before, after = (tuple(map(within_pair, fns)) for fns in functions)
        plan = replace(plan, preprocess=before, postprocess=after)
    return replace(plan, batching=batching)


def isolated(spec: SessionSpec, timeout_secs: float | None = None, *, isolate: bool = True) -> SessionSpec:
    """The spec with its models in a host, where an operation that takes longer than ``timeout_secs`` is killed.

    Requests to endpoints need no host: the timeout is that of a request. That is also all that it means for an engine,
    which is in a host with ``isolate`` only, or if processes share it. The same holds for fallbacks.

    With ``isolate``, models without a timeout are in a host, too.

    Raises:
        ConfigurationError: the timeout is wrong, the system cannot run hosts, or the handler cannot be pickled.
    """
    timeout_secs = _checked_timeout(timeout_secs)
    spec = replace(spec, fallbacks=tuple(isolated(one, timeout_secs, isolate=isolate) for one in spec.fallbacks))
    concurrent = spec.plan.concurrent
    if not concurrent:
        return _in_hosts(spec, timeout_secs) if isolate or timeout_secs is not None else spec
    if len(concurrent) == len(spec.plan.models):
        if (isolate or spec.is_hosted_or_shared) and _are_engines(spec.plan):
            return _in_hosts(spec, timeout_secs)
        if isolate and not spec.plan.is_one_of_several:
            warnings.warn(
                f"{spec.plan.name} sends requests, which run in the worker's own process: isolate has no effect.",
                NotYetHonouredWarning,
                stacklevel=5,
            )
        return replace(spec, timeout_secs=timeout_secs)
    if isolate or timeout_secs is not None:
        names = ", ".join(sorted(map(repr, concurrent)))
        raise ConfigurationError(
            f"isolate and timeout keep models in a process of their own, while {names} send requests from this one; "
            "give the models that send requests a transform of their own."
        )
    return spec


def _are_engines(plan: Plan) -> bool:
    return all(isinstance(one, EngineModelHandler) for one in plan.models.values())


def _in_hosts(spec: SessionSpec, timeout_secs: float | None) -> SessionSpec:
    reason = why_no_hosts()
    if reason is not None:
        raise ConfigurationError(
            f"isolate=True, use_subprocess=True and timeout run the model in a process of its own: {reason}. "
            "Leave them out on this machine."
        )
    spec = replace(spec, isolated=True, timeout_secs=timeout_secs)
    _check_that_it_pickles(spec)
    return spec


def _checked_timeout(timeout_secs: float | None) -> float | None:
    is_number = isinstance(timeout_secs, int | float) and not isinstance(timeout_secs, bool)
    if timeout_secs is not None and not (is_number and 0 < timeout_secs < math.inf):
        raise ConfigurationError(f"timeout must be a positive number of seconds, not {timeout_secs!r}.")
    return timeout_secs


def _shared(spec: SessionSpec, scope: Scope | None) -> SessionSpec:
    """The spec with the names of the models that all processes of the machine share.

    Raises:
        ConfigurationError: the system cannot share although ``scope`` says so, or the handler cannot be pickled.
    """
    names = frozenset(_names_to_share(spec.plan, scope))
    if not names:
        return spec
    reason = why_no_hosts()
    if reason is not None and scope is not None:
        raise ConfigurationError(f"placement={scope!r} keeps models in processes of their own: {reason}.")
    if reason is not None:
        warnings.warn(
            f"{spec.plan.name} asks for one copy of its model for all processes of the machine, and each has a copy of "
            f"its own: {reason}.",
            NotYetHonouredWarning,
            stacklevel=4,
        )
        return spec
    from headrace.machine.discovery import runtime_directory  # noqa: PLC0415 - as in _check_that_it_pickles

    runtime_directory(make=False)
    copies = 1 if spec.plan.routed else spec.plan.handler.model_copies()
    spec = replace(spec, shared=names, copies=max(1, copies), automatic=scope == "auto")
    _check_that_it_pickles(spec)
    return spec


def _names_to_share(plan: Plan, scope: Scope | None) -> Iterator[Any]:
    if scope == "process":
        return
    for name, handler in plan.models.items():
        asks = handler.share_model_across_processes() or handler.model_copies() > 1
        if name not in plan.concurrent:
            if scope is not None or asks:
                yield name
        elif _are_engines(plan):
            if scope == "machine" or asks:
                yield name
        elif asks and isinstance(handler, EngineModelHandler):  # a client of an endpoint belongs to its process
            raise ConfigurationError(
                f"{type(handler).__qualname__}(large_model=True) shares its engine in a transform of engines only; "
                "give the other models a transform of their own."
            )


def _check_that_it_pickles(spec: SessionSpec) -> None:
    from headrace.ipc.serialization import pickle_or_explain  # noqa: PLC0415 - only now is it certain that the system has
    from headrace.runtime.request_handler import BatchRequestHandler  # noqa: PLC0415 - these modules need

    pickle_or_explain(BatchRequestHandler(spec), spec.plan.name, spec.plan.handler)


def catching(spec: SessionSpec, exceptions: type[BaseException] | tuple[type[BaseException], ...]) -> SessionSpec:
    """The spec with ``exceptions`` turned into failures of elements.

    Raises:
        ConfigurationError: an argument is not an exception class.
    """
    classes = exceptions if isinstance(exceptions, tuple) else (exceptions,)
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        raise ConfigurationError(f"exc_class must be an exception class or a tuple of them, not {exceptions!r}.")
    return replace(spec, caught=exceptions)


def _refuse_mistyped(handler: Any, request: InferenceRequest) -> None:
    if isinstance(handler, type) or not (hasattr(handler, "load_model") and hasattr(handler, "run_inference")):
        raise ConfigurationError(
            f"{handler!r} is no model handler: it needs to be an object with the methods load_model and run_inference; "
            "derive its class from headrace.ModelHandler."
        )
    for name, kind in (("batching", BatchingConfig), ("retry", RetryConfig), ("budget", Budget)):
        given = getattr(request, name)
        if not isinstance(given, kind | None):
            raise ConfigurationError(f"{name} must be a {kind.__name__}, not {given!r}.")


def _refuse_columns(plan: Plan) -> None:
    if not plan.batching.columnar:
        return
    if plan.keyed or plan.prebatched:
        what = "keys" if plan.keyed else "with_no_batching()"
        raise ConfigurationError(f"BatchingConfig(columnar=True) does not go together with {what}.")
    if not hasattr(plan.handler, "run_columns"):
        raise ConfigurationError(
            f"{plan.name} does not take columnar elements: give it a method run_columns(columns, model, "
            "inference_args=None) that returns the predictions for all rows, as an array or a dict of arrays."
        )

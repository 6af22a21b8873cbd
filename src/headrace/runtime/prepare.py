"""From what a user asks for to what a worker needs; whatever is wrong is said here, before any worker starts."""

from __future__ import annotations

import uuid
import warnings
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.clock import Clock, SystemClock
from headrace.core.config import BatchingConfig, PlacementConfig, RetryConfig, Scope
from headrace.core.errors import ConfigurationError, NotYetHonouredWarning, UnsupportedError
from headrace.core.remote import RemoteModelHandler
from headrace.runtime.plan import Plan, make_plan
from headrace.runtime.session import SessionSpec

Placement = Scope | PlacementConfig | None


@dataclass(frozen=True)
class Request:
    """What ``RunInference`` and ``predict`` are asked for, beside the handler."""

    inference_args: dict[str, Any] | None = None
    model_identifier: str | None = None
    placement: Placement = None
    batching: BatchingConfig | None = None
    retry: RetryConfig | None = None
    clock: Clock | None = None


def prepare(handler: Any, request: Request) -> SessionSpec:
    """Checks everything and draws up what the workers need.

    Raises:
        ConfigurationError: something is wrong or not available; the message says what and what to do.
        Exception: the handler refuses the inference arguments.
    """
    if isinstance(handler, type) or not (hasattr(handler, "load_model") and hasattr(handler, "run_inference")):
        raise ConfigurationError(
            f"{handler!r} is no model handler: it needs to be an object with the methods load_model and run_inference; "
            "derive its class from headrace.ModelHandler."
        )
    if not isinstance(request.batching, BatchingConfig | None):
        raise ConfigurationError(f"batching must be a BatchingConfig, not {request.batching!r}.")
    _refuse_unsupported(request.placement, request.retry)
    handler.validate_inference_args(request.inference_args)
    plan = make_plan(handler, request.batching)
    _refuse_remote(plan)
    _warn_of_ignored(plan)
    transform = uuid.uuid4().hex
    return SessionSpec(
        plan=plan,
        transform=transform,
        model_identifier=request.model_identifier or transform,
        clock=request.clock or SystemClock(),
        inference_args=request.inference_args,
    )


def catching(spec: SessionSpec, exceptions: type[BaseException] | tuple[type[BaseException], ...]) -> SessionSpec:
    """The same, with ``exceptions`` turned into failures.

    Raises:
        ConfigurationError: these are no exception classes.
    """
    classes = exceptions if isinstance(exceptions, tuple) else (exceptions,)
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        raise ConfigurationError(f"exc_class must be an exception class or a tuple of them, not {exceptions!r}.")
    return replace(spec, caught=exceptions)


def _refuse_unsupported(placement: Placement, retry: RetryConfig | None) -> None:
    config = placement if isinstance(placement, PlacementConfig) else PlacementConfig(placement)
    if config.scope not in (None, "process"):
        raise UnsupportedError(f"placement={config.scope!r}", "leave it out: each worker process loads its own copy")
    if config.isolate:
        raise UnsupportedError("Isolation (a model in a process of its own)", "leave it out")
    if config.linger_secs is not None:
        raise UnsupportedError("linger_secs", "leave it out: models live as long as their worker process needs them")
    if retry is not None:
        raise UnsupportedError("retry=RetryConfig(...)", "leave it out: the runner retries failed bundles")


def _refuse_remote(plan: Plan) -> None:
    for handler in plan.models.values():
        if isinstance(handler, RemoteModelHandler):
            raise UnsupportedError(
                f"Remote inference ({type(handler).__qualname__})",
                "derive it from apache_beam.ml.inference.base.RemoteModelHandler to run it with Beam's retries",
            )


def _warn_of_ignored(plan: Plan) -> None:
    ignored = plan.batching.not_yet_honoured()
    if not plan.routed and plan.handler.share_model_across_processes():
        ignored.append("large_model")
    if plan.handler.model_copies() != 1:
        ignored.append("model_copies")
    if ignored:
        warnings.warn(
            f"{type(plan.handler).__qualname__} asks for {', '.join(ignored)}, which this version accepts but does not "
            "honour: models are loaded once per process, and batches are formed within a bundle, in arrival order.",
            NotYetHonouredWarning,
            stacklevel=4,
        )

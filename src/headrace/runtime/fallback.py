"""Hands elements that a model cannot do to its fallback, whose outcomes count as the model's.

::

    add -> Bundle -> BypassExecutor -> executor of the model        AnyBundle of the fallback
              |            (its breaker is open: failures at once)       ^           |
              '--- FallbackBundle: failures of inference ----------------'           '--> outcomes

With a second fallback, there is another FallbackBundle of that one's bundle and of the first FallbackBundle; and so on.
``fitted_handler`` checks first whether a fallback fits the handler that it is for.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from headrace.batching.batcher import Batch
from headrace.core.config import BatchingConfig
from headrace.core.errors import BudgetError, ConfigurationError, FallbackError
from headrace.core.events import ElementFailed, Event, Observer
from headrace.core.handler import bare
from headrace.core.keyed import KeyedModelHandler, MaybeKeyedModelHandler, within_pair
from headrace.core.result import Caught, Failure, Outcome, Predictions, Skipped, Stage
from headrace.runtime.bundle import AnyBundle, Executor, raise_uncaught
from headrace.runtime.plan import ONLY, Handler, Plan, make_plan
from headrace.runtime.queues import AnyBatch
from headrace.runtime.session import InferenceSession
from headrace.runtime.spec import SessionSpec

_NOT_TRIED = RuntimeError("not tried, since nothing but failures has come from the model lately")
_AND_THEN = "\nThe fallback failed, too:\n\n"


class FallbackBundle:
    """A bundle of a model with a fallback; used by one thread.

    Failures of inference become elements of the fallback's bundle, with the failure as their tag; so if that fails,
    too, both errors are at hand. The fallback's own functions are part of its inference, seen from outside.

    Args:
        observer: if another fallback takes failures of inference, receives those of postprocessing; else None.
    """

    def __init__(
        self, first: AnyBundle, fallback: AnyBundle, spec: SessionSpec, plan: Plan, observer: Observer | None = None
    ) -> None:
        self._first = first
        self._fallback = fallback
        self._spec = spec
        self._own = len(plan.postprocess) - len(spec.plan.postprocess)
        """How many of the fallback's postprocessing functions are its own, and not the model's, too."""
        self._name = plan.label(ONLY) if plan.routed else plan.answerer(ONLY)
        self._has_rows = spec.plan.batching.columnar
        """Whether elements are columnar, of which the fallback may fail some rows only."""
        self._observer = observer

    @property
    def spent(self) -> bool:
        """As ``Bundle.spent``."""
        return self._first.spent or self._fallback.spent

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """As ``Bundle.add``."""
        outcomes = self._first.add(element, tag)
        return [one for outcome in outcomes for one in self._settled(outcome)] if outcomes else ()

    def finish(self) -> Iterator[Outcome]:
        """As ``Bundle.finish``."""
        spent: BudgetError | None = None
        try:
            for outcome in self._first.finish():
                yield from self._settled(outcome)
        except BudgetError as error:  # what either of the two was asked for comes first: it is paid for
            spent = error
        for outcome in self._fallback.finish():
            yield self._answered(outcome)
        if spent is not None:
            raise spent

    def _settled(self, outcome: Outcome) -> Iterable[Outcome]:
        """The outcome, unless its element goes to the fallback; then those of the fallback that are ready."""
        if not isinstance(outcome, Failure):
            return [outcome]
        if outcome.stage is not Stage.INFERENCE:
            return [raise_uncaught(outcome, self._spec, outcome.error)]
        # Not map(), which a StopIteration raised by user code would end silently.
        return [self._answered(one) for one in self._fallback.add(outcome.element, outcome)]

    def _answered(self, outcome: Outcome) -> Outcome:
        """An outcome of the fallback, as one of the transform."""
        if isinstance(outcome, Predictions):
            return Predictions([failure.tag for failure in outcome.tags], outcome.values, self._name)
        stage, index = Stage.INFERENCE, 0
        if outcome.stage is Stage.POSTPROCESSING and outcome.index >= self._own:
            stage, index = outcome.stage, outcome.index - self._own
        if isinstance(outcome, Skipped):
            is_inside = stage is Stage.INFERENCE
            elements = [failure.element for failure in outcome.tags] if is_inside else outcome.elements
            return Skipped(stage, index, [failure.tag for failure in outcome.tags], elements)
        first: Failure = outcome.tag
        if stage is Stage.POSTPROCESSING:
            failure = replace(outcome, tag=first.tag, index=index)
            if self._observer is not None:
                self._observer.on_event(ElementFailed(stage, outcome.error))
        else:
            failure = replace(
                first,
                element=outcome.element if self._has_rows else first.element,
                caught=_both(first.caught, outcome.caught),
                attempts=first.attempts + outcome.attempts,
            )
            if self._observer is not None:
                return failure  # its element goes to the next fallback
        return raise_uncaught(failure, self._spec, outcome.error)


class BypassExecutor:
    """An executor that passes batches on to another one, but for most of those whose model's circuit breaker is open.

    Those fail at once, so that the fallback takes them; from time to time one is tried, to see whether the model works
    again. Endpoints do the same for requests. What is in the cache needs no model: all elements that a job's first run
    has left out may be bad.
    """

    def __init__(self, executor: Executor, spec: SessionSpec, session: InferenceSession) -> None:
        self.collect = executor.collect
        self._executor = executor
        self._plan = spec.plan
        self._concurrent = spec.plan.concurrent
        self._clock = spec.clock
        self._session = session

    def submit(self, name: Any, batch: AnyBatch) -> Sequence[Outcome]:
        """As ``Executor.submit``."""
        model = self._session.models[name]
        if name in self._concurrent or not model.breaker.is_open:
            return self._executor.submit(name, batch)
        if not model.probing.begins(self._now()):
            return self._passed_on(name, batch)
        try:
            outcomes = [*self._executor.submit(name, batch)]
            with suppress(BudgetError):  # raised again at the bundle's end; these outcomes are paid for
                outcomes.extend(self._executor.collect())
            return outcomes
        finally:
            model.probing.ended(self._now())

    def _passed_on(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        outcomes: list[Outcome] = []
        if self._session.predictions is not None and isinstance(batch, Batch):
            known, _, rest = self._session.predictions.look_up(name, batch)
            if known:
                outcomes += self._executor.submit(name, batch.pick(known)[0])
            if rest is None:
                return outcomes
            batch = rest
        caught, pairs = Caught(_NOT_TRIED, []), zip(batch.elements, batch.tags, strict=True)
        failure = self._plan.failure
        return outcomes + [failure(tag, Stage.INFERENCE, 0, one, caught, model=name, attempts=0) for one, tag in pairs]

    def _now(self) -> float:
        return self._clock.time_ns() / 1e9


class WithoutFailures:
    """An observer that forwards events, but for failures of inference: the element may still get a prediction.

    Args:
        of_any_stage: whether those of all other operations are left out, too.
    """

    def __init__(self, observer: Observer, *, of_any_stage: bool = False) -> None:
        self._observer = observer
        self._of_any_stage = of_any_stage

    def on_event(self, event: Event) -> None:
        """Forwards the event."""
        if not isinstance(event, ElementFailed) or not (self._of_any_stage or event.stage is Stage.INFERENCE):
            self._observer.on_event(event)


def _both(first: Caught, fallback: Caught) -> Caught:
    """The error of an element that both failed, with both tracebacks."""
    error = FallbackError(first.error, fallback.error)
    lines = [*first.lines, _AND_THEN, *fallback.lines, "\n", *traceback.format_exception_only(error)]
    return Caught(error, lines)


def fitted_handler(fallback: Handler, first: Handler, plan: Plan) -> Handler:
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


def columnar_batching(fallback: Handler) -> BatchingConfig:
    """The batch sizes that a fallback asks for, of rows: its elements are columnar where the first handler's are.

    Raises:
        ConfigurationError: its options of batching are wrong, or not for columnar elements.
    """
    return BatchingConfig.from_kwargs({**fallback.batch_elements_kwargs(), "columnar": True}, fallback)


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
    """The plan of a fallback. Its elements wait for those of other bundles no longer."""
    batching = replace(plan.batching, max_batch_duration_secs=None)
    if fitted is not given:
        functions = given.get_preprocess_fns(), given.get_postprocess_fns()
        before, after = (tuple(map(within_pair, fns)) for fns in functions)
        plan = replace(plan, preprocess=before, postprocess=after)
    return replace(plan, batching=batching)

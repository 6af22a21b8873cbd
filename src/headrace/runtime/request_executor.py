"""Runs a bundle's batches as requests, many side by side; their outcomes leave as they come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from queue import Empty
from typing import Any

from headrace.batching.batcher import Batch
from headrace.core.engine import EngineModelHandler
from headrace.core.errors import BudgetError, EndpointError, HostStartError
from headrace.core.events import BatchRetried, Observer, RequestsThrottled
from headrace.core.remote import ElementFailure
from headrace.core.request_context import request_context
from headrace.core.result import Caught, Outcome
from headrace.runtime.bundle import Executor
from headrace.runtime.devices import catches
from headrace.runtime.duplicates import Duplicates, NamedBatch
from headrace.runtime.endpoint import Endpoint
from headrace.runtime.endpoint_calls import Delivery, EndpointCall, Inbox
from headrace.runtime.queues import AnyBatch
from headrace.runtime.steps import ModelAccess, Steps

_LOOK_SECS = 0.25
"""How often a bundle that waits looks whether it was interrupted, and whether the event loop still runs."""


class Throttling:
    """Adds up for how long a worker has waited for endpoints; only whole seconds are reported."""

    def __init__(self) -> None:
        self._secs: dict[str, float] = {}

    def add(self, namespace: str, secs: float) -> int:
        """Adds seconds to a namespace; returns the whole ones, which are to be reported now."""
        total = self._secs.get(namespace, 0.0) + secs
        self._secs[namespace] = total - int(total)
        return int(total)


class RequestExecutor:
    """An executor that hands batches to endpoints, and waits only if too many are on their way.

    Outcomes are in the order in which requests end. Events are reported by the bundle's thread.

    Args:
        worker: provides the clients.
        observer: receives the events.
        throttling: of the worker.
    """

    preprocess_here = True

    def __init__(self, worker: ModelAccess, observer: Observer, throttling: Throttling) -> None:
        self._worker = worker
        self._observer = observer
        self._throttling = throttling
        self._steps = Steps(worker, observer)
        self._session = worker.session
        self._inbox = Inbox()
        self._calls: set[EndpointCall] = set()
        """On their way."""
        self._sent = 0
        self._duplicates = Duplicates()
        self._released: list[NamedBatch] = []
        """What waited for an equal element that has come back."""
        self._unsent: BudgetError | None = None
        """Why some were not sent."""
        self._used: dict[Endpoint, str] = {}
        """With the namespaces of their metrics, which several may share."""

    def submit(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        """Starts a request; returns the outcomes that are ready. Waits if too many are on their way."""
        outcomes, endpoint = self._start(name, batch), self._endpoint(name)
        while (delivery := self._next(wait=len(self._calls) >= endpoint.room)) is not None:
            outcomes += self._settle(delivery)
            outcomes += self._start_released()
        return outcomes

    def _start(self, name: Any, batch: AnyBatch, *, waits: bool = True) -> list[Outcome]:
        """Starts a request for what is not known already; returns the outcomes of what is.

        Elements wait whose equal is on its way, if ``waits``: only once, since it may have failed.
        """
        outcomes, rest = self._steps.look_up(name, batch)
        if waits and rest is not None and self._session.predictions is not None:
            assert isinstance(rest, Batch)
            rest = self._duplicates.hold(name, rest)
        return outcomes if rest is None else [*outcomes, *self._request(name, rest)]

    def _start_released(self) -> list[Outcome]:
        released, self._released = self._released, []
        return [outcome for one in released for outcome in self._start(*one, waits=False)]

    def _request(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        assert isinstance(batch, Batch)
        held = self._steps.borrow(name, batch)
        if isinstance(held, list):
            self._release(batch)
            return held
        with held as loaded:  # a call keeps the client alive: who waits for room in memory must not wait for requests
            self._steps.report_load()
            client = loaded.model
        return [outcome for part in self._parts(name, batch) for outcome in self._send(name, part, client)]

    def _parts(self, name: Any, batch: Batch) -> list[Batch]:
        """A batch for each request: an engine takes elements one by one."""
        if not isinstance(self._worker.plan.models[name], EngineModelHandler) or batch.total == 1:
            return [batch]
        return [batch.pick([place])[0] for place in range(batch.total)]

    def _send(self, name: Any, batch: Batch, client: Any) -> list[Outcome]:
        try:
            keys, examples = self._worker.split_keys(batch.elements)
            prefix = self._prefix(name, examples)
        except Exception as error:
            self._release(batch)
            return self._failed(name, batch, error, 1)
        context = request_context(self._session.record_usage)
        call = EndpointCall(name, batch, keys, examples, client, self._inbox, context, prefix)
        self._calls.add(call)
        self._sent += 1
        self._endpoint(name).submit(call)
        return []

    def _prefix(self, name: Any, examples: Sequence[Any]) -> str:
        handler = self._worker.plan.models[name]
        if not isinstance(handler, EngineModelHandler) or self._worker.plan.prebatched:
            return ""
        return str(handler.prefix(examples[0]) or "")

    def _release(self, batch: Batch) -> None:
        """Has what waited for elements of a batch looked up again, or requested."""
        self._released += self._duplicates.release(batch.cache_keys)

    def collect(self) -> Iterator[Outcome]:
        """Waits for the requests on their way; yields their outcomes as they come.

        Raises:
            BudgetError: at the end, if the budget was spent before all were sent.
        """
        for endpoint in self._used:
            endpoint.note_bundle(self._sent)
        while self._calls or self._released:
            yield from self._start_released()
            if self._calls:
                delivery = self._next(wait=True)
                if delivery is None:
                    raise self._late()
                yield from self._settle(delivery)
        if self._unsent is not None:
            raise self._unsent

    def abandon(self) -> None:
        """Cancels what is on its way."""
        self._duplicates, self._released = Duplicates(), []
        if self._calls:
            self._inbox.abandoned = True
            self._calls, self._inbox = set(), Inbox()
            for endpoint in self._used:
                endpoint.cancel_abandoned()

    def _endpoint(self, name: Any) -> Endpoint:
        assert self._session.endpoints is not None
        endpoint = self._session.endpoints.of(name)
        handler = self._worker.plan.models[name]
        self._used[endpoint] = getattr(handler, "namespace", "") or handler.get_metrics_namespace()
        return endpoint

    def _next(self, *, wait: bool) -> Delivery | None:
        """The next delivery; None if there is none, and it is not to be waited for any longer."""
        try:
            return self._inbox.get_nowait()
        except Empty:
            if not wait:
                return None
        before = {endpoint: endpoint.throttled_secs() for endpoint in self._used}
        delivery = self._wait()
        for endpoint, namespace in self._used.items():
            seconds = self._throttling.add(namespace, endpoint.throttled_secs() - before[endpoint])
            if seconds:
                self._observer.on_event(RequestsThrottled(namespace, seconds))
        return delivery

    def _wait(self) -> Delivery | None:
        usage, endpoints = self._session.usage, self._session.endpoints
        while usage is None or not usage.is_late:
            with suppress(Empty):
                return self._inbox.get(timeout=_LOOK_SECS)
            assert endpoints is not None
            endpoints.check()
        return None

    def _late(self) -> BudgetError:
        assert self._session.usage is not None
        error = self._session.usage.error
        assert error is not None
        return error

    def _settle(self, delivery: Delivery) -> list[Outcome]:
        """The outcomes of a delivery; if an error is not caught, it is raised and everything else cancelled."""
        call = delivery.call
        self._calls.discard(call)
        if delivery.rest is not None:
            self._calls.add(delivery.rest)
        try:
            self._steps.report_load()
            for error in call.retried:
                self._steps.report(BatchRetried(self._label(call.name), call.batch.total, Caught.of(error).error))
            for record in call.records:
                self._steps.report(record)
            if isinstance(delivery.error, BudgetError):
                self._unsent = delivery.error  # raised when everything else is back
                return []
            if delivery.error is not None:
                outcomes = self._failed(call.name, call.batch, delivery.error, call.tries)
            else:
                outcomes = self._answered(delivery)
            self._release(call.batch)
            return outcomes
        except BaseException:
            self.abandon()
            raise

    def _answered(self, delivery: Delivery) -> list[Outcome]:
        call, predictions = delivery.call, delivery.predictions
        bad = [place for place, one in enumerate(predictions) if type(one) is ElementFailure]
        if self._session.usage is not None and len(bad) < len(predictions):
            self._session.usage.expect_reports(self._worker.plan.name)
        if not bad:
            self._steps.learn(self._session.models[call.name], call.batch, delivery.seconds)
            return self._delivered(call, predictions, delivery.seconds)
        if self._worker.plan.prebatched:
            return self._failed(call.name, call.batch, predictions[bad[0]].error, call.tries)
        outcomes: list[Outcome] = []
        for place in bad:
            outcomes += self._failed(call.name, call.part([place]).batch, predictions[place].error, call.tries)
        good = [place for place in range(len(predictions)) if type(predictions[place]) is not ElementFailure]
        if good:
            outcomes += self._delivered(call.part(good), [predictions[place] for place in good], delivery.seconds)
        return outcomes

    def _delivered(self, call: EndpointCall, predictions: list[Any], seconds: float) -> list[Outcome]:
        elements = call.batch.elements
        predictions, event = self._worker.completed(call.name, elements, call.keys, predictions, seconds)
        self._steps.report(event)
        return self._steps.settle(call.name, call.batch, predictions, call.tries)

    def _failed(self, name: Any, batch: Batch, error: BaseException, tries: int) -> list[Outcome]:
        self._steps.report_failed_batch(name, batch.total, error)
        if isinstance(error, EndpointError | HostStartError) or not catches(self._worker.spec, error, name):
            raise error
        return self._steps.settle(name, batch, Caught.of(error), tries)

    def _label(self, name: Any) -> str:
        return self._session.models[name].label


class RoutedExecutor:
    """Runs the batches of some models as requests, and those of the others as another executor does.

    Args:
        requests: for these models.
        names: of these models.
        others: for all others.
    """

    def __init__(self, requests: RequestExecutor, names: Collection[Any], others: Executor) -> None:
        self.preprocess_here = others.preprocess_here
        self._requests = requests
        self._names = names
        self._others = others

    def submit(self, name: Any, batch: AnyBatch) -> Sequence[Outcome]:
        """As ``Executor.submit``."""
        return self._requests.submit(name, batch) if name in self._names else self._others.submit(name, batch)

    def collect(self) -> Iterable[Outcome]:
        """As ``Executor.collect``."""
        return chain(self._others.collect(), self._requests.collect())

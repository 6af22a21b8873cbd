"""Runs a bundle's batches elsewhere, many side by side; their outcomes leave as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any

from headrace.batching.batcher import Batch
from headrace.core.errors import BudgetError, EndpointError, HostStartError
from headrace.core.events import BatchRetried, Observer, RequestsThrottled
from headrace.core.phases import Phase, during
from headrace.core.remote import ElementFailure
from headrace.core.request_context import RowCost, request_context
from headrace.core.result import Caught, Outcome
from headrace.runtime.dispatcher import Dispatcher
from headrace.runtime.endpoint_calls import EndpointCall, Inbox
from headrace.runtime.local_executor import LocalExecutor
from headrace.runtime.operations import catches
from headrace.runtime.queues import AnyBatch
from headrace.runtime.steps import ModelAccess, Steps

NamedBatch = tuple[Any, Batch]
"""A batch, and the name of the model that it is for."""

_LOOK_SECS = 0.25
"""How often a bundle that waits looks whether it was interrupted, and whether the event loop still runs."""


class InFlightDedup:
    """Holds back elements whose equal is on its way to an endpoint: its answer will be theirs."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[NamedBatch]] = {}
        """What waits for elements that are on their way, by their keys in the cache."""
        self.resumed: list[NamedBatch] = []
        """What waited for an element that has come back: to be looked up again, or requested."""

    def defer(self, name: Any, batch: Batch) -> Batch | None:
        """Holds back the elements whose equal is on its way; returns the others, which now are. None if all wait."""
        first: list[int] = []
        for place, key in enumerate(batch.cache_keys):
            if key is not None and key in self._waiting:
                self._waiting[key].append((name, batch.pick([place])[0]))
                continue
            first.append(place)
            if key is not None:
                self._waiting[key] = []
        if len(first) == len(batch.cache_keys):
            return batch
        return batch.pick(first)[0] if first else None

    def resume(self, keys: Sequence[bytes | None]) -> None:
        """Holds back no longer what waits for the elements with these keys, which have come back."""
        for key in keys:
            if key is not None:
                self.resumed += self._waiting.pop(key, ())


class RemoteExecutor:
    """An executor that hands batches to dispatchers, and waits only if too many are on their way.

    Outcomes are in the order in which requests end. Events are reported by the bundle's thread.

    Args:
        local: runs the batches of those models that send no requests.
        throttled_secs: of the worker, by namespace: what was waited for endpoints and not reported yet, as only whole
            seconds are.
    """

    def __init__(
        self, worker: ModelAccess, observer: Observer, local: LocalExecutor, throttled_secs: dict[str, float]
    ) -> None:
        self._worker = worker
        self._local = local
        self._observer = observer
        self._throttled_secs = throttled_secs
        self._steps = Steps(worker, observer)
        self._session = worker.session
        assert worker.session.endpoints is not None
        self._endpoints = worker.session.endpoints
        self._inbox = Inbox()
        self._calls: set[EndpointCall] = set()
        self._dedup = InFlightDedup()
        self._unsent: BudgetError | None = None
        self._dispatchers: dict[Any, Dispatcher] = {}
        """Those of the models that the bundle has had batches for, by name."""

    def submit(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        """Starts a request; returns the outcomes that are ready. Waits if too many are on their way."""
        if name not in self._dispatchers:
            if name not in self._worker.plan.concurrent:
                return self._local.submit(name, batch)
            self._dispatchers[name] = self._endpoints.of(name)
        outcomes = self._start(name, batch)
        room = self._dispatchers[name].room if self._calls else 1
        while len(self._calls) >= room or not self._inbox.empty():
            call = self._next()
            if call is None:
                break
            outcomes += self._settle(call)
            if self._dedup.resumed:
                outcomes += self._start_resumed()
        return outcomes

    def _start(self, name: Any, batch: AnyBatch, *, waits: bool = True) -> list[Outcome]:
        """Starts a request for what is not known already; returns the outcomes of what is.

        Elements wait whose equal is on its way, if ``waits``: only once, since it may have failed.
        """
        outcomes: list[Outcome] = []
        rest: AnyBatch | None = batch
        if self._session.predictions is not None:
            outcomes, rest = self._steps.look_up(name, batch)
            if waits and isinstance(rest, Batch):
                rest = self._dedup.defer(name, rest)
        if rest is None:
            return outcomes
        assert isinstance(rest, Batch)
        held = self._steps.borrow(name, rest)
        if isinstance(held, list):
            self._dedup.resume(rest.cache_keys)
            return outcomes + held
        client = held.model.model
        held.release()  # a call keeps the client alive: who waits for room in memory must not wait for requests
        if self._session.events:
            self._session.report_events(self._observer)
        dispatcher = self._dispatchers[name]
        if not dispatcher.rules.one_by_one:
            return outcomes + self._send(name, dispatcher, rest, client)
        for place in range(len(rest.elements)):
            outcomes += self._send(name, dispatcher, rest.pick([place])[0], client)
        return outcomes

    def _start_resumed(self) -> list[Outcome]:
        resumed, self._dedup.resumed = self._dedup.resumed, []
        return [outcome for one in resumed for outcome in self._start(*one, waits=False)]

    def _send(self, name: Any, dispatcher: Dispatcher, batch: Batch, client: Any) -> list[Outcome]:
        prefix = ""
        try:
            keys, examples = self._worker.split_keys(batch.elements)
            if dispatcher.rules.prefix is not None:
                prefix = str(dispatcher.rules.prefix(examples[0]) or "")
        except Exception as error:
            self._dedup.resume(batch.cache_keys)
            return self._failed(name, batch, error, 1)
        where = getattr(batch.tags[0], "where", None)
        usage, gen_ai = self._session.usage, dispatcher.rules.gen_ai
        most = None if usage is None else usage.max_cost_per_row
        row_cost = None if most is None else RowCost(most, len(batch.elements))
        record = partial(self._session.record_usage, where=where, gen_ai=gen_ai, row_cost=row_cost)
        context = request_context(record, row_cost)
        call = EndpointCall(name, batch, keys, examples, client, self._inbox, context, prefix, row_cost)
        self._calls.add(call)
        dispatcher.submit(call)
        return []

    def collect(self) -> Iterator[Outcome]:
        """Waits for the requests on their way; yields their outcomes as they come.

        Raises:
            BudgetError: at the end, if the budget was spent before all were sent.
        """
        yield from self._local.collect()
        while self._calls or self._dedup.resumed:
            yield from self._start_resumed()
            if self._calls:
                call = self._next()
                if call is None:
                    assert self._session.usage is not None
                    assert self._session.usage.error is not None
                    raise self._session.usage.error
                yield from self._settle(call)
        if self._unsent is not None:
            raise self._unsent

    def abandon(self) -> None:
        """Cancels what is on its way."""
        self._dedup = InFlightDedup()
        if self._calls:
            self._inbox.abandoned = True
            self._calls, self._inbox = set(), Inbox()
            for dispatcher in self._dispatchers.values():
                dispatcher.cancel_abandoned()

    def _next(self) -> EndpointCall | None:
        """The next call that is over; None: it is not to be waited for any longer."""
        if not self._inbox.empty():
            return self._inbox.get_nowait()
        before = {one: one.throttled_secs() for one in self._dispatchers.values()}
        call = self._wait()
        for dispatcher, secs in before.items():
            namespace, waited = dispatcher.rules.namespace, dispatcher.throttled_secs() - secs
            total = self._throttled_secs.get(namespace, 0.0) + waited
            self._throttled_secs[namespace] = total % 1
            if total >= 1:
                self._observer.on_event(RequestsThrottled(namespace, int(total)))
        return call

    @during(Phase.ANSWERS)
    def _wait(self) -> EndpointCall | None:
        usage = self._session.usage
        while usage is None or not usage.is_late:
            with suppress(Empty):
                return self._inbox.get(timeout=_LOOK_SECS)
            self._endpoints.check()
        return None

    def _settle(self, call: EndpointCall) -> list[Outcome]:
        """The outcomes of a call; if an error is not caught, it is raised and everything else cancelled."""
        self._calls.discard(call)
        try:
            if self._session.events:
                self._session.report_events(self._observer)
            for error in call.retried:
                label = self._session.models[call.name].label
                self._steps.report(BatchRetried(label, call.batch.total, Caught.of(error).error))
            for record in call.records:
                self._steps.report(record)
            if isinstance(call.error, BudgetError):
                self._unsent = call.error  # raised when everything else is back
                return []
            if call.error is not None:
                outcomes = self._failed(call.name, call.batch, call.error, call.tries)
            else:
                outcomes = self._answered(call)
            if call.batch.cache_keys:
                self._dedup.resume(call.batch.cache_keys)
            return outcomes
        except BaseException:
            self.abandon()
            raise

    def _answered(self, call: EndpointCall) -> list[Outcome]:
        predictions, usage = call.predictions, self._session.usage
        if usage is not None and usage.awaits_reports and any(type(one) is not ElementFailure for one in predictions):
            usage.expect_reports(self._worker.plan.name)
        if ElementFailure not in map(type, predictions):
            model = self._session.models[call.name]
            if model.sizes.learns:  # of requests there is no memory to be learnt
                self._steps.learn(model, call.batch, call.seconds)
            return self._delivered(call, predictions)
        bad = [place for place, one in enumerate(predictions) if type(one) is ElementFailure]
        good = [place for place, one in enumerate(predictions) if type(one) is not ElementFailure]
        if self._worker.plan.prebatched:
            return self._failed(call.name, call.batch, predictions[bad[0]].error, call.tries)
        outcomes: list[Outcome] = []
        for place in bad:
            outcomes += self._failed(call.name, call.part([place]).batch, predictions[place].error, call.tries)
        if good:
            outcomes += self._delivered(call.part(good), [predictions[place] for place in good])
        return outcomes

    def _delivered(self, call: EndpointCall, predictions: list[Any]) -> list[Outcome]:
        elements, where = call.batch.elements, getattr(call.batch.tags[0], "where", None)
        completed = self._worker.completed
        predictions, event = completed(call.name, elements, call.keys, predictions, call.seconds, where=where)
        self._observer.on_event(event)
        return self._steps.settle(call.name, call.batch, predictions, call.tries)

    def _failed(self, name: Any, batch: Batch, error: BaseException, tries: int) -> list[Outcome]:
        self._steps.report_failed_batch(name, batch.total, error)
        if isinstance(error, EndpointError | HostStartError) or not catches(self._worker.spec, error, name):
            raise error
        return self._steps.settle(name, batch, Caught.of(error), tries)

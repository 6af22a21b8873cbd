"""Sends one request: in the event loop or on a thread, in time, with what its handler reports meanwhile."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from headrace.core.answer import predictions_of, wrong_count
from headrace.core.events import HandlerMetric, UsageReported
from headrace.core.request_context import also_report_to
from headrace.failures.known_rates import Allowance, allowances
from headrace.failures.replies import headers_of
from headrace.runtime.endpoint_calls import EndpointCall, Rules
from headrace.runtime.engine_metrics import EngineMetrics
from headrace.runtime.event_loop import Ended, EventLoop, ended_in_time


class RequestReport:
    """What a handler has reported during one request."""

    def __init__(self) -> None:
        self.tokens = 0
        self.allowances: list[Allowance] = []

    @classmethod
    def in_this_task(cls) -> RequestReport:
        """That of the current task, from now on."""
        report = cls()
        also_report_to(report._used, report._answered)
        return report

    def add_headers_of(self, error: BaseException) -> None:
        """Adds the headers of the answer that the error holds."""
        for headers in headers_of(error):
            self._answered(headers)

    def _used(self, used: UsageReported) -> None:
        self.tokens += used.input_tokens + used.output_tokens

    def _answered(self, headers: dict[str, str]) -> None:
        self.allowances += allowances(headers)


class Sender:
    """Sends the requests for one model, as its rules say; asynchronous ones on the event loop's thread."""

    def __init__(self, event_loop: EventLoop, rules: Rules) -> None:
        self._event_loop = event_loop
        self._rules = rules
        self._recorders = EngineMetrics()

    async def try_in_time(self, call: EndpointCall) -> tuple[Ended, bool]:
        """The end of one try, and whether it came in time."""
        rules, limit = self._rules, self._rules.timeout_secs
        needs_thread = not rules.sends_async or rules.ask_rate_limiter is not None
        if needs_thread and not await self._event_loop.has_thread(rules.patience_secs):
            said = f"{rules.caller} was not called: too many calls that were given up still run on their threads."
            return Ended(error=TimeoutError(f"{said} Give the client a time limit of its own.")), False
        ended = await (self._try(call) if limit is None else ended_in_time(self._try(call), limit))
        late = TimeoutError(f"{rules.caller} took longer than {limit or 0:g} s.")
        return (Ended(error=late), False) if ended is None else (ended, True)

    async def _try(self, call: EndpointCall) -> Ended:
        rules, ended = self._rules, Ended()
        examples = call.examples if rules.prebatched else list(call.examples)
        try:
            if not rules.sends_async:
                ended = await self._event_loop.in_thread(partial(self._send, call, examples))
            else:
                if rules.ask_rate_limiter is not None:
                    ended = await self._event_loop.in_thread(partial(self._ask_rate_limiter, call))
                if ended.error is None:
                    ended = Ended(rules.send(examples, call.client))
            if ended.error is None and inspect.isawaitable(ended.result):
                ended = Ended(await ended.result)
            ended = Ended(self._checked(ended.result, call)) if ended.error is None else ended
        except BaseException as error:
            if call.inbox.abandoned and isinstance(error, asyncio.CancelledError):
                raise
            ended = Ended(error=error)
        if isinstance(ended.error, asyncio.CancelledError):  # by a client: this process has not cancelled it
            failure = RuntimeError(f"{rules.caller} was cancelled by what it calls.")
            failure.__cause__ = ended.error
            return Ended(error=failure)
        return ended

    def _ask_rate_limiter(self, call: EndpointCall) -> None:
        if self._rules.ask_rate_limiter is not None:
            has_length = hasattr(call.examples, "__len__")  # an element that is a batch may have none
            with self._recording(call):
                self._rules.ask_rate_limiter(len(call.examples) if has_length else 1)

    def _send(self, call: EndpointCall, examples: Any) -> Any:
        """Sends a request on a thread of its own; consumes a lazy answer there."""
        self._ask_rate_limiter(call)
        with self._recording(call):
            answer = self._rules.send(examples, call.client)
            return answer if inspect.isawaitable(answer) else self._checked(answer, call)

    @contextmanager
    def _recording(self, call: EndpointCall) -> Iterator[None]:
        """Keeps what is counted with an engine's metrics on this thread: the bundle's thread counts it."""
        records: list[HandlerMetric] = []
        try:
            with self._recorders.recording(process_wide=False) as records:
                yield
        finally:
            call.records += records

    def _checked(self, answer: Any, call: EndpointCall) -> list[Any]:
        """The predictions in an answer.

        Raises:
            PredictionCountError: the handler returned anything but a prediction for each example.
        """
        size = None if self._rules.prebatched else call.batch.total
        predictions = answer if type(answer) is list else predictions_of(answer, self._rules.caller, size)
        if size is not None and len(predictions) != size:
            raise wrong_count(self._rules.caller, size, len(predictions))
        return predictions

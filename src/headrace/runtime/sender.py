"""Sends one request: in the event loop or on a thread, in time, with what its handler reports meanwhile."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from headrace.core.answer import predictions_of, wrong_count
from headrace.core.event_loop import Ended, EventLoop, ended_in_time
from headrace.core.events import HandlerMetric, UsageReported
from headrace.core.request_context import also_report_to
from headrace.failures.known_rates import Allowance, allowances
from headrace.failures.replies import headers_of
from headrace.runtime.endpoint_calls import EndpointCall, Rules
from headrace.runtime.observers import EngineMetrics


class RequestReport:
    """What a handler has reported during one request."""

    def __init__(self) -> None:
        self.tokens = 0
        self.allowances: list[Allowance] = []

    def add_headers_of(self, error: BaseException) -> None:
        """Adds the headers of the answer that the error holds."""
        for headers in headers_of(error):
            self.note_headers(headers)

    def note_usage(self, used: UsageReported) -> None:
        """Takes a report of usage."""
        self.tokens += used.input_tokens + used.output_tokens

    def note_headers(self, headers: dict[str, str]) -> None:
        """Takes an answer's headers."""
        self.allowances += allowances(headers)


class Sender:
    """Sends the requests for one model, as its rules say; asynchronous ones on the event loop's thread."""

    def __init__(self, event_loop: EventLoop, rules: Rules) -> None:
        self._event_loop = event_loop
        self._rules = rules
        self._recorders = EngineMetrics()
        self._needs_thread = not rules.sends_async or rules.ask_rate_limiter is not None

    async def try_in_time(self, call: EndpointCall, report: RequestReport) -> tuple[Ended, bool]:
        """The end of one try, and whether it came in time; from now on the current task reports to ``report``."""
        also_report_to(report.note_usage, report.note_headers)
        rules, limit = self._rules, self._rules.timeout_secs
        if self._needs_thread and not await self._event_loop.has_thread(rules.patience_secs):
            said = f"{rules.caller} was not called: too many calls that were given up still run on their threads."
            return Ended(error=TimeoutError(f"{said} Give the client a time limit of its own.")), False
        ended = await (self._try(call) if limit is None else ended_in_time(partial(self._try, call), limit))
        if ended is None:
            return Ended(error=TimeoutError(f"{rules.caller} took longer than {limit or 0:g} s.")), False
        return ended, True

    async def _try(self, call: EndpointCall) -> Ended:
        rules = self._rules
        examples = call.examples if rules.prebatched else list(call.examples)
        try:
            ended = Ended()
            if self._needs_thread:
                ended = await self._event_loop.in_thread(partial(self._in_thread, call, examples))
            if rules.sends_async and ended.error is None:
                ended = Ended(rules.send(examples, call.client))
            if inspect.isawaitable(ended.result):
                ended = Ended(await ended.result)
            if ended.error is None:
                ended = Ended(self._checked(ended.result, call))
        except BaseException as error:
            if call.inbox.abandoned and isinstance(error, asyncio.CancelledError):
                raise
            ended = Ended(error=error)
        if isinstance(ended.error, asyncio.CancelledError):  # by a client: this process has not cancelled it
            failure = RuntimeError(f"{rules.caller} was cancelled by what it calls.")
            failure.__cause__ = ended.error
            return Ended(error=failure)
        return ended

    def _in_thread(self, call: EndpointCall, examples: Any) -> Any:
        """Asks the rate limiter, and sends a request that blocks, whose lazy answer is consumed here."""
        rules = self._rules
        with self._recording(call):
            if rules.ask_rate_limiter is not None:
                has_length = hasattr(examples, "__len__")  # an element that is a batch may have none
                rules.ask_rate_limiter(len(examples) if has_length else 1)
            if rules.sends_async:
                return None
            answer = rules.send(examples, call.client)
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
        size = None if self._rules.prebatched else len(call.batch.elements)
        predictions = answer if type(answer) is list else predictions_of(answer, self._rules.caller, size)
        if size is not None and len(predictions) != size:
            raise wrong_count(self._rules.caller, size, len(predictions))
        return predictions

"""Requests to an endpoint: the rules by which they are sent, those that wait, and how one of them is sent."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, NamedTuple

from headrace.batching.batcher import Batch
from headrace.core.answer import predictions_of, wrong_count
from headrace.core.engine import EngineModelHandler, predict_each
from headrace.core.errors import as_type_name
from headrace.core.event_loop import Ended, EventLoop, ended_in_time
from headrace.core.events import WANTED, CallEnded, Event, HandlerMetric, UsageReported
from headrace.core.fingerprint import fingerprint
from headrace.core.remote import RemoteModelHandler
from headrace.core.request_context import RowCost, also_report_to
from headrace.failures.concurrency import ConcurrencyLimit, FixedLimit
from headrace.failures.endpoint_board import Board
from headrace.failures.replies import RequestReport
from headrace.failures.retry import is_retryable
from headrace.runtime.observers import EngineMetrics
from headrace.runtime.plan import is_async
from headrace.runtime.spec import SessionSpec
from headrace.runtime.usage_meter import UsageMeter, meter_of

_MOST_TASKS, _MOST_THREADS = 1000, 256
"""How many requests may be in flight if they run in the event loop, and on threads."""
_QUOTA_WAITS = 3
"""A quota is waited for this many times as long as an endpoint that is down: many are counted by the minute."""


class Rules(NamedTuple):
    """How the requests of one model are sent."""

    caller: str
    send: Callable[[Any, Any], Any]
    """Sends the examples with the client; may return an awaitable."""
    sends_async: bool
    """Whether ``send`` does not block, so that it may run in the event loop."""
    prebatched: bool
    ask_rate_limiter: Callable[[int], None] | None
    num_retries: int
    retry_filter: Callable[[Exception], bool]
    patience_secs: float
    """How long after its first failure a request may be sent again."""
    timeout_secs: float | None
    """How long one try may take; None: no limit."""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    has_fallback: bool = False
    """Whether requests that would have to wait for an endpoint that answers nothing are better given up."""
    usage: UsageMeter | None = None
    max_concurrent: int | None = None
    """How many requests may be in flight, if the handler says so; None: found out by feedback."""
    max_retry_after_secs: float = 300.0
    """The longest wait that the endpoint may ask for: a request that would have to wait longer is given up."""
    caught: type[BaseException] | tuple[type[BaseException], ...] = Exception
    namespace: str = ""
    """Of the handler's metrics; several models may share it."""
    one_by_one: bool = False
    """Whether elements are sent one by one, whatever batches they come in."""
    prefix: Callable[[Any], str | None] | None = None
    """What those that wait for an engine are sorted by."""
    label: str = ""
    """The model's name in metrics."""
    model_name: str = ""
    """Its name at the endpoint, if the handler says."""
    gen_ai: tuple[str, str] = ("", "")
    """As the handler's."""

    def longest_wait(self, *, is_refused: bool) -> float:
        """Seconds that a request waits for an endpoint that answers none, or refuses it. A fallback is there sooner."""
        return self.patience_secs * (_QUOTA_WAITS if is_refused and not self.has_fallback else 1)

    def new_limit(self, now: float, board: Board | None) -> ConcurrencyLimit | FixedLimit:
        """How many requests may be in flight, and how fast they follow each other."""
        if self.max_concurrent is not None:
            return FixedLimit(self.max_concurrent)
        return ConcurrencyLimit(
            now,
            most=_MOST_TASKS if self.sends_async else _MOST_THREADS,
            board=board,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            patience_secs=math.inf if self.has_fallback else self.patience_secs,
        )


def rules_of(spec: SessionSpec, name: Any) -> Rules:
    """The rules for a model's requests: its handler's if that is remote, else those of the transform's retries."""
    handler = spec.plan.models[name]
    is_remote = isinstance(handler, RemoteModelHandler)
    is_engine = isinstance(handler, EngineModelHandler)
    method = handler.request if is_remote else partial(predict_each, handler) if is_engine else handler.run_inference
    limiter = getattr(handler, "rate_limiter", None) if is_remote else None
    limit = handler.max_concurrent if is_engine or is_remote else None
    is_hosted = spec.isolated  # then the model stands in for an engine, and its host keeps to the timeout

    def send(examples: Any, client: Any) -> Any:
        if is_hosted:
            return client.predict(examples, spec.inference_args)
        return method(examples, client, spec.inference_args)

    return Rules(
        caller=f"{type(handler).__qualname__}.{'request' if is_remote else 'submit' if is_engine else 'run_inference'}",
        send=send,
        sends_async=is_hosted or is_async(method),
        prebatched=spec.plan.prebatched,
        ask_rate_limiter=handler.ask_rate_limiter if limiter is not None else None,
        num_retries=handler.num_retries if is_remote else spec.retry.attempts - 1,
        retry_filter=handler.retry_filter if is_remote else partial(is_retryable, config=spec.retry),
        patience_secs=spec.retry.timeout_secs,
        timeout_secs=None if is_hosted else spec.timeout_secs,
        requests_per_minute=getattr(handler, "requests_per_minute", None),
        tokens_per_minute=getattr(handler, "tokens_per_minute", None),
        has_fallback=spec.plan.has_fallback,
        usage=meter_of(spec),
        max_concurrent=limit and limit * spec.copies_of(name),
        max_retry_after_secs=spec.retry.max_retry_after_secs,
        caught=spec.caught,
        namespace=getattr(handler, "namespace", "") or handler.get_metrics_namespace(),
        one_by_one=is_engine,
        prefix=handler.prefix if is_engine and not spec.plan.prebatched else None,
        label=spec.plan.label(name),
        model_name=str(getattr(handler, "model_name", None) or ""),
        gen_ai=handler.gen_ai if is_remote or is_engine else ("", ""),
    )


class Inbox(SimpleQueue["EndpointCall"]):
    """Where a bundle waits for its calls, which come back with what became of them."""

    abandoned = False
    refusal: BaseException | None = None
    """Why the endpoint would refuse all of the bundle's calls: none is sent any more."""


@dataclass(eq=False, repr=False)
class EndpointCall:
    """A batch on its way to an endpoint and back. Without a repr: the client may have a key in it."""

    name: Any
    batch: Batch
    keys: Sequence[Any] | None
    examples: Sequence[Any]
    """As the handler gets them; if elements are batches, the element."""
    client: Any
    inbox: Inbox
    context: contextvars.Context
    prefix: str = ""
    row_cost: RowCost | None = None
    tries: int = 1
    failures: int = 0
    """How many tries have failed by themselves."""
    paid: int = 0
    """Tokens, for the retries of those."""
    refusals: int = 0
    """How many tries the endpoint has refused, or could not take."""
    is_refused: bool = False
    """Whether any was refused."""
    queued: float = 0.0
    started: float = 0.0
    """When its last try began."""
    report: RequestReport = field(default_factory=RequestReport)
    """What was reported during that."""
    deadline: float = math.inf
    """No later try starts after this."""
    retried: list[BaseException] = field(default_factory=list)
    records: list[Event] = field(default_factory=list)
    """What its bundle is to report."""
    error: BaseException | None = None
    predictions: list[Any] = field(default_factory=list)
    seconds: float = 0.0
    """How long its last try took."""

    def content(self) -> object:
        """What tells the call from others with different examples."""
        try:
            return fingerprint(self.examples)
        except Exception:
            return object()  # nobody can tell: it is taken for different

    def part(self, positions: Sequence[int]) -> EndpointCall:
        """The call for some of its elements, with its tries so far."""
        batch, _ = self.batch.pick(positions)
        keys = None if self.keys is None else [self.keys[place] for place in positions]
        examples = [self.examples[place] for place in positions]
        return replace(self, batch=batch, keys=keys, examples=examples, retried=[], records=[])

    def keep(self, positions: Sequence[int]) -> None:
        """Leaves out the other elements."""
        part = self.part(positions)
        self.batch, self.keys, self.examples = part.batch, part.keys, part.examples
        if self.row_cost is not None:
            self.row_cost.elements = len(positions)


class Sender:
    """Sends the requests for one model, as its rules say; asynchronous ones on the event loop's thread."""

    def __init__(self, event_loop: EventLoop, rules: Rules) -> None:
        self._event_loop = event_loop
        self._rules = rules
        self._needs_thread = not rules.sends_async or rules.ask_rate_limiter is not None
        self._recorders = EngineMetrics() if self._needs_thread else None

    async def try_in_time(self, call: EndpointCall) -> tuple[Ended, bool]:
        """The end of one try, and whether it came in time; from now on the current task reports to the call."""
        call.report = report = RequestReport()
        also_report_to(report.note_usage, report.allowances.extend)
        rules, limit = self._rules, self._rules.timeout_secs
        if self._needs_thread and not await self._event_loop.threads.has_room(rules.patience_secs):
            said = f"{rules.caller} was not called: too many calls that were given up still run on their threads."
            return Ended(error=TimeoutError(f"{said} Give the client a time limit of its own.")), False
        began = time.monotonic()
        ended = await (self._try(call) if limit is None else ended_in_time(partial(self._try, call), limit))
        in_time = ended is not None
        ended = ended or Ended(error=TimeoutError(f"{rules.caller} took longer than {limit or 0:g} s."))
        if CallEnded in WANTED:
            call.records.append(self._call_ended(report.used, time.monotonic() - began, ended.error))
        return ended, in_time

    def _call_ended(self, used: Sequence[UsageReported], seconds: float, error: BaseException | None) -> CallEnded:
        tokens = sum(one.input_tokens for one in used), sum(one.output_tokens for one in used)
        name = used[0].model if used else self._rules.model_name
        error_type = "" if error is None else as_type_name(error)
        return CallEnded(self._rules.label, seconds, True, error_type, *self._rules.gen_ai, name, tokens)

    async def _try(self, call: EndpointCall) -> Ended:
        rules, answer = self._rules, None
        examples = call.examples if rules.prebatched else list(call.examples)
        try:
            if self._needs_thread:
                ended = await self._event_loop.threads.run(partial(self._in_thread, call, examples))
                if ended.error is not None:
                    raise ended.error
                answer = ended.result
            if rules.sends_async:
                answer = rules.send(examples, call.client)
            return Ended(self._checked(await answer if inspect.isawaitable(answer) else answer, call))
        except asyncio.CancelledError as error:
            if call.inbox.abandoned:
                raise
            failure = RuntimeError(f"{rules.caller} was cancelled by what it calls.")
            failure.__cause__ = error
            return Ended(error=failure)
        except BaseException as error:
            del call  # the error is set on it, and a traceback that refers back would keep the client
            return Ended(error=error)

    def _in_thread(self, call: EndpointCall, examples: Any) -> Any:
        """Asks the rate limiter, and sends a request that blocks, whose lazy answer is consumed here.

        What is counted with an engine's metrics on this thread is kept: the bundle's thread counts it.
        """
        assert self._recorders is not None
        rules = self._rules
        records: list[HandlerMetric] = []
        try:
            with self._recorders.recording(process_wide=False) as records:
                if rules.ask_rate_limiter is not None:
                    has_length = hasattr(examples, "__len__")  # an element that is a batch may have none
                    rules.ask_rate_limiter(len(examples) if has_length else 1)
                if rules.sends_async:
                    return None
                answer = rules.send(examples, call.client)
                return answer if inspect.isawaitable(answer) else self._checked(answer, call)
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


class WaitingCalls(deque[EndpointCall]):
    """Calls in the order in which they leave, those for an engine sorted by prefix. Not thread-safe."""

    def __init__(self, *, for_engine: bool) -> None:
        super().__init__()
        self._for_engine = for_engine
        self._sorted = 0
        """How many of them, at the front, are sorted by prefix."""

    def take(self, *, newest: bool) -> EndpointCall:
        """Removes the next call.

        Those for an engine are sorted when all that were sorted before have left: none waits for long.

        Args:
            newest: the one at the back, rather than one that is sent again: each probe is another request.
        """
        if self._for_engine and self._sorted <= 0:
            self.extend(sorted(self.remove_all(), key=attrgetter("prefix")))
            self._sorted = len(self)
        self._sorted -= 1
        return self.pop() if newest else self.popleft()

    def remove_all(self, which: Callable[[EndpointCall], bool] = lambda _: True) -> list[EndpointCall]:
        """Removes calls, by default all, and returns them."""
        removed = [call for call in self if which(call)]
        if removed:
            kept = [call for call in self if not which(call)]
            self.clear()
            self.extend(kept)
        return removed

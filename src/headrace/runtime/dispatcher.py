"""Dispatches the requests for one model: which wait, which are in flight, and which are sent again."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.core.errors import EndpointError, copy_of
from headrace.core.event_loop import Alarm, EventLoop, Gathering, in_context
from headrace.core.remote import ElementRetry, pause_before_retry
from headrace.failures import replies
from headrace.failures.endpoint_board import Board
from headrace.failures.outages import Verdict
from headrace.failures.replies import EndpointLog, EndpointRecord, Judgement, RequestReport, judge
from headrace.failures.retry import RetryTokens
from headrace.runtime.endpoint_calls import EndpointCall, Rules, Sender, WaitingCalls
from headrace.runtime.sampling import sample_also

_WAITING = 8
"""How many batches of a bundle may wait, besides one for each request in flight."""
_REFUSED_SECS, _UNAVAILABLE_SECS = 20.0, 1.0
"""The longest pause of a single request that an endpoint refuses, or cannot take; before, it doubles from 0.1 s."""
_SHORTEST_WAIT_SECS = 0.004
"""What may leave within this time leaves together: waking up costs more than sending."""
_SHOWN_SECS = 0.5
"""How often an endpoint that has requests shows the machine's other processes that it is there."""
_ANSWERED = Judgement(Verdict.ANSWERED, retries=False, delay_secs=0.0)
_UNKNOWN = Judgement(Verdict.NOTHING, retries=False, delay_secs=0.0)


class Dispatcher:
    """All requests for one model in this process. Its public methods may be called from any thread.

    ::

        submit -> waiting -> (ConcurrencyLimit) -> in flight -> judged -> delivered to the bundle's inbox
                     ^                                            |
                     +---------------- again, after a pause ------+

    All else happens on the event loop's thread. A machine's processes share the board, this one's sessions the record.
    """

    def __init__(
        self, event_loop: EventLoop, rules: Rules, board: Board | None = None, record: EndpointRecord | None = None
    ) -> None:
        self._event_loop = event_loop
        self._loop = event_loop.loop
        self.rules = rules
        self._limit = sample_also(rules.new_limit(self._loop.time(), board))
        self._sender = Sender(event_loop, rules)
        self._tokens = RetryTokens()
        self._submitted: deque[EndpointCall] = deque()
        self._needs_wakeup = True
        """Whether the next submit must wake the loop: it would leave at once."""
        self._waiting = WaitingCalls(for_engine=rules.max_concurrent is not None)
        self._calls: set[EndpointCall] = set()
        """All that have been admitted, and not yet delivered: they wait, are in flight, or pause before another try."""
        self._deliveries = Gathering(self._loop)
        self._paused: set[EndpointCall] = set()
        self._first: EndpointCall | None = None
        """What was refused last: until the endpoint has answered anything, others wait while it pauses."""
        self._tasks: dict[EndpointCall, asyncio.Task[None]] = {}
        self.room = 2 * self._limit.limit + _WAITING
        """How many batches a bundle may have here at a time."""
        self._free: asyncio.Task[None] | None = None
        self._following: tuple[EndpointCall, float] | None = None
        """A task whose call is over; and what it goes on with, and since when."""
        self._beginning = 0
        """How many tasks are made, but have not begun."""
        self._alarm = Alarm(self._loop, partial(self._guarded, self._start_ready), _SHORTEST_WAIT_SECS)
        self._record = record or EndpointRecord()
        self._named_until = -math.inf
        """What the endpoint asked for as its outage began."""
        self._last_error: BaseException | None = None
        self._log = EndpointLog(rules.caller)
        self._throttled: tuple[float, float | None] = 0.0, None
        """For how long requests have been throttled, and since when they are: one value, as other threads see it."""

    def throttled_secs(self) -> float:
        """For how long requests have waited because the endpoint refuses some, or all, in seconds."""
        secs, since = self._throttled
        return secs + (self._loop.time() - since if since is not None else 0.0)

    def submit(self, call: EndpointCall) -> None:
        """Queues a call; it comes back through its inbox, perhaps in parts."""
        self._submitted.append(call)
        if self._needs_wakeup:
            self._needs_wakeup = False
            self._event_loop.call(self._guarded, self._start_ready)

    def cancel_abandoned(self) -> None:
        """Forgets calls whose bundle was abandoned. A blocking request that is in flight goes on unheard."""
        self._event_loop.call(self._guarded, self._drop)

    def close(self) -> None:
        """Leaves the machine's other processes their part; call it on the loop's thread."""
        self._alarm.stop()
        self._limit.board.close()

    def _guarded(self, step: Callable[[], object]) -> None:
        """Takes a step on the loop's thread; if it raises, what is not in flight fails: nothing else would end it."""
        try:
            step()
        except BaseException as error:
            self._needs_wakeup = True
            while self._submitted:
                self._calls.add(self._submitted.popleft())
            self._waiting.remove_all()
            self._end_lost(error)

    def _end_lost(self, error: BaseException) -> None:
        """Ends the requests that nothing else would end any more, since a step was left in its middle."""
        self._limit.in_flight = min(self._limit.in_flight, len(self._tasks))
        for call in self._calls - self._tasks.keys() - self._paused - set(self._waiting):
            self._deliver(call, copy_of(error))

    def _drop(self) -> None:
        self._admit()
        for call in self._tasks:
            if call.inbox.abandoned:
                self._loop.call_soon(self._cancel, call)  # a task that has not begun would never end its request
        self._calls = {call for call in self._calls if not call.inbox.abandoned}
        self._paused &= self._calls  # an abandoned call that pauses holds up no other
        self._waiting.remove_all(lambda call: call.inbox.abandoned)
        self._start_ready()

    def _cancel(self, call: EndpointCall) -> None:
        if call in self._tasks:  # else its task may perform another one by now
            self._tasks[call].cancel()

    def _admit(self) -> None:
        now = self._loop.time()
        while self._submitted:
            call = self._submitted.popleft()
            self._calls.add(call)
            if call.inbox.refusal is not None:
                self._deliver(call, call.inbox.refusal)
                continue
            call.queued = now
            self._waiting.append(call)

    def _enqueue_again(self, call: EndpointCall) -> None:
        self._paused.discard(call)
        if call in self._calls:
            self._waiting.appendleft(call)
        self._start_ready()

    def _start_ready(self) -> None:
        """Starts what may start, and sets a timer for what may start later."""
        self._needs_wakeup = True  # first: a submit meanwhile wakes the loop once too often, not once too little
        if self._submitted:
            self._admit()
        now, began = self._loop.time(), self._limit.outage_began
        if began is not None or self._log.is_down:
            self._note_outage(now, began)
        if (usage := self.rules.usage) is not None and usage.may_be_over and usage.error is not None:
            for call in self._waiting.remove_all():  # the budget is spent
                self._deliver(call, usage.error)
        self._limit.client_is_busy = self._event_loop.is_busy()
        awaited = self._first if self._first in self._paused and not self._record.has_answered else None
        ready = len(self._waiting) if awaited is None else 0
        left, wait = self._limit.take(now, ready)
        for _ in range(left):
            call = self._waiting.take(newest=began is not None and self._limit.is_down)
            self._tasks[call] = self._task_for(call, now)
        if began is not None and self._waiting and self._patience(now) <= 0:
            self._give_up_on(lambda _: True)
        again = math.inf if left == ready else wait if began is None else min(wait, self._patience(now))
        if self._limit.board.is_shared and (self._tasks or self._waiting):
            again = min(again, _SHOWN_SECS)
        if again < math.inf:
            self._alarm.set(now + max(again, _SHORTEST_WAIT_SECS))
        self._needs_wakeup = not self._waiting
        self.room = 2 * self._limit.limit + _WAITING
        is_throttled = self._limit.is_throttled or (awaited is not None and awaited.refusals > 0)
        if is_throttled != (self._throttled[1] is not None):
            self._throttled = self.throttled_secs(), now if is_throttled else None

    def _note_outage(self, now: float, began: float | None) -> None:
        """Tells of an outage, and gives up on what has waited for too long for an endpoint that answers nothing."""
        self._log.note(is_down=self._limit.is_down, error=self._last_error)
        if began is not None:
            is_quota, patience = not (self._limit.is_down or self._log.asks_too_much), self.rules.patience_secs
            ends = max(began, self._named_until) + self.rules.longest_wait(is_refused=is_quota)
            self._give_up_on(lambda one: now > min(one.deadline, max(one.queued + patience, ends)))

    def _patience(self, now: float) -> float:
        """Seconds until what waits is left to a fallback. A quota may be free again soon, an outage is one at once."""
        began = self._limit.outage_began
        if began is None or not self.rules.has_fallback:
            return math.inf
        return 0.0 if self._limit.is_down else began + self.rules.patience_secs - now

    def _task_for(self, call: EndpointCall, now: float) -> asyncio.Task[None]:
        """The task that performs a call: one whose last call is over, or a new one."""
        if self._free is None or self._beginning:  # that would overtake what has left before
            self._beginning += 1
            return self._loop.create_task(self._perform(call, now))
        task, self._free, self._following = self._free, None, (call, now)
        return task

    async def _perform(self, call: EndpointCall, started: float) -> None:
        """Performs a call, and then others, each at once: so a client finds the connection of the last one free."""
        self._beginning -= 1
        following: tuple[EndpointCall, float] | None = call, started
        while following is not None:
            call, started = following
            try:
                trying = self._sender.try_in_time(call, report := RequestReport())
                ended, in_time = await in_context(call.context.copy(), trying)
                if ended.error is None:
                    self._answered(call, started, ended.result, report)
                else:
                    self._failed(call, started, ended.error, report, in_time=in_time)
                self._free = asyncio.current_task()
            except BaseException as error:  # it was cancelled, or Headrace itself raises: nothing else ends the request
                if self._tasks.pop(call, None) is not None:
                    self._guarded(partial(self._finish, call, started, _UNKNOWN, RequestReport()))
                self._end_lost(error)
            if not self._loop.is_closed():
                self._guarded(self._start_ready)
            following, self._following, self._free = self._following, None, None

    def _failed(
        self, call: EndpointCall, started: float, error: BaseException, report: RequestReport, *, in_time: bool
    ) -> None:
        judgement = self._bounded(judge(error, self.rules.retry_filter), error)
        if not in_time:  # it may have been billed
            judgement = judgement._replace(retries=False, verdict=Verdict.NOTHING)
        report.add_headers_of(error)
        self._finish(call, started, judgement, report, error)
        if not self._sends_again(call, error, judgement):
            self._fail(call, error, has_waited=judgement.waits and not self.rules.has_fallback)

    def _bounded(self, judgement: Judgement, error: BaseException) -> Judgement:
        if judgement.retries:
            self._log.note_delay(self._loop.time(), judgement.delay_secs, self.rules.max_retry_after_secs, error)
        return judgement.within(self.rules.max_retry_after_secs)

    def _fail(self, call: EndpointCall, error: BaseException, *, has_waited: bool) -> None:
        """Delivers an error; if no request would succeed, it is that of all the bundle's calls.

        An EndpointError of the handler's own is that of all at any time: it knows its endpoint.
        """
        rules, refusal = self.rules, error if isinstance(error, EndpointError) else None
        may_be_of_all = rules.max_concurrent is None and not self._record.has_answered
        if refusal is None and may_be_of_all:
            name, waited_secs = rules.caller.partition(".")[0], rules.patience_secs if has_waited else None
            is_caught = isinstance(error, rules.caught)
            refusal = self._record.error_of_all(error, call.content, name, waited_secs=waited_secs, is_caught=is_caught)
        self._deliver(call, refusal or call.cost_error or error)
        if refusal is not None:
            call.inbox.refusal = call.inbox.refusal or refusal
            for one in self._waiting.remove_all(lambda one: one.inbox is call.inbox):
                self._deliver(one, refusal)

    def _finish(
        self, call: EndpointCall, started: float, judgement: Judgement, report: RequestReport, error: Any = None
    ) -> None:
        self._tasks.pop(call, None)
        self._last_error = error
        now = self._loop.time()
        verdict, size, tokens = judgement.verdict, len(call.batch.elements), report.tokens
        has_failed, secs = call.failures > 0, judgement.delay_secs
        self._limit.finished(now, started, verdict, retry_after=secs, size=size, tokens=tokens, has_failed=has_failed)
        if report.allowances:
            self._limit.observe_headers(now, report.allowances)

    def _answered(self, call: EndpointCall, started: float, predictions: list[Any], report: RequestReport) -> None:
        """Delivers predictions; sends again what the handler says is to be requested again."""
        seconds = self._loop.time() - started
        if ElementRetry not in map(type, predictions):
            self._finish(call, started, _ANSWERED, report)
            self._record.has_answered = True
            if self._tokens.spent:
                self._tokens.succeeded(call.paid)
            if self.rules.tokens_per_minute is not None and not report.tokens:
                self._log.miss_tokens(predictions)
            call.predictions, call.seconds = predictions, seconds
            self._deliver(call)
            return
        again = [place for place, one in enumerate(predictions) if type(one) is ElementRetry]
        answers: list[ElementRetry] = [predictions[place] for place in again]
        judged = [self._bounded(replies.judge_element(one), one.error) for one in answers]
        worst = max(judged, key=lambda one: (one.waits, one.delay_secs))
        error = answers[0].error
        is_part = not self.rules.prebatched and len(again) < len(predictions)
        works = worst.verdict in (Verdict.NOTHING, Verdict.DECLINED) or (is_part and worst.verdict is Verdict.FAILED)
        self._finish(call, started, worst._replace(verdict=Verdict.ANSWERED) if works else worst, report, error)
        if is_part:
            kept = sorted(set(range(len(predictions))) - set(again))
            answered = call.part(kept)
            call.keep(again)
            self._calls.add(answered)
            answered.predictions, answered.seconds = [predictions[place] for place in kept], seconds
            self._deliver(answered)
        if not self._sends_again(call, error, worst):
            self._deliver(call, call.cost_error or error)

    def _sends_again(self, call: EndpointCall, error: BaseException, judgement: Judgement) -> bool:
        now = self._loop.time()
        if not judgement.retries or call.inbox.abandoned or self._patience(now) <= 0:
            return False
        if self._limit.is_down and self.rules.num_retries:  # 0: nothing that may have been billed is sent again
            judgement = judgement.while_down()
        if math.isinf(call.deadline):
            call.deadline = now + self.rules.patience_secs
        if judgement.verdict is Verdict.REFUSED and not call.is_refused:
            began, call.is_refused = self._limit.outage_began or now, True
            call.deadline = max(call.deadline, began + self.rules.longest_wait(is_refused=True))
        if judgement.delay_secs and not self.rules.has_fallback:  # it is no request's fault, sent or not
            call.deadline += judgement.delay_secs
            if self._named_until < (self._limit.outage_began or now):
                self._named_until = now + judgement.delay_secs
        if judgement.waits:
            call.refusals += 1
            others_ask = judgement.verdict is Verdict.REFUSED and self._record.has_answered
            longest = judgement.delay_secs or (_REFUSED_SECS if others_ask else _UNAVAILABLE_SECS)
            pause = pause_before_retry(call.refusals, first=0.1, longest=longest)
        else:
            call.failures += 1
            if call.failures > self.rules.num_retries or not (paid := self._tokens.take(error)):
                return False
            call.paid += paid
            pause = pause_before_retry(call.failures)
        pause = judgement.delay_secs + pause
        if now + pause > call.deadline or call.is_too_dear(error):
            return False
        call.count_retry(error)
        self._paused.add(call)
        self._first = call if judgement.verdict is not Verdict.FAILED and self.rules.max_concurrent is None else None
        self._loop.call_later(pause, self._guarded, partial(self._enqueue_again, call))
        return True

    def _deliver(self, call: EndpointCall, error: BaseException | None = None) -> None:
        if call not in self._calls:
            return  # it has its outcome
        call.error = error
        call.client = None  # an error refers to the call, and whoever keeps it would keep the client
        self._deliveries.add(partial(call.inbox.put, call), has_time=len(self._waiting) > self._limit.in_flight)
        self._calls.discard(call)

    def _give_up_on(self, which: Callable[[EndpointCall], bool]) -> None:
        for call in self._waiting.remove_all(which):
            error = copy_of(self._last_error or TimeoutError(f"{self.rules.caller}: no answer."))
            self._fail(call, error, has_waited=not self.rules.has_fallback)

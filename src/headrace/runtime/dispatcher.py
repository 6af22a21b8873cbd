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
from headrace.failures.replies import EndpointLog, EndpointRecord, Judgement, judge
from headrace.failures.retry import RetryTokens
from headrace.runtime.endpoint_calls import EndpointCall, Rules, Sender, WaitingCalls
from headrace.runtime.observers import sample_also

_WAITING = 8
"""How many batches of a bundle may wait, besides one for each request in flight."""
_REFUSED_SECS, _UNAVAILABLE_SECS = 20.0, 1.0
"""The longest pause of a single request that an endpoint refuses, or cannot take; before, it doubles from 0.1 s."""
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

    def __init__(self, event_loop: EventLoop, rules: Rules, board: Board | None, record: EndpointRecord) -> None:
        self._event_loop = event_loop
        self._loop = event_loop.loop
        self.rules = rules
        self._limit = sample_also(rules.new_limit(self._loop.time(), board))
        self._record = record
        self._log = EndpointLog(rules.caller)
        self._tokens = RetryTokens()
        self._sender = Sender(event_loop, rules)
        self._deliveries = Gathering(self._loop)
        self._alarm = Alarm(self._loop, partial(self._guarded, self._start_ready))
        self._submitted: deque[EndpointCall] = deque()
        self._needs_wakeup = True
        """Whether the next submit must wake the loop: it would leave at once."""
        self._calls: dict[EndpointCall, asyncio.Task[None] | asyncio.TimerHandle | None] = {}
        """All that are admitted and not over: with the task that does it, or the timer of its pause, of any class."""
        self._waiting = WaitingCalls(for_engine=rules.max_concurrent is not None)
        self._first: EndpointCall | None = None
        """What was refused last: until the endpoint has answered anything, others wait while it pauses."""
        self._following: EndpointCall | None = None
        """What a task whose call is over goes on with."""
        self.room = 2 * self._limit.limit + _WAITING
        """How many batches a bundle may have here at a time."""
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
                self._calls[self._submitted.popleft()] = None
            self._waiting.remove_all()
            self._end_lost(error)

    def _end_lost(self, error: BaseException) -> None:
        """Ends the requests that nothing else would end any more, since a step was left in its middle."""
        in_flight = sum(isinstance(at, asyncio.Task) for at in self._calls.values())
        self._limit.in_flight = min(self._limit.in_flight, in_flight)
        waiting = set(self._waiting)
        for call in [call for call, at in self._calls.items() if at is None and call not in waiting]:
            self._deliver(call, copy_of(error))

    def _drop(self) -> None:
        self._admit()
        self._waiting.remove_all(lambda call: call.inbox.abandoned)
        for call in [call for call in self._calls if call.inbox.abandoned]:
            if isinstance(self._calls[call], asyncio.Task):
                self._loop.call_soon(self._cancel, call)  # a task that has not begun would never end its request
            else:
                del self._calls[call]
        self._start_ready()

    def _cancel(self, call: EndpointCall) -> None:
        task = self._calls.get(call)
        if isinstance(task, asyncio.Task):  # else its task may perform another one by now
            task.cancel()

    def _admit(self) -> None:
        now = self._loop.time()
        while self._submitted:
            call = self._submitted.popleft()
            self._calls[call] = None
            if call.inbox.refusal is not None:
                self._deliver(call, call.inbox.refusal)
                continue
            call.queued = now
            self._waiting.append(call)

    def _enqueue_again(self, call: EndpointCall) -> None:
        if call in self._calls:  # else it was abandoned
            self._calls[call] = None
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
        first = None if self._record.has_answered else self._first
        awaited = first if first is not None and not isinstance(self._calls.get(first), asyncio.Task | None) else None
        ready = len(self._waiting) if awaited is None else 0
        left, wait = self._limit.take(now, ready)
        for _ in range(left):
            call = self._waiting.take(newest=began is not None and self._limit.is_down)
            call.started = now
            self._calls[call] = self._task_for(call)
        if began is not None and self._waiting and self._patience(now) <= 0:
            self._give_up_on(lambda _: True)
        again = math.inf if left == ready else wait if began is None else min(wait, self._patience(now))
        if self._limit.board.is_shared and self._calls:
            again = min(again, _SHOWN_SECS)
        if again < math.inf:
            self._alarm.set(again)
        self._needs_wakeup = not self._waiting
        self.room = 2 * self._limit.limit + _WAITING
        is_throttled = self._limit.is_throttled or (awaited is not None and awaited.refusals > 0)
        if is_throttled != (self._throttled[1] is not None):
            self._throttled = self.throttled_secs(), now if is_throttled else None

    def _note_outage(self, now: float, began: float | None) -> None:
        """Tells of an outage, and gives up on what has waited for too long for an endpoint that answers nothing."""
        self._log.note(is_down=self._limit.is_down)
        if began is not None:
            is_quota, patience = not (self._limit.is_down or self._log.asks_too_much), self.rules.patience_secs
            ends = max(began, self._log.named_until) + self.rules.longest_wait(is_refused=is_quota)
            self._give_up_on(lambda one: now > min(one.deadline, max(one.queued + patience, ends)))

    def _patience(self, now: float) -> float:
        """Seconds until what waits is left to a fallback. A quota may be free again soon, an outage is one at once."""
        began = self._limit.outage_began
        if began is None or not self.rules.has_fallback:
            return math.inf
        return 0.0 if self._limit.is_down else began + self.rules.patience_secs - now

    def _task_for(self, call: EndpointCall) -> asyncio.Task[None]:
        """The task that performs a call: the current one, whose last call is over, or a new one."""
        task = asyncio.current_task(self._loop)
        if task is None or self._following is not None:
            return self._loop.create_task(self._perform(call))
        self._following = call
        return task

    async def _perform(self, call: EndpointCall) -> None:
        """Performs a call, and then others, each at once: so a client finds the connection of the last one free."""
        following: EndpointCall | None = call
        while following is not None:
            call = following
            try:
                ended, in_time = await in_context(call.context.copy(), self._sender.try_in_time(call))
                if ended.error is None:
                    self._answered(call, ended.result)
                else:
                    self._failed(call, ended.error, in_time=in_time)
            except BaseException as error:  # it was cancelled, or Headrace itself raises: nothing else ends the request
                if isinstance(self._calls.get(call), asyncio.Task):
                    self._calls[call] = None
                    self._guarded(partial(self._finish, call, _UNKNOWN))
                self._end_lost(error)
                if not self._loop.is_closed():
                    self._loop.call_soon(self._guarded, self._start_ready)
                return
            self._guarded(self._start_ready)
            following, self._following = self._following, None

    def _failed(self, call: EndpointCall, error: BaseException, *, in_time: bool) -> None:
        judgement = self._bounded(judge(error, self.rules.retry_filter), error)
        if not in_time:  # it may have been billed
            judgement = judgement._replace(retries=False, verdict=Verdict.NOTHING)
        call.report.add_headers_of(error)
        self._finish(call, judgement, error)
        if (failure := self._retry(call, error, judgement)) is not None:
            self._fail(call, failure, has_waited=judgement.waits)

    def _bounded(self, judgement: Judgement, error: BaseException) -> Judgement:
        if judgement.retries:
            self._log.note_delay(self._loop.time(), judgement.delay_secs, self.rules.max_retry_after_secs, error)
        return judgement.within(self.rules.max_retry_after_secs)

    def _fail(self, call: EndpointCall, error: BaseException, *, has_waited: bool) -> None:
        """Delivers an error; if no request would succeed, it is that of all the bundle's calls.

        An EndpointError of the handler's own is that of all at any time: it knows its endpoint.
        """
        rules, refusal = self.rules, error if isinstance(error, EndpointError) else None
        if refusal is None and rules.max_concurrent is None:
            waited_secs = rules.patience_secs if has_waited and not rules.has_fallback else None
            name, is_caught = rules.caller.partition(".")[0], isinstance(error, rules.caught)
            refusal = self._record.error_of_all(error, call.content, name, waited_secs=waited_secs, is_caught=is_caught)
        self._deliver(call, refusal or error)
        if refusal is not None:
            call.inbox.refusal = call.inbox.refusal or refusal
            for one in self._waiting.remove_all(lambda one: one.inbox is call.inbox):
                self._deliver(one, refusal)

    def _finish(self, call: EndpointCall, judgement: Judgement, error: BaseException | None = None) -> None:
        self._calls[call] = None
        self._log.last_error = error
        now = self._loop.time()
        call.seconds = now - call.started
        self._limit.finished(
            now,
            call.started,
            judgement.verdict,
            retry_after=judgement.delay_secs,
            size=len(call.batch.elements),
            tokens=call.report.tokens,
            has_failed=call.failures > 0,
            allowed=call.report.allowances,
        )

    def _answered(self, call: EndpointCall, predictions: list[Any]) -> None:
        """Delivers predictions; sends again what the handler says is to be requested again."""
        if ElementRetry not in map(type, predictions):
            self._finish(call, _ANSWERED)
            self._record.has_answered = True
            if self._tokens.spent:
                self._tokens.succeeded(call.paid)
            if self.rules.tokens_per_minute is not None and not call.report.tokens:
                self._log.miss_tokens(predictions)
            call.predictions = predictions
            self._deliver(call)
            return
        again = [place for place, one in enumerate(predictions) if type(one) is ElementRetry]
        answers: list[ElementRetry] = [predictions[place] for place in again]
        judged = [self._bounded(replies.judge_element(one), one.error) for one in answers]
        worst = max(judged, key=lambda one: (one.waits, one.delay_secs))
        error = answers[0].error
        is_part = not self.rules.prebatched and len(again) < len(predictions)
        works = worst.verdict in (Verdict.NOTHING, Verdict.DECLINED) or (is_part and worst.verdict is Verdict.FAILED)
        self._finish(call, worst._replace(verdict=Verdict.ANSWERED) if works else worst, error)
        if is_part:
            kept = sorted(set(range(len(predictions))) - set(again))
            answered = call.part(kept)
            call.keep(again)
            self._calls[answered] = None
            answered.predictions = [predictions[place] for place in kept]
            self._deliver(answered)
        if (failure := self._retry(call, error, worst)) is not None:
            self._deliver(call, failure)

    def _retry(self, call: EndpointCall, error: BaseException, judgement: Judgement) -> BaseException | None:
        """Sends a call again after an error, and a pause; or returns the error that it fails with."""
        now = self._loop.time()
        if not judgement.retries or call.inbox.abandoned or self._patience(now) <= 0:
            return error
        if self._limit.is_down and self.rules.num_retries:  # 0: nothing that may have been billed is sent again
            judgement = judgement.while_down()
        self._set_deadline(call, judgement, now)
        if judgement.waits:
            call.refusals += 1
            others_ask = judgement.verdict is Verdict.REFUSED and self._record.has_answered
            longest = judgement.delay_secs or (_REFUSED_SECS if others_ask else _UNAVAILABLE_SECS)
            pause = pause_before_retry(call.refusals, first=0.1, longest=longest)
        else:
            call.failures += 1
            if call.failures > self.rules.num_retries or not (paid := self._tokens.take(error)):
                return error
            call.paid += paid
            pause = pause_before_retry(call.failures)
        pause = judgement.delay_secs + pause
        if now + pause > call.deadline:
            return error
        if call.row_cost is not None and (too_dear := call.row_cost.error(error)) is not None:
            return too_dear
        call.tries += 1
        call.retried.append(error)
        self._first = call if judgement.verdict is not Verdict.FAILED and self.rules.max_concurrent is None else None
        self._calls[call] = self._loop.call_later(pause, self._guarded, partial(self._enqueue_again, call))
        return None

    def _set_deadline(self, call: EndpointCall, judgement: Judgement, now: float) -> None:
        began = self._limit.outage_began or now
        if math.isinf(call.deadline):
            call.deadline = now + self.rules.patience_secs
        if judgement.verdict is Verdict.REFUSED and not call.is_refused:
            call.is_refused = True
            call.deadline = max(call.deadline, began + self.rules.longest_wait(is_refused=True))
        if judgement.delay_secs and not self.rules.has_fallback:  # it is no request's fault, sent or not
            call.deadline += judgement.delay_secs
            if self._log.named_until < began:
                self._log.named_until = now + judgement.delay_secs

    def _deliver(self, call: EndpointCall, error: BaseException | None = None) -> None:
        if call not in self._calls:
            return  # it has its outcome
        call.error = error
        call.client = None  # an error refers to the call, and whoever keeps it would keep the client
        self._deliveries.add(partial(call.inbox.put, call), has_time=len(self._waiting) > self._limit.in_flight)
        del self._calls[call]

    def _give_up_on(self, which: Callable[[EndpointCall], bool]) -> None:
        for call in self._waiting.remove_all(which):
            error = copy_of(self._log.last_error or TimeoutError(f"{self.rules.caller}: no answer."))
            self._fail(call, error, has_waited=True)

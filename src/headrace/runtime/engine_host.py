"""An engine's side of its host: loads it, and has it answer the requests that come, side by side."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headrace.core.engine import EngineModelHandler, predict_each
from headrace.core.events import UsageReported
from headrace.core.remote import ElementFailure, ElementRetry
from headrace.core.request_context import request_context
from headrace.core.result import Caught
from headrace.failures.device import device_loss, one_line
from headrace.hosts.stream import Content
from headrace.ipc.channel import Channel
from headrace.ipc.codec import Decoded, RequestColumns, decode, encode
from headrace.ipc.exceptions import stand_ins
from headrace.ipc.progress import Activity, Progress
from headrace.runtime.engine_turns import EVERYBODY, EngineTurns
from headrace.runtime.event_loop import Ended, close_loop, ended_in_time, open_loop
from headrace.runtime.messages import EngineAnswer, EngineLost
from headrace.runtime.request_handler import why_unsendable
from headrace.runtime.spec import SessionSpec
from headrace.runtime.worker import Worker

LOADING = EVERYBODY
"""The number of the first answer, which nobody has asked for: what became of loading the engine."""
_BEATS_PER_LIMIT, _LONGEST_BEAT_SECS = 20, 1.0
"""How often the event loop shows within the time limit that it turns, and at least how often."""


class EngineRequestHandler:
    """Holds an engine and gives it requests; pickled to the host, where it is a ``StreamHandler``.

    Args:
        spec: of the session.
        name: of the model.
    """

    def __init__(self, spec: SessionSpec, name: Any) -> None:
        self._spec = replace(spec.for_host(), cache=None)
        self._name = name

    def serve_stream(self, channel: Channel, progress: Progress) -> None:
        """Loads the engine and serves the owner until it has closed its connection."""
        progress.begin(LOADING)
        progress.mark(Activity.LOADING)
        answers = EngineAnswers(channel.send_content)
        try:
            worker = Worker(self._spec)
            held = worker.borrow(self._name)
        except Exception as error:
            answers.failed(LOADING, error)
            return
        engine = RunningEngine(worker.plan.models[self._name], held.model.model, progress, self._spec.timeout_secs)
        try:
            answers.send(LOADING, EngineAnswer(events=list(worker.session.events)))
            EngineClient(engine, answers).serve(channel)
        finally:
            engine.close()
            del engine
            held.release()
            worker.close()
            del held
            gc.collect()  # so that finalizers run


class EngineAnswers:
    """Sends answers to a client, from any thread.

    Args:
        send: sends a message with a number.
    """

    def __init__(self, send: Callable[[int, Content], object]) -> None:
        self._send = send

    def send(
        self, number: int, answer: EngineAnswer, rows: Sequence[Any] = (), columns: RequestColumns | None = None
    ) -> None:
        """Sends an answer; where its rows cannot be pickled, that instead."""
        errors = [] if answer.caught is None else [answer.caught.error]
        errors += [row.error for row in rows if type(row) in (ElementFailure, ElementRetry)]
        answer = answer._replace(lost=answer.lost or next(filter(None, map(_lost_device, errors)), None))
        try:
            message = encode(answer, rows, known=columns, reducers=stand_ins(errors))
        except Exception as error:
            problem = next(filter(None, map(why_unsendable, rows)), None) or Caught.of(error)
            answer = answer._replace(caught=problem, lost=_lost_device(error))
            message = encode(answer, [], reducers=stand_ins([problem.error]))
        with contextlib.suppress(OSError):  # the client has left
            self._send(number, message.content())

    def failed(self, number: int, error: BaseException, used: Sequence[UsageReported] = ()) -> None:
        """Says what was raised."""
        self.send(number, EngineAnswer(Caught.of(error), used=used))


class RunningEngine:
    """An engine that takes requests, of one client or of several, on the thread of the process's event loop.

    Args:
        handler: gives it requests.
        model: the engine.
        progress: where the event loop shows that it turns.
        timeout_secs: the longest that a request may take; None: no limit.
    """

    def __init__(
        self, handler: EngineModelHandler[Any, Any, Any], model: Any, progress: Progress, timeout_secs: float | None
    ) -> None:
        self._handler = handler
        self._model = model
        self._progress = progress
        self._timeout_secs = timeout_secs
        self._beat_secs = min(_LONGEST_BEAT_SECS, (timeout_secs or _BEATS_PER_LIMIT) / _BEATS_PER_LIMIT)
        self._succeeded = 0
        """How many requests have."""
        self._succeeded_at = -math.inf
        """When the last one has."""
        self._in_flight = 0
        self._hangs = False
        """Whether a request was late because the engine answers nothing."""
        self.turns = EngineTurns(handler.max_concurrent, progress.begin)
        self.event_loop = open_loop()
        self.event_loop.call(self._beat)

    def close(self) -> None:
        """Cancels all requests."""
        close_loop()

    def _beat(self) -> None:
        self._progress.mark(Activity.INFERENCE)
        self.event_loop.loop.call_later(self._beat_secs, self._beat)

    async def answer(self, request: Decoded, used: list[UsageReported]) -> tuple[EngineAnswer, Sequence[Any]]:
        """The engine's answer to a request, and its predictions; ``used`` gets what is reported meanwhile."""
        succeeded = self._succeeded
        self._in_flight += 1
        try:
            ended = await ended_in_time(self._submit(request), self._timeout_secs)
            if ended is None:
                self._hangs |= succeeded == self._succeeded or self._is_silent()
                return self._too_late(used), ()
        finally:
            self._in_flight -= 1
        if ended.error is not None:
            return EngineAnswer(Caught.of(ended.error), used=used), ()
        self._succeeded += 1
        self._succeeded_at = self.event_loop.loop.time()
        return EngineAnswer(used=used), ended.result

    def _is_silent(self) -> bool:
        """Whether nothing has ended lately although more than the request that is late is in flight."""
        lately = self.event_loop.loop.time() - (self._timeout_secs or 0.0) / 2
        return self._in_flight > 1 and self._succeeded_at < lately

    async def _submit(self, request: Decoded) -> Ended:
        """Not an exception: a task that raises SystemExit ends its loop."""
        try:
            return Ended(await predict_each(self._handler, request.rows, self._model, request.head.inference_args))
        except BaseException as error:
            return Ended(error=error)

    def _too_late(self, used: list[UsageReported]) -> EngineAnswer:
        """What to say of a request that took too long, by itself or because the engine hangs."""
        secs = f"{self._timeout_secs:g} s"
        error = TimeoutError(f"{type(self._handler).__qualname__}.submit took longer than {secs}.")
        vars(error)["retryable"] = False  # the next try would cost the same time
        lost = EngineLost(f"was killed, since its engine answers nothing: a request took longer than {secs}", True)
        return EngineAnswer(Caught.of(error), lost if self._hangs else None, used)


class EngineClient:
    """The requests of one client. All but ``serve`` happens on the event loop's thread.

    Args:
        engine: answers them.
        answers: to the client.
    """

    def __init__(self, engine: RunningEngine, answers: EngineAnswers) -> None:
        self._engine = engine
        self._answers = answers
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._number = 0
        """The client's, once it has asked to have the engine alone."""

    def serve(self, channel: Channel) -> None:
        """Takes requests from the client until it leaves; then the engine drops those that it has."""
        while True:
            try:
                (number, content), _ = channel.receive()
            except (EOFError, OSError):
                self._engine.event_loop.call(self._leave)
                return
            try:
                request = decode(content, own=True)
            except Exception as error:
                self._answers.failed(number, error)
                continue
            handle = self._take_back if request.head.is_taken_back else self._start
            self._engine.event_loop.call(handle, number, request)

    def _start(self, number: int, request: Decoded) -> None:
        used: list[UsageReported] = []
        context = request_context(used.append)
        self._number = request.head.alone or self._number
        work = self._have_alone(number) if request.head.alone else self._answer(number, request, used)
        self._tasks[number] = context.run(self._engine.event_loop.loop.create_task, work)

    def _take_back(self, number: int, _: Decoded) -> None:
        """Has the engine drop a request; the client hears of it, in case it waits for that, too."""
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()
            self._answers.send(number, EngineAnswer())

    def _leave(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def _have_alone(self, number: int) -> None:
        """Says when the client has the engine, and keeps it until that is taken back, or the client is idle."""
        async with self._engine.turns.alone(self._number):
            self._answers.send(number, EngineAnswer())
            await self._engine.turns.idle()
        del self._tasks[number]

    async def _answer(self, number: int, request: Decoded, used: list[UsageReported]) -> None:
        async with self._engine.turns.place(self._number):
            answer, predictions = await self._engine.answer(request, used)
        del self._tasks[number]
        self._answers.send(number, answer, predictions, request.columns)


def _lost_device(error: BaseException) -> EngineLost | None:
    culprit = device_loss(error)
    return None if culprit is None else EngineLost(f"lost its device ({one_line(culprit)})", timed_out=False)

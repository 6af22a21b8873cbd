"""An engine's side of its host: loads it, and has it answer the requests of all clients, side by side."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from headrace.core.engine import EngineModelHandler, predict_each
from headrace.core.event_loop import Ended, close_loop, ended_in_time, open_loop
from headrace.core.events import UsageReported
from headrace.core.model_cache import Slot
from headrace.core.remote import ElementFailure, ElementRetry
from headrace.core.request_context import request_context
from headrace.core.result import Caught
from headrace.failures.device import device_loss
from headrace.hosts.client import client_of, first_call_of
from headrace.hosts.host import Response, Send
from headrace.hosts.provider import HostFailure
from headrace.ipc.codec import Columns, Decoded, decode, encode
from headrace.ipc.exceptions import stand_ins
from headrace.ipc.progress import Activity, Progress
from headrace.runtime.messages import Done, EngineAnswer, EngineRequest, Raised, Work
from headrace.runtime.request_handler import BatchRequestHandler, device_failure, why_unsendable
from headrace.runtime.spec import SessionSpec

_BEATS_PER_LIMIT, _LONGEST_BEAT_SECS = 20, 1.0
"""How often the event loop shows within the time limit that it turns, and at least how often."""
ALL_CLIENTS = 0
"""Stands for all clients; no single client has this number."""
NOT_MAPPED = "it is an engine, which takes the requests of all processes itself"
"""Why the weights of a shared engine are not in shared memory."""


class EngineRequestHandler(BatchRequestHandler):
    """Loads an engine in turn, as any model, and then gives it the requests of all clients.

    Args:
        spec: of the session.
        name: of the model.
    """

    def __init__(self, spec: SessionSpec, name: Any) -> None:
        super().__init__(replace(spec, cache=None))
        self._name = name
        self._slot: Slot | None = None
        self._engine: RunningEngine | None = None

    def answer(self, head: Work, rows: list[Any], progress: Progress) -> Response:
        """Loads the engine, unless it is."""
        if self._engine is not None:
            return Response(Done((), [], [], []))
        response = super().answer(head, rows, progress)
        if isinstance(response.head, Done):
            assert self._worker is not None
            self._slot = self._worker.access.borrow(self._name)
            handler, engine = self._worker.plan.models[self._name], self._slot.model.model
            self._engine = RunningEngine(handler, engine, progress, self._spec.timeout_secs)
            self.is_side_by_side = True
        return response

    def begin(self, number: int, content: memoryview, progress: Progress, send: Send) -> bool:
        """Gives the engine a request, and loads it first in a host that replaced the one where it was."""
        try:
            request = decode(content, own=True)
        except Exception as error:
            _respond(number, send, EngineAnswer(Caught.of(error)), progress)
            return True
        if not isinstance(request.head, EngineRequest):
            return False
        loaded = self.answer(Work(self._name), [], progress).head
        if self._engine is not None:
            self._engine.event_loop.call(self._engine.take, number, request, send)
        else:
            raised = isinstance(loaded, Raised)
            answer = EngineAnswer(Caught.of(loaded.caught.error)) if raised else EngineAnswer(lost=loaded)
            _respond(number, send, answer, progress)
        return True

    def leave(self, number: int) -> None:
        """Has the engine drop the requests of the client that made this call."""
        if self._engine is not None:
            self._engine.event_loop.call(self._engine.leave, client_of(number))

    def close(self) -> None:
        """Ends the engine."""
        if self._engine is not None and self._slot is not None:
            close_loop()
            self._slot.release()
            self._engine = self._slot = None
        super().close()


class RunningEngine:
    """An engine that takes requests. All but making it happens on the thread of the process's event loop.

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
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """By number of the call."""
        self._succeeded = 0
        """How many requests have."""
        self._succeeded_at = -math.inf
        """When the last one has."""
        self._in_flight = 0
        self._hangs = False
        """Whether a request was late because the engine answers nothing."""
        self._is_lost = False
        """Whether a client has been told that the host is of no more use."""
        self._room = EngineRoom(handler.max_concurrent, self._note)
        self._note(ALL_CLIENTS)
        self.event_loop = open_loop()
        self.event_loop.call(self._beat)

    def _note(self, client: int) -> None:
        """Shows whose requests the engine has, as if they were its first call; those that it is lost to, to the end."""
        if not self._is_lost:  # the next client is not to blame for this loss
            self._progress.begin(first_call_of(client))

    def _beat(self) -> None:
        self._progress.mark(Activity.INFERENCE)
        self.event_loop.loop.call_later(self._beat_secs, self._beat)

    def take(self, number: int, request: Decoded, send: Send) -> None:
        """Does what a request asks for; ``send`` gets the answer."""
        if request.head.is_taken_back:
            task = self._tasks.pop(number, None)
            if task is not None:  # the client hears of it, in case it waits for that, too
                task.cancel()
                _respond(number, send, EngineAnswer(), self._progress)
            return
        used: list[UsageReported] = []
        context = request_context(used.append)
        self._tasks[number] = context.run(self.event_loop.loop.create_task, self._answer(number, request, used, send))

    def leave(self, client: int) -> None:
        """Drops a client's requests."""
        for number in [one for one in self._tasks if client_of(one) == client]:
            self._tasks.pop(number).cancel()

    async def _answer(self, number: int, request: Decoded, used: list[UsageReported], send: Send) -> None:
        async with self._room.place(client_of(number) if request.head.is_alone else ALL_CLIENTS):
            try:
                if request.head.is_alone:
                    request = decode(memoryview(request.rows[0]), own=True)
                answer, predictions = await self._predicted(request, used)
            except Exception as error:
                answer, predictions = EngineAnswer(Caught.of(error)), ()
            del self._tasks[number]
            self._is_lost |= _respond(number, send, answer, self._progress, predictions, columns=request.columns)

    async def _predicted(self, request: Decoded, used: list[UsageReported]) -> tuple[EngineAnswer, Sequence[Any]]:
        """The engine's answer to a request, and its predictions; ``used`` gets what is reported meanwhile."""
        succeeded = self._succeeded
        self._in_flight += 1
        try:
            ended = await ended_in_time(lambda: self._submit(request), self._timeout_secs)
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
        if not self._hangs:
            return EngineAnswer(Caught.of(error), used=used)
        why = f"was killed, since its engine answers nothing: a request took longer than {secs}"
        return EngineAnswer(Caught.of(error), HostFailure(self._progress.read(), True, why), used)


class EngineRoom:
    """Room for as many requests as an engine takes; a client that asks for that has none of others beside its own.

    For the event loop's thread.

    Args:
        limit: how many requests of all clients the engine is given at a time.
        note: takes the owner of the engine's requests from now on: a client's number, or ``ALL_CLIENTS``.
    """

    def __init__(self, limit: int, note: Callable[[int], object]) -> None:
        self._limit = limit
        self._note = note
        self._line = asyncio.Lock()
        self._left = asyncio.Event()
        self._inside = 0
        self._owner = ALL_CLIENTS

    @asynccontextmanager
    async def place(self, owner: int) -> AsyncIterator[None]:
        """A place for one request, once there is one: of a client that is to be alone, or of ``ALL_CLIENTS``."""
        if owner != self._owner or owner == ALL_CLIENTS:  # else the engine is its own already
            async with self._line:
                while self._inside and (owner != self._owner or self._inside >= self._limit):
                    self._left.clear()
                    await self._left.wait()
                self._take(owner)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._left.set()
            if not self._inside:
                self._take(ALL_CLIENTS)

    def _take(self, owner: int) -> None:
        if owner != self._owner:
            self._owner = owner
            self._note(owner)


def _respond(
    number: int,
    send: Send,
    answer: EngineAnswer,
    progress: Progress,
    rows: Sequence[Any] = (),
    *,
    columns: Columns | None = None,
) -> bool:
    """Sends an answer; where its rows cannot be pickled, that instead. Returns whether it says that the host is lost.

    Call it before others get the engine, so that the progress page says whose it was.
    """
    errors = [] if answer.caught is None else [answer.caught.error]
    errors += [row.error for row in rows if type(row) in (ElementFailure, ElementRetry)]
    answer = answer._replace(lost=answer.lost or _lost_device(errors, progress))
    try:
        message = encode(answer, rows, known=columns, reducers=stand_ins(errors))
    except Exception as error:
        problem = next(filter(None, map(why_unsendable, rows)), None) or Caught.of(error)
        answer = answer._replace(caught=problem, lost=_lost_device([error], progress))
        message = encode(answer, [], reducers=stand_ins([problem.error]))
    send(number, message.content())
    return answer.lost is not None


def _lost_device(errors: Iterable[BaseException], progress: Progress) -> HostFailure | None:
    culprit = next(filter(None, map(device_loss, errors)), None)
    return None if culprit is None else device_failure(culprit, progress)

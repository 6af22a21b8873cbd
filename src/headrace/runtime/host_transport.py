"""Sends requests to a host that answers them side by side, and tries again those whose host was lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from headrace.core.errors import copy_of
from headrace.core.events import Event, UsageReported
from headrace.core.request_context import report_used
from headrace.core.result import Caught
from headrace.failures.search import FailureSearch, InjectedFailure, LostBatch
from headrace.hosts.client import ModelHosts, client_of
from headrace.hosts.connection import Call, HostConnection
from headrace.hosts.provider import Exclusive, HostFailure, Withdrawal
from headrace.hosts.system import reset_in_forks
from headrace.ipc.codec import Message, encode
from headrace.ipc.serialization import with_traceback_of
from headrace.runtime.hosted_models import HostedModels
from headrace.runtime.request_handler import Done, EngineRequest, Raised, Unreadable
from headrace.runtime.spec import SessionSpec


class _Request(Call):
    """A request, and where its answer is awaited."""

    def __init__(self, number: int, message: Message, accept: Callable[[_Request], None]) -> None:
        super().__init__(number, message, accept)
        self._is_exclusive = False
        self.answer: Future[tuple[Done | Raised | Unreadable, list[Any]]] = Future()

    def make_exclusive(self) -> None:
        """From now on it is to be answered with none of other clients' requests beside it, and read only then."""
        if not self._is_exclusive:
            columns, content = self.message.columns, b"".join(self.message.content())
            self.message, self._is_exclusive = encode(Exclusive(), [content]), True
            self.message.columns = columns  # of the request inside, whose objects the answer may refer to


class HostTransport:
    """Sends requests to a host, and to those that replace it; thread-safe.

    ::

        submit -> (with the host) -> answered
                        | host lost, not while it was another process's alone
                  tried again, alone: all, halves, one by one -> answered, or failed
                  (what is submitted meanwhile waits)

    Args:
        spec: of the session.
        name: of the model.
        hosts: starts hosts, or gives access to those that processes share; they answer side by side.
        report: receives events of loads, and of hosts that were lost.
    """

    def __init__(
        self, spec: SessionSpec, name: Any, hosts: ModelHosts, report: Callable[[Iterable[Event]], None]
    ) -> None:
        self._model = name
        self._label = spec.plan.label(name)
        self._caught = spec.caught
        self._is_shared = name in spec.shared
        self._hosts = hosts
        self._models = HostedModels(spec, hosts, report)
        self._report = report
        self.after_fork()
        reset_in_forks(self)

    def after_fork(self) -> None:
        """Starts afresh: in a forked child the host and the requests are the parent's."""
        self._connection: HostConnection | None = None
        self._changed = threading.Condition()
        self._calls: dict[int, _Request] = {}
        """What is not answered, by number."""
        self._sends = False  # whether what comes goes to the host at once; else it waits
        self.is_down = False
        """Whether the host was lost, and what comes waits for the next one."""
        self.is_broken = False
        """Whether the engine could not be loaded when it was tried last."""
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def load(self) -> None:
        """Loads the engine in a host; raises why it cannot."""
        try:
            self._report(self._models.load(self._model))
            self._connection = self._hosts.connection(0)
        except BaseException:
            self.is_down = self.is_broken = True
            raise
        self.is_broken = False

    @property
    def in_flight(self) -> int:
        """How many of this process's requests are not answered."""
        return len(self._calls)

    async def predict(self, examples: Iterable[Any], inference_args: dict[str, Any] | None) -> list[Any]:
        """The engine's predictions; what it reports meanwhile is reported here.

        Raises:
            TimeoutError: it took too long.
            HostDiedError: the host dies of it.
            HostStartError: no host can be started.
            Exception: what the handler raised there; or an example or a prediction does not pickle.
        """
        call = self.submit(encode(EngineRequest(inference_args), list(examples)))
        try:
            answer, predictions = await asyncio.wrap_future(call.answer)
        except asyncio.CancelledError:
            self._withdraw(call)
            raise
        for event in getattr(answer, "events", ()):
            if isinstance(event, UsageReported):
                report_used(event)
        if not isinstance(answer, Done):
            raise with_traceback_of(*answer.caught)
        return predictions

    def submit(self, message: Message) -> _Request:
        """Sends a request; call it on one thread only."""
        call = _Request(self._hosts.next_number(), message, self._accept)
        with self._changed:
            self._calls[call.number] = call
            if self._sends:
                self._send([call])
            else:
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace waits for an engine", daemon=True)
                self._thread.start()
        return call

    def close(self) -> None:
        """Ends the host, unless others use it; waits for up to a second, and then kills it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._hosts.hang_up()
        if self._thread is None:
            self._models.close()
        elif self._thread is not threading.current_thread():  # the collector may have come there, and it ends by itself
            self._thread.join()

    def _run(self) -> None:
        """Hands out answers, and tries again what a host that was lost has not answered."""
        while self._is_wanted():
            try:
                if self._connection is None:
                    self.load()
                with self._changed:
                    self._sends, self.is_down = True, False
                    self._send(self._calls.values())
                failure = self._await_answers(lambda: False)
                if failure is not None and not self._is_closed:
                    # Not kept here: the traceback of a raised error holds its caller's frames, and so the EngineCopies.
                    self._try_again(failure, self._left())
            except BaseException as error:  # no other host can be started, or it cannot load the engine
                self._fail(self._left(), error)
        for call in self._left():
            call.answer.cancel()
        self._models.close()

    def _is_wanted(self) -> bool:
        """Waits until there is something to do; False: the engine is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._connection is not None or self._is_closed)
            return not self._is_closed

    def _left(self) -> list[_Request]:
        """The requests that are not answered; from now on what comes waits."""
        with self._changed:
            self._sends = False
            return list(self._calls.values())

    def _send(self, calls: Iterable[_Request]) -> None:
        assert self._connection is not None
        for call in calls:
            self._connection.send(call)  # a host that is gone does not get it: it is found when the loss is

    def _withdraw(self, call: _Request) -> None:
        """Has the host drop a request."""
        with self._changed:
            if self._calls.pop(call.number, None) is not None and self._connection is not None:
                self._connection.post(call.number, encode(Withdrawal(), []))

    def _await_answers(self, is_settled: Callable[[], bool]) -> HostFailure | None:
        """Waits until what is waited for has come; or returns how the host was lost, or was told to end."""
        connection = self._connection
        assert connection is not None
        connection.wait_until(is_settled)
        if not connection.is_over:
            return None
        with self._changed:
            self._connection, self._sends, self.is_down = None, False, True
        return None if is_settled() else connection.failure

    def _accept(self, call: _Request) -> None:
        """Hands out an answer, unless it says that the host is of no more use."""
        connection: HostConnection = call.connection
        try:
            answer, rows, _ = connection.read(call)
        except Exception as error:
            self._fail([call], error)
        else:
            if isinstance(answer, HostFailure):
                connection.kill(answer)
            else:
                self._settle(call, answer, rows)

    def _try_again(self, failure: HostFailure, calls: Sequence[_Request]) -> None:
        """Tries again what was with a host that was lost: all together, then parts, then one by one.

        What is not to blame goes to the next host like new requests.
        """
        if client_of(failure.snapshot.call) not in (0, self._hosts.client):
            return

        def attempt(positions: Sequence[int], _: Mapping[int, InjectedFailure]) -> Sequence[int] | LostBatch:
            part = [calls[place] for place in positions if calls[place].number in self._calls]
            failure = self._try(part) if part else None
            return positions if failure is None else self._lost(failure, len(part), is_own=True)

        try:
            first = self._lost(failure, len(calls), is_own=not self._is_shared)
            search = FailureSearch(attempt, gives_up_single=True)
            # Others' were with a shared one, too: it proves nothing about these.
            for positions, answer in search.among(range(len(calls)), None if self._is_shared else first):
                if isinstance(answer, LostBatch):
                    self._fail([calls[place] for place in positions], answer.error)
        except BaseException as error:
            self._fail(calls, error)

    def _try(self, calls: Sequence[_Request]) -> HostFailure | None:
        """Gives requests to the engine, with none of other processes; returns how the host was lost to them."""
        while True:
            if self._connection is None:
                self.load()
            with self._changed:  # some may have been answered, or taken back
                left = [call for call in calls if call.number in self._calls]
                for call in left:
                    call.make_exclusive()
                self._send(left)
            failure = self._await_answers(lambda: all(call.answer.done() for call in calls))
            if failure is None or not self._is_shared or client_of(failure.snapshot.call) == self._hosts.client:
                return failure  # else it was lost before it was this process's

    def _fail(self, calls: Iterable[_Request], error: BaseException) -> None:
        for call in calls:  # each gets a copy, not as the future's exception: asyncio makes another of some classes
            self._settle(call, Unreadable(Caught(copy_of(error), [])), [])

    def _settle(self, call: _Request, answer: Done | Raised | Unreadable, predictions: list[Any]) -> None:
        with self._changed:
            self._calls.pop(call.number, None)
        with suppress(InvalidStateError):  # nobody waits any more
            call.answer.set_result((answer, predictions))

    def _lost(self, failure: HostFailure, number: int, *, is_own: bool) -> LostBatch:
        """Describes the loss of a host that had so many requests, all of this process if it ``is_own``.

        Raises:
            TimeoutError: it is not caught, and will end the bundle: no further try would be of use.
        """
        error = self._models.lost(failure, f"answering {number} request{'s' * (number != 1)}", self._label)
        vars(error)["retryable"] = False  # it is tried again here
        if is_own and failure.timed_out and not isinstance(error, self._caught):
            raise error
        return LostBatch(error, failure.timed_out, too_large=failure.out_of_memory)

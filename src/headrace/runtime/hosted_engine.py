"""An engine in a host, seen from the worker: takes requests one by one, and tries again those whose host was lost."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

from headrace.core.errors import HostDiedError, HostStartError
from headrace.core.events import Event, HostLost
from headrace.core.request_context import report_used
from headrace.core.result import Stage
from headrace.failures.fatal_search import InjectedFailure, LostBatch
from headrace.failures.isolate_fatal import isolate_fatal, parts_after_timeout
from headrace.hosts.provider import HostFailure, HostProvider
from headrace.hosts.stream import HostStream, StreamedAnswer
from headrace.ipc.codec import Message, decode, encode
from headrace.ipc.exceptions import with_traceback_of
from headrace.runtime.engine_host import LOADING
from headrace.runtime.engine_starter import EngineStarter, kill
from headrace.runtime.engine_submission import Submitted
from headrace.runtime.engine_turns import EVERYBODY
from headrace.runtime.messages import EngineRequest
from headrace.runtime.spec import SessionSpec

_LOGGER = logging.getLogger(__name__)


class HostedEngine:
    """Stands in for an engine that lives in a host, which ends, or is left to others, when this is garbage-collected.

    Args:
        hosts: where the engine is loaded.
    """

    def __init__(self, hosts: EngineHosts) -> None:
        self._hosts = hosts
        weakref.finalize(self, hosts.close)

    def predict(self, examples: Iterable[Any], inference_args: dict[str, Any] | None) -> Awaitable[list[Any]]:
        """As ``EngineHosts.predict``, whose errors do not refer to this object: who keeps one would keep the host."""
        return self._hosts.predict(examples, inference_args)


class EngineHosts:
    """The host of an engine, and those that replace it; thread-safe.

    ::

        submit -> (with the host) -> answered
                        | host lost, not while the engine was another process's alone
                  tried again, alone: all, halves, one by one -> answered, or failed
                  (what is submitted meanwhile waits)

    Args:
        spec: of the session.
        name: of the model.
        provider: starts the hosts, or gives access to those that processes share.
        report: receives events of loads, and of hosts that were lost.
    """

    def __init__(
        self, spec: SessionSpec, name: Any, provider: HostProvider, report: Callable[[Iterable[Event]], None]
    ) -> None:
        self._name = spec.plan.name
        self._label = spec.plan.label(name)
        self._caught = spec.caught
        self._timeout_secs = spec.timeout_secs
        self._is_shared = name in spec.shared
        self._provider = provider
        self._report = report
        self._starter = EngineStarter(spec, name, provider, report)
        self._stream: HostStream | None = None
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._numbers = count(LOADING + 1)
        self._client = EVERYBODY + 1 + secrets.randbits(62)  # this one's number among those that share the host
        self._in_flight: dict[int, Submitted] = {}
        """What the host has, by number."""
        self._waiting: list[Submitted] = []
        self._takes_requests = False  # whether they go to the host at once
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Loads the engine in a host; raises why it cannot."""
        try:
            self._starter.start(self._keep)
        except BaseException:
            self._stream = None
            raise

    async def predict(self, examples: Iterable[Any], inference_args: dict[str, Any] | None) -> list[Any]:
        """The engine's predictions; what it reports meanwhile is reported here.

        Raises:
            TimeoutError: it took too long.
            HostDiedError: the host dies of it.
            HostStartError: no host can be started.
            Exception: what the handler raised there; or an example or a prediction does not pickle.
        """
        request = self.submit(encode(EngineRequest(inference_args), list(examples)))
        try:
            answer, predictions = await asyncio.wrap_future(request.answer)
        except asyncio.CancelledError:
            self.take_back(request)
            raise
        for used in answer.used:
            report_used(used)
        if answer.caught is not None:
            raise with_traceback_of(*answer.caught)
        return predictions

    def submit(self, message: Message) -> Submitted:
        """Sends a request; call it on one thread only."""
        if self._process != os.getpid():
            self._forget_parent()
        request = Submitted(next(self._numbers), message, Future())
        with self._changed:
            if self._takes_requests:
                self._send([request])
            else:
                self._waiting.append(request)
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace waits for an engine", daemon=True)
                self._thread.start()
        return request

    def take_back(self, request: Submitted) -> None:
        """Has the engine drop a request."""
        with self._changed:
            if request.number in self._in_flight:
                self._drop(request)

    def _drop(self, request: Submitted) -> None:
        if self._stream is not None:
            self._stream.send(request.number, encode(EngineRequest(is_taken_back=True), []).content())

    def close(self) -> None:
        """Ends the host, unless others use it; waits for up to a second, and then kills it."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            if self._stream is not None:
                self._stream.hang_up()
        self._provider.cancel_waits()
        if self._thread is None:
            self._end()
        elif self._thread is not threading.current_thread():  # the collector may have come there, and it ends by itself
            self._thread.join()

    def _forget_parent(self) -> None:
        """In a forked child: it needs a host of its own."""
        if self._stream is not None:
            self._stream.release_in_child()
            self._stream = None
        self._provider.after_fork()
        self._begin()

    def _run(self) -> None:
        """Hands out answers, and tries again what a host that was lost has not answered."""
        while self._is_wanted():
            try:
                if self._stream is None:
                    self.start()
                self._take_requests()
                failure = self._await_answers(lambda: False)
                if failure is not None and not self._is_closed:
                    # Not kept here: an error that was raised refers to whoever waited, and so to the HostedEngine.
                    self._try_again(failure, self._stop_taking())
            except BaseException as error:  # no other host can be started, or it cannot load the engine
                self._fail([*self._stop_taking(), *self._taken_over()], error)
        for request in [*self._stop_taking(), *self._taken_over()]:
            request.answer.cancel()
        self._end()

    def _end(self) -> None:
        if self._stream is not None:
            self._stream.end()
            self._stream = None
        self._provider.close()

    def _is_wanted(self) -> bool:
        """Waits until there is something to do; False: the engine is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stream is not None or self._is_closed)
            return not self._is_closed

    def _take_requests(self) -> None:
        """Sends what waits, and from now on all that comes."""
        with self._changed:
            self._takes_requests = True
            self._send(self._taken_over())

    def _taken_over(self) -> list[Submitted]:
        """Those that wait, and no longer do."""
        with self._changed:
            waiting, self._waiting = self._waiting, []
            return waiting

    def _stop_taking(self) -> list[Submitted]:
        """From now on what comes waits; returns the requests that the host has not answered."""
        with self._changed:
            self._takes_requests = False
            left, self._in_flight = self._in_flight, {}
            return [request for request in left.values() if not request.answer.done()]

    def _send(self, requests: Iterable[Submitted]) -> None:
        assert self._stream is not None
        for request in requests:
            if not request.answer.done():
                self._in_flight[request.number] = request
                self._stream.send(request.number, request.message.content())

    def _await_answers(self, is_settled: Callable[[], bool]) -> HostFailure | None:
        """Hands out answers until what is waited for has come; or the host is lost, or has been told to end."""
        while not is_settled():
            assert self._stream is not None
            received = self._stream.receive()
            failure = received if isinstance(received, HostFailure) else self._accept(received)
            if failure is not None:
                with self._changed:
                    self._stream, self._takes_requests = None, False
                return failure
        return None

    def _accept(self, received: StreamedAnswer) -> HostFailure | None:
        """Hands out an answer, unless it says that the host is of no more use."""
        with self._changed:
            request = self._in_flight.get(received.number)
        if request is None:  # taken back just then
            return None
        try:
            answer, rows, _ = decode(received.content, known=request.message.columns, own=True)
        except Exception as error:
            request.fail(error)
        else:
            if answer.lost is not None:
                assert self._stream is not None
                return kill(self._stream, answer.lost)
            request.end(answer, rows)
        with self._changed:
            self._in_flight.pop(received.number, None)
        return None

    def _try_again(self, failure: HostFailure, requests: list[Submitted]) -> None:
        """Tries again what was with a host that was lost; like new requests if it was not lost to this process's."""
        if failure.snapshot.call in (0, EVERYBODY, self._client):
            self._recover(failure, requests)
        else:
            with self._changed:
                self._waiting = requests + self._waiting

    def _recover(self, failure: HostFailure, requests: Sequence[Submitted]) -> None:
        """Tries again what was with a host that was lost: all together, then parts, then one by one."""

        def attempt(positions: Sequence[int], _: Mapping[int, InjectedFailure]) -> Sequence[int] | LostBatch:
            part = [requests[place] for place in positions if not requests[place].answer.done()]
            failure = self._try(part) if part else None
            return positions if failure is None else self._lost(failure, len(part))

        try:
            everything = range(len(requests))
            first: Sequence[int] | LostBatch = self._lost(failure, len(requests))
            if self._is_shared and requests:  # others' were there, too: it proves nothing about these
                first = attempt(everything, {})
            if not isinstance(first, LostBatch):
                return
            if first.timed_out and not isinstance(first.error, self._caught):  # it will end the bundle
                self._fail(requests, first.error)
            elif requests:
                tried = isolate_fatal(everything, first, attempt, gives_up_single=True, parts=self._parts)
                for positions, answer in tried:
                    if isinstance(answer, LostBatch):
                        self._fail([requests[place] for place in positions], answer.error)
        except BaseException as error:
            self._fail(requests, error)

    def _try(self, requests: Sequence[Submitted]) -> HostFailure | None:
        """Gives requests to the engine, with no others, also not of other processes; returns how the host was lost."""
        while True:
            turn = self._have_alone()
            with self._changed:
                self._send(requests)
            failure = self._await_answers(lambda: all(request.answer.done() for request in requests))
            with self._changed:
                self._in_flight = {}
                self._drop(turn)
            if failure is None or not self._is_shared or failure.snapshot.call in (0, self._client):
                return failure  # else this process had lost its turn, since it was idle or stopped, perhaps to another

    def _have_alone(self) -> Submitted:
        """Asks for the engine until this process has it; to be taken back."""
        while True:
            if self._stream is None:
                self.start()
            turn = Submitted(next(self._numbers), encode(EngineRequest(alone=self._client), []), Future())
            with self._changed:
                self._send([turn])
            failure = self._await_answers(turn.answer.done)
            with self._changed:
                self._in_flight = {}
            if failure is None:
                return turn

    def _parts(self, number: int) -> int:
        return parts_after_timeout(number, math.inf, self._timeout_secs or math.inf)

    @staticmethod
    def _fail(requests: Iterable[Submitted], error: BaseException) -> None:
        for request in requests:
            request.fail(error)

    def _lost(self, failure: HostFailure, number: int) -> LostBatch:
        """Notes the loss of a host that had so many requests; describes it in the terms of ``isolate_fatal``."""
        text = f"the host {failure.exit_text} while its engine had {number} request{'s' * (number != 1)}."
        if not self._is_closed:
            _LOGGER.warning("%s: %s", self._name, text)
            self._report([HostLost(self._label, failure.timed_out, failure.exit_text)])
        late = TimeoutError(f"{self._name}.submit took longer than {self._timeout_secs or 0:g} s.")
        error = late if failure.timed_out else HostDiedError(text)
        vars(error)["retryable"] = False  # it is tried again here
        return LostBatch(error, failure.timed_out, Stage.INFERENCE, too_large=failure.out_of_memory)

    def _keep(self, stream: HostStream) -> None:
        """Takes a host that has just been started, which ``close`` may end while it loads; raises once closed."""
        with self._changed:
            self._stream = stream
            if self._is_closed:
                raise HostStartError(self._name, "nobody needs it any more.")

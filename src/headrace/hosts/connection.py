"""A client's connection to one host: sends requests, dispatches responses, notices exit and overrun."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import ref

from headrace.hosts.provider import ClientChannel, ExitCause, HostExit, HostFailure, HostProvider, describe_exit
from headrace.ipc.channel import LONGEST_INLINE, Content, Frame, Link, Outgoing, is_readable, milliseconds
from headrace.ipc.codec import Decoded, Message, decode
from headrace.ipc.progress import ActivitySnapshot, Progress
from headrace.ipc.segment import Reply, Segment

_MAX_IN_FLIGHT = 32
"""Limit of requests without a response. More could fill the socket: the sender would block, and check no time limit."""
_MAX_INLINE = 8
"""As many requests without a response, and their responses, may be in the socket with their content."""
_EXIT_GRACE_SECS = 1.0
"""How long a host that has closed its connection may take to exit by itself."""
_LONGEST_START_SECS = 600
"""Extra time before a host's first mark: it may have to import the handler's modules."""


class Call:
    """A request and, later, its response. Dropping the last reference discards the response.

    Args:
        number: of the call.
        message: the request.
        on_reply: called by the reading thread once there is a response.
    """

    def __init__(self, number: int, message: Message, on_reply: Callable[[Any], None] | None = None) -> None:
        self.number = number
        self.message = message
        self.on_reply = on_reply
        self.made = time.monotonic()
        self.connection: Any = None
        """The ``HostConnection`` that has sent it."""
        self.reply: Reply | bytes | memoryview | None = None
        """The response; a ``Reply`` if it is in the host's memory."""
        self.files: list[int] = []
        """Descriptors that came with the response; the caller must close them."""


class _Pending(NamedTuple):
    """A request without a response."""

    call: ref[Call]
    """Of an abandoned bundle, the call vanishes."""
    segment: Segment | None
    """The memory that holds it, ``size`` bytes; None: it was sent through the channel."""
    size: int
    sent: float


class HostConnection:
    """One client's connection to one host, from start or join until the host exits or the client leaves.

    Thread-safe. There is no reader thread: one of the waiting threads reads the channel for all of them.

    Args:
        provider: starts the host, or gives access to it.
        number: which of the provider's hosts.
        timeout_secs: time limit for each operation of the host; None: no limit.
        side_by_side: whether the host answers any number of requests at once, as engines do; then sending never waits.
    """

    def __init__(
        self, provider: HostProvider, number: int, timeout_secs: float | None, *, side_by_side: bool = False
    ) -> None:
        self._provider = provider
        self._timeout_secs = timeout_secs
        self._pending: dict[int, _Pending] = {}
        """Requests without a response, by call number, in sending order."""
        self._last_answered = 0
        """The number of the last call with a response: the progress page may still show it for a moment."""
        self._free: deque[int] = deque()
        """Numbers of calls whose responses have been read; the next request tells the host."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._has_reader = False
        """Whether some thread is reading the channel, on behalf of all."""
        self._is_disconnected = False
        """Whether this process has closed the connection, so that no request is at fault."""
        self.has_begun = False
        """Whether the host has ever begun a request."""
        self.is_over = False
        """Whether the host has exited or this client has left it."""
        self.failure: HostFailure | None = None
        """How the host was lost; its snapshot names the call at fault, if any."""
        self.process, self._channel, self.page, self.pidfd, self._is_shared = provider.host(number)
        self._progress = Progress(self.page.memory)
        self._link = Link(self._channel)
        self._outgoing = Outgoing(self._channel) if side_by_side else None
        self._channel_file = self._channel.fileno()
        self._poll = select.poll()
        for file in [self._channel_file] if self.pidfd is None else [self._channel_file, self.pidfd]:
            self._poll.register(file, select.POLLIN)

    @property
    def load(self) -> int:
        """How many requests it has to process: this client's, and the current one if it is another client's."""
        current = self._progress.read().call
        return len(self._pending) + (current not in self._pending and current not in (0, self._last_answered))

    def snapshot(self) -> ActivitySnapshot | None:
        """What the host is doing; None: it has exited."""
        with self._lock:
            return None if self.is_over else self._progress.read()

    def add_client(self, file: int) -> None:
        """Connects another client to the host; ``file`` is the host's end of that client's channel.

        Raises:
            OSError: the host is gone.
        """
        self._channel.send(ClientChannel(), [file])

    def send(self, call: Call) -> bool:
        """Sends a request, after others have been answered if 32 wait; returns False if the host is gone."""
        if self._outgoing is not None:
            with self._lock:
                return self._send(call, call.message.content())
        if len(self._pending) >= _MAX_IN_FLIGHT:
            self.wait_until(lambda: len(self._pending) < _MAX_IN_FLIGHT)
        where: Content = call.message.content() if call.message.nbytes <= LONGEST_INLINE else self._in_segment(call)
        with self._lock:
            if len(self._pending) >= _MAX_INLINE and not isinstance(where, Segment):
                where = self._in_segment(call)  # only now: other threads may have sent meanwhile
            try:
                return self._send(call, where)
            except OSError:
                return False
            except BaseException:  # Ctrl-C: the host may have received any part of the message
                self.hang_up()
                raise

    def _in_segment(self, call: Call) -> Segment:
        with self._lock:
            segment = self._link.own.take(call.message.nbytes)
        call.message.write(segment.memory)
        return segment

    def post(self, number: int, message: Message) -> None:
        """Sends one more message about a call that is answered side by side with others."""
        if self._outgoing is not None:
            self._outgoing.send(number, message.content())

    def wait(self, call: Call | None) -> None:
        """Waits until the call has its response or the host has exited; None: only for the exit."""
        self.wait_until(lambda: call is not None and call.reply is not None)

    def is_ready(self, call: Call | None) -> bool:
        """Whether ``wait`` would return at once, once at most one message has been read."""
        return self.wait_until(lambda: call is not None and call.reply is not None, block=False)

    def read(self, call: Call) -> Decoded:
        """Decodes the response of a call that has one; the host may then reuse its memory."""
        reply, call.reply, call.connection = call.reply, None, None
        assert reply is not None
        memory = reply.memory if isinstance(reply, Reply) else memoryview(reply)
        return decode(memory, known=call.message.columns, own=True)

    def hang_up(self) -> None:
        """Closes the connection, which ends an unshared host; whoever waits notices."""
        self._is_disconnected = True
        self._channel.shut_down()

    def leave(self) -> None:
        """Closes the connection and waits until that has ended the host, or left it to others."""
        if not self.is_over:
            self.hang_up()
            self.wait(None)

    def kill(self, failure: HostFailure) -> None:
        """Ends a host that has said that it is of no more use, also for others."""
        self._provider.reap(self.process, late=True)
        self._end(failure)

    def release(self) -> None:
        """Closes every descriptor and segment, except the memory of responses that have not been read."""
        if not self.is_over:
            self.is_over = True
            if self._outgoing is not None:
                self._outgoing.end()
            self._channel.close()
            if self.pidfd is not None:
                os.close(self.pidfd)
                self.pidfd = None
            self._link = Link(self._channel)
            self._pending.clear()
            self.page.close()

    def _send(self, call: Call, where: Content) -> bool:
        if self.is_over or self._is_disconnected:
            return False
        number, size, call.connection = call.number, call.message.nbytes, self
        segment = where if isinstance(where, Segment) else None
        self._pending[number] = _Pending(ref(call), segment, size, time.monotonic())
        if self._outgoing is not None and not isinstance(where, Segment):
            self._outgoing.send(number, where)
            return True
        free = [self._free.popleft() for _ in range(len(self._free))] if self._free else ()
        self._link.send(number, where, size, flag=len(self._pending) > _MAX_INLINE, free=free)
        return True

    def wait_until(self, is_settled: Callable[[], bool], *, block: bool = True) -> bool:
        """Waits until ``is_settled`` or the host has exited; returns whether that is so.

        If it must not block, it reads one message, if there is one and no other thread reads.
        """
        # Leader and followers: the thread that sets _has_reader polls the channel, outside the lock, and dispatches one
        # message; the others wait. Then it hands over and wakes all: one whose response has not come reads next.
        while True:
            leads = False
            try:
                with self._lock:
                    if self.is_over or is_settled():
                        return True
                    if self._has_reader and not block:
                        return False
                    if self._has_reader:
                        self._changed.wait()
                        continue
                    leads = self._has_reader = True
                self._read_once(block=block)
            finally:
                if leads:
                    self._hand_over()
            if not block:
                return self.is_over or is_settled()

    def _hand_over(self) -> None:
        with self._lock:
            self._has_reader = False
            self._changed.notify_all()

    def _read_once(self, *, block: bool) -> None:
        limit = self._timeout_secs
        timeout_ms = None if block else 0
        if block and limit is not None:
            timeout_ms = milliseconds(limit - max(0.0, self._seconds_busy(self._progress.read())))
        ready = dict(self._poll.poll(timeout_ms))
        if not ready:
            late = self._progress.read()
            if limit is not None and self._seconds_busy(late) > limit:
                self._kill_late(late)
            return
        if self._channel_file not in ready or self._is_disconnected:
            self._handle_exit()  # the process has exited, and every message that it sent has been read
            return
        try:
            self._accept(*self._channel.receive(stall_secs=limit))
        except EOFError:
            self._handle_exit()
        except TimeoutError:  # it was stopped in the middle of a message
            self._kill_late()
        except BaseException:  # Ctrl-C, or too many open files: a response is lost
            self.hang_up()
            raise

    def _accept(self, received: tuple[Any, ...], files: list[int]) -> None:
        reply = Frame(*received)
        with self._lock:
            self.has_begun = True
            request = self._pending.pop(reply.call, None)
            self._last_answered = reply.call
            if reply.dropped:
                self._link.peers.drop(reply.dropped)
            if request is not None and request.segment and reply.flag:
                self._link.own.drop(request.segment)  # the handler kept an array of the batch: leave it that memory
            elif request is not None and request.segment:
                self._link.own.give_back(request.segment, request.size)
            if reply.content is None:
                answer = self._link.peers.segment(reply.segment, files)  # files left over are from the request handler
                memory: Reply | bytes | memoryview = Reply(answer, reply.size, reply.call, self._free)
            else:
                memory = reply.content
            call = None if request is None else request.call()
            if call is not None:
                call.files, call.reply = files, memory  # in this order: other threads look at the reply
            else:
                for file in files:  # its bundle was abandoned
                    os.close(file)
        if call is not None and call.on_reply is not None:
            call.on_reply(call)

    def _handle_exit(self) -> None:
        if self._is_disconnected and self._is_shared:  # it keeps running for others
            self._lost("was left")
            return
        # Wait a moment, so that its own exit code survives. Without a pidfd it is killed, unless others use it.
        has_ended = not self._is_shared if self.pidfd is None else is_readable(self.pidfd, _EXIT_GRACE_SECS)
        ended = self._provider.reap(self.process)
        code, cause = ended or HostExit(None)
        is_known = has_ended or (ended and self.pidfd is None)
        why = ", since the machine had run out of memory" if cause is ExitCause.MEMORY else ""
        self._lost(describe_exit(code) + why if is_known else "closed the connection to its owner", cause)

    def _kill_late(self, late: ActivitySnapshot | None = None) -> None:
        self._provider.reap(self.process, late=True)
        self._lost("was killed", ExitCause.LATE, late)

    def _seconds_busy(self, snapshot: ActivitySnapshot) -> float:
        """Seconds that the current operation has taken or, if the host is idle, that a request has been waiting."""
        if snapshot.call:
            return 0.0 if snapshot.is_elsewhere else snapshot.seconds
        with self._lock:
            oldest = next(iter(self._pending.values()), None)
        if oldest is None:
            return 0.0
        waiting = time.monotonic() - oldest.sent
        # A request may have waited behind others, so only time that the host was idle counts. Before its first mark
        # (since_ns is 0) the host may still be importing modules, which gets an allowance.
        return min(snapshot.seconds, waiting) if snapshot.since_ns else waiting - _LONGEST_START_SECS

    def _lost(self, exit_text: str, cause: ExitCause = ExitCause.OTHER, late: ActivitySnapshot | None = None) -> None:
        """Blames the request on the progress page, and closes the connection.

        No request is at fault if that one was answered, or the host had moved on since it was found to be ``late``.
        """
        # Take the responses that the host sent before it exited: those requests succeeded.
        with contextlib.suppress(EOFError, OSError):
            while not self._is_disconnected and self._channel_file in [file for file, _ in self._poll.poll(0)]:
                self._accept(*self._channel.receive(stall_secs=self._timeout_secs))
        snapshot = self._progress.read()
        self.has_begun = self.has_begun or self._progress.marks > 1  # the first says that it is ready
        if self._is_disconnected or late not in (None, snapshot):
            snapshot = replace(snapshot, call=0)
        timed_out = cause is ExitCause.LATE and self._timeout_secs is not None  # perhaps for another client
        if timed_out:
            exit_text = f"was killed, having taken longer than {self._timeout_secs:g} s"
        self._end(HostFailure(snapshot, timed_out, exit_text, cause is ExitCause.MEMORY))

    def _end(self, failure: HostFailure) -> None:
        with self._lock:
            self.failure = failure
            self.release()

"""A client's connection to one host: sends requests, dispatches responses, notices exit and overrun."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import ref

from headrace.hosts.calls import LONGEST_INLINE, Call, ClientChannel, HostReply, HostRequest, PendingRequest
from headrace.hosts.provider import ExitCause, HostFailure, HostProvider, await_exit, describe_exit
from headrace.ipc.channel import milliseconds
from headrace.ipc.codec import Decoded, Message, decode
from headrace.ipc.progress import ActivitySnapshot, Progress
from headrace.ipc.segment import PeerSegments, Reply, Segment, SegmentPool

_MAX_IN_FLIGHT = 32
"""Limit of requests without a response. More could fill the socket: the sender would block, and check no time limit."""
_MAX_INLINE = 8
"""As many requests without a response, and their responses, may be in the socket with their content."""
_LONGEST_START_SECS = 600
"""Extra time before a host's first mark: it may have to import the handler's modules."""
_MARKS_AT_START = 1
"""Marks on the progress page of a host that has begun no request."""


class HostConnection:
    """One client's connection to one host, from start or join until the host exits or the client leaves.

    Thread-safe. There is no reader thread: one of the waiting threads reads the channel for all of them.

    Args:
        provider: starts the host, or gives access to it.
        number: which of the provider's hosts.
        timeout_secs: time limit for each operation of the host; None: no limit.
    """

    def __init__(self, provider: HostProvider, number: int, timeout_secs: float | None) -> None:
        self._provider = provider
        self._timeout_secs = timeout_secs
        self._is_out_of_memory = False
        self._requests = SegmentPool()
        self._answers = PeerSegments()
        self._pending: dict[int, PendingRequest] = {}
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
        self.host_failure: HostFailure | None = None
        """The host's failure, if a request of this client was in progress."""
        self.exit_text = ""
        self.process, self._channel, self._progress_segment, self.pidfd, self._is_shared = provider.host(number)
        self._progress = Progress(self._progress_segment.memory)
        self._poll = select.poll()
        self._channel_file = self._channel.fileno()
        for file in (self._channel_file, self.pidfd):
            if file is not None:
                self._poll.register(file, select.POLLIN)

    @property
    def load(self) -> int:
        """How many requests it has to process: this client's, and the current one if it is another client's."""
        snapshot = self._progress.read()
        return len(self._pending) + (
            snapshot.call not in self._pending and snapshot.call not in (0, self._last_answered)
        )

    @property
    def progress_file(self) -> int:
        """The descriptor of the host's progress page, for other clients."""
        return self._progress_segment.file

    def add_client(self, file: int) -> None:
        """Connects another client to the host; ``file`` is the host's end of that client's channel.

        Raises:
            OSError: the host is gone.
        """
        self._channel.send(ClientChannel(), [file])

    def update(self) -> None:
        """Updates ``is_over`` without waiting, unless another thread is reading already."""
        self._try_read(lambda: not self.is_over)

    def send(self, call: Call) -> bool:
        """Sends a request, after waiting until fewer than 32 have no response; returns False if the host is gone."""
        if len(self._pending) >= _MAX_IN_FLIGHT:
            self._wait(lambda: len(self._pending) < _MAX_IN_FLIGHT)
        is_small = call.message.nbytes <= LONGEST_INLINE
        where = call.message.content() if is_small else self._in_segment(call.message)
        with self._lock:
            may_inline = len(self._pending) < _MAX_INLINE
            if is_small and not may_inline:
                where = self._in_segment(call.message)
            try:
                return self._send(call, where, may_inline)
            except OSError:
                return False
            except BaseException:  # Ctrl-C: the host may have received any part of the message
                self._disconnect()
                raise

    def _in_segment(self, message: Message) -> Segment:
        with self._lock:
            segment = self._requests.take(message.nbytes)
        try:
            message.write(segment.memory)
        except BaseException:
            with self._lock:
                self._requests.drop(segment)
            raise
        return segment

    def wait(self, call: Call | None) -> None:
        """Waits until the call has its response or the host has exited; None: only for the exit."""
        self._wait(lambda: call is not None and call.reply is not None)

    def is_ready(self, call: Call) -> bool:
        """Whether ``wait`` would return at once."""
        self._try_read(lambda: call.reply is None and not self.is_over)
        return call.reply is not None or self.is_over

    def _try_read(self, is_open: Callable[[], bool]) -> None:
        """Reads at most one message, without blocking, if ``is_open`` and no other thread is reading."""
        leads = False
        try:
            with self._lock:
                if not self._has_reader and is_open():
                    leads = self._has_reader = True
            if leads:
                self._read_once(block=False)
        finally:
            if leads:
                self._hand_over()

    def read(self, call: Call) -> Decoded:
        """Decodes the response of a call that has one; the host may then reuse its memory."""
        reply, call.reply, call.connection = call.reply, None, None
        assert reply is not None
        known = call.message.columns
        return decode(reply.memory if isinstance(reply, Reply) else memoryview(reply), known=known, own=True)

    def leave(self) -> None:
        """Closes the connection and waits until that has ended the host, or left it to others."""
        if not self.is_over:
            self._disconnect()
            self.wait(None)

    def release(self) -> None:
        """Closes every descriptor and segment, except the memory of responses that have not been read."""
        if not self.is_over:
            self.is_over = True
            self._channel.close()
            if self.pidfd is not None:
                os.close(self.pidfd)
                self.pidfd = None
            self._requests, self._answers = SegmentPool(), PeerSegments()
            self._pending.clear()
            self._progress_segment.close()

    def _send(self, call: Call, where: list[bytes | bytearray] | Segment, may_inline: bool) -> bool:
        if self.is_over or self._is_disconnected:
            return False
        number, size, call.connection = call.number, call.message.nbytes, self
        segment = where if isinstance(where, Segment) else None
        self._pending[number] = PendingRequest(ref(call), segment, size, time.monotonic())
        free = [self._free.popleft() for _ in range(len(self._free))] if self._free else []
        dropped, self._requests.dropped = self._requests.dropped, []
        if isinstance(where, Segment):
            request = HostRequest(number, None, where.name, size, free, dropped, may_inline)
            self._channel.send(tuple(request), self._requests.files_for(where))
        elif free or dropped:
            self._channel.send(tuple(HostRequest(number, b"".join(where), 0, 0, free, dropped)))
        else:
            self._channel.send_content(number, where)
        return True

    def _disconnect(self) -> None:
        """Closes the connection, which ends an unshared host; the next read notices."""
        self._is_disconnected = True
        self._channel.shut_down()

    def _wait(self, is_settled: Callable[[], bool]) -> None:
        """Waits until ``is_settled`` or the host has exited."""
        # Leader and followers: the thread that sets _has_reader polls the channel, outside the lock, and dispatches one
        # message to whichever call it answers; the others wait for the condition. Then it hands over and wakes all:
        # those whose response has come return, and one of the rest reads next. An exception hands over, too.
        while not (self.is_over or is_settled()):
            leads = False
            try:
                with self._lock:
                    while self._has_reader and not (self.is_over or is_settled()):
                        self._changed.wait()
                    if self.is_over or is_settled():
                        return
                    leads = self._has_reader = True
                self._read_once(block=True)
            finally:
                if leads:
                    self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            self._has_reader = False
            self._changed.notify_all()

    def _read_once(self, *, block: bool) -> None:
        ready = dict(self._poll.poll(self._poll_timeout_ms() if block else 0))
        if self._channel_file in ready and not self._is_disconnected:
            self._receive()
        elif ready:
            self._handle_exit()  # the process has exited, and every message that it sent has been read
        elif self._timeout_secs is not None and self._seconds_busy(late := self._progress.read()) > self._timeout_secs:
            self._kill_late(late)

    def _receive(self) -> None:
        try:
            self._accept(*self._channel.receive(stall_secs=self._timeout_secs))
        except EOFError:
            self._handle_exit()
        except TimeoutError:  # it was stopped in the middle of a message
            self._kill_late()
        except BaseException:  # Ctrl-C, or too many open files: a response is lost
            self._disconnect()
            raise

    def _poll_timeout_ms(self) -> int | None:
        """Milliseconds until the current operation exceeds the time limit; None: no limit."""
        if self._timeout_secs is None:
            return None
        return milliseconds(self._timeout_secs - max(0.0, self._seconds_busy(self._progress.read())))

    def _accept(self, received: tuple[Any, ...], files: list[int]) -> None:
        reply = HostReply(*received)
        with self._lock:
            self.has_begun = True
            request = self._pending.pop(reply.call)
            self._last_answered = reply.call
            if reply.dropped:
                self._answers.drop(reply.dropped)
            if request.segment and reply.kept:  # the handler kept an array of the batch: leave it that memory
                self._requests.drop(request.segment)
            elif request.segment:
                self._requests.give_back(request.segment, request.size)
            if reply.content is None:
                answer = self._answers.segment(reply.segment, files)  # files left over are from the request handler
                memory: Reply | bytes | memoryview = Reply(answer, reply.size, reply.call, self._free)
            else:
                memory = reply.content
            call = request.call()
            if call is not None:
                call.files, call.reply = files, memory  # in this order: other threads look at the reply
                return
            for file in files:  # its bundle was abandoned
                os.close(file)

    def _handle_exit(self) -> None:
        """Reaps a host that has exited or closed its connection, and finds out why."""
        if self._is_disconnected and self._is_shared:  # it keeps running for others
            self.exit_text = "was left"
            with self._lock:
                self.release()
            return
        has_ended = await_exit(self.pidfd)
        ended = self._provider.reap(self.process)
        if has_ended is None:  # unknown without a pidfd, but reap() has killed it unless others use it
            has_ended = ended is not None or not self._is_shared
        code, cause = (None, ExitCause.OTHER) if ended is None else (ended.code, ended.cause)
        was_late = cause is ExitCause.LATE and self._timeout_secs is not None  # another client had it killed
        if was_late:
            self.exit_text = self._late_ending
        else:
            self.exit_text = describe_exit(code) if has_ended else "closed the connection to its owner"
        if cause is ExitCause.MEMORY:
            self._is_out_of_memory = True
            self.exit_text += ", since the machine had run out of memory"
        self._find_culprit(timed_out=was_late)

    def _kill_late(self, late: ActivitySnapshot | None = None) -> None:
        self._provider.reap(self.process, late=True)
        self.exit_text = self._late_ending
        self._find_culprit(timed_out=True, late=late)

    @property
    def _late_ending(self) -> str:
        return f"was killed, having taken longer than {self._timeout_secs:g} s"

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

    def _find_culprit(self, *, timed_out: bool, late: ActivitySnapshot | None = None) -> None:
        """Blames the request on the progress page, and closes the connection.

        No request is at fault if that one was answered, or the host had moved on since it was found to be ``late``.
        """
        # Take the responses that the host sent before it exited: those requests succeeded.
        with contextlib.suppress(EOFError, OSError):
            while not self._is_disconnected and self._channel_file in [file for file, _ in self._poll.poll(0)]:
                self._accept(*self._channel.receive(stall_secs=self._timeout_secs))
        snapshot = self._progress.read()
        with self._lock:
            self.has_begun = self.has_begun or self._progress.marks > _MARKS_AT_START
            request = self._pending.get(snapshot.call)
            if request and request.call() and late in (None, snapshot) and not self._is_disconnected:
                self.host_failure = HostFailure(snapshot, timed_out, self.exit_text, self._is_out_of_memory)
            self.release()

"""One host process as its owner sees it: requests on their way, memory lent, death and delay noticed."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakValueDictionary

from headrace.hosts.host import ClientChannel, HostReply, HostRequest
from headrace.hosts.provider import ExitCause, HostProvider, describe_exit
from headrace.ipc.codec import Decoded, Message, decode
from headrace.ipc.progress import ActivitySnapshot, Progress
from headrace.ipc.segment import PeerSegments, Segment, SegmentPool

_MOST_IN_FLIGHT = 32
"""So many requests may wait in a host's socket; more might fill it, and whoever sends would wait unwatched."""
_LAST_MOMENTS_MS = 1000
_LONGEST_START_SECS = 600
"""Where a host imports the handler's modules itself, that takes what it takes."""
_MARKS_AT_START = 1
_LONGEST_POLL_SECS = 86_400
"""Well within what poll() takes."""


class HostFailure(NamedTuple):
    """A request without an answer, since its host hung or died."""

    snapshot: ActivitySnapshot
    """What the host was doing."""
    timed_out: bool
    """Whether it took too long and was killed for it; else it died."""
    ending: str
    """How it ended, in words that follow "the host"."""
    out_of_memory: bool = False
    """Whether it is certain that the kernel killed it for want of memory."""
    device_lost: bool = False
    """Whether it ended itself, since no call on its device could succeed any more."""


class _Reply:
    """An answer, in memory of the host's that is used again once nobody wants to read the answer any more.

    Args:
        segment: the memory.
        size: of the answer, in bytes.
        call: its number.
        free: takes the number in the end.
    """

    def __init__(self, segment: Segment, size: int, call: int, free: deque[int]) -> None:
        self.memory = segment.memory[:size]
        self._segment = segment
        self._call = call
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._call)  # takes no lock, since a garbage collection may come here at any time


class _Lent(NamedTuple):
    """Memory that holds a request."""

    segment: Segment
    size: int
    """Of the request, in bytes."""
    sent: float
    """When, in seconds of the monotonic clock."""


class Call:
    """A request on its way; once it is forgotten, nobody waits for its answer."""

    def __init__(self, number: int, message: Message) -> None:
        self.number = number
        self.message = message
        self.connection: HostConnection | None = None
        self.reply: _Reply | None = None
        self.files: list[int] = []
        """Descriptors that came with the answer, now the caller's."""


class HostConnection:
    """One host process as one client knows it, from its birth, or the client's coming, to its end or his leaving.

    Args:
        host provider: has the host.
        number: of the host, where the host provider has several.
        timeout_secs: the longest that it may do one thing; None: any time.
    """

    def __init__(self, provider: HostProvider, number: int, timeout_secs: float | None) -> None:
        self._provider = provider
        self._timeout_secs = timeout_secs
        self._is_out_of_memory = False
        self._requests = SegmentPool()
        self._answers = PeerSegments()
        self._lent: dict[int, _Lent] = {}
        """The memory of requests without an answer, by call, in the order in which they were sent."""
        self._answered = 0
        """The last call that has been answered: the host may not have said yet that it is done with it."""
        self._free: deque[int] = deque()
        """Calls whose answers have been read, which the host has not yet been told."""
        self._calls: WeakValueDictionary[int, Call] = WeakValueDictionary()
        """Calls without an answer; one whose bundle was given up is forgotten."""
        self._changed = threading.Condition()
        self._is_read = False
        """Whether a thread waits for the host's next message, on behalf of all."""
        self._is_given_up = False
        """Whether this process ends it, so that no request is to blame."""
        self.has_begun = False
        """Whether it has ever begun a request."""
        self.is_over = False
        self.host_failure: HostFailure | None = None
        """Why it ended, if a request is to blame."""
        self.ending = ""
        self.process, self._channel, self._progress_segment, self.watched, self._is_shared = provider.host(number)
        self._progress = Progress(self._progress_segment.memory)
        self._poll = select.poll()
        for file in (self._channel.fileno(), self.watched):
            if file is not None:
                self._poll.register(file, select.POLLIN)

    @property
    def load(self) -> int:
        """How many requests it has to answer, as far as can be seen from here."""
        snapshot = self._progress.read()
        return len(self._lent) + (snapshot.call not in self._lent and snapshot.call not in (0, self._answered))

    @property
    def progress_file(self) -> int:
        """Shows others what the host does."""
        return self._progress_segment.file

    def introduce(self, file: int) -> None:
        """Has the host answer a guest at the other end of that file, too.

        Raises:
            OSError: the host is gone.
        """
        self._channel.send(ClientChannel(), [file])

    def look(self) -> None:
        """Sees whether the host has ended, if nobody is looking already."""
        self._lead_once(lambda: not self.is_over)

    def send(self, call: Call) -> bool:
        """Sends a request as soon as few enough are on their way; False if the host is gone."""
        self._wait(lambda: len(self._lent) < _MOST_IN_FLIGHT)
        size = call.message.nbytes
        with self._changed:
            segment = self._requests.take(size)
        try:
            call.message.write(segment.memory)
        except BaseException:
            with self._changed:
                self._requests.drop(segment)
            raise
        try:
            with self._changed:
                return self._send(call, segment, size)
        except OSError:
            return False
        except BaseException:  # Ctrl-C: who knows what the host has been told
            self._give_up()
            raise

    def wait(self, call: Call | None) -> None:
        """Until the call is answered or the host has ended."""
        self._wait(lambda: call is not None and call.reply is not None)

    def is_ready(self, call: Call) -> bool:
        """Whether ``wait`` would return at once."""
        self._lead_once(lambda: call.reply is None and not self.is_over)
        return call.reply is not None or self.is_over

    def _lead_once(self, is_open: Callable[[], bool]) -> None:
        """Takes what has come, if that is still of interest and nobody else is waiting for it."""
        leads = False
        try:
            with self._changed:
                if not self._is_read and is_open():
                    leads = self._is_read = True
            if leads:
                self._read_once(block=False)
        finally:
            if leads:
                self._hand_over()

    def read(self, call: Call) -> Decoded:
        """The answer to a call that has one; frees its memory."""
        reply, call.reply, call.connection = call.reply, None, None
        assert reply is not None
        return decode(reply.memory, known=call.message.columns, own=True)

    def end(self) -> None:
        """Ends it; nobody is to blame."""
        if not self.is_over:
            self._give_up()
            self.wait(None)

    def release(self) -> None:
        """Closes all but the memory of answers that are not read yet."""
        if not self.is_over:
            self.is_over = True
            self._channel.close()
            if self.watched is not None:
                os.close(self.watched)
                self.watched = None
            self._requests, self._answers = SegmentPool(), PeerSegments()
            self._lent.clear()
            self._progress_segment.close()

    def _send(self, call: Call, segment: Segment, size: int) -> bool:
        if self.is_over or self._is_given_up:
            return False
        call.connection = self
        self._calls[call.number] = call
        self._lent[call.number] = _Lent(segment, size, time.monotonic())
        files = self._requests.introduce(segment)
        free = [self._free.popleft() for _ in range(len(self._free))]
        dropped, self._requests.dropped = self._requests.dropped, []
        self._channel.send(HostRequest(call.number, segment.name, size, free, dropped), files)
        return True

    def _give_up(self) -> None:
        """Lets go of the host, which is seen to end soon."""
        self._is_given_up = True
        self._channel.shut_down()

    def _wait(self, is_settled: Callable[[], bool]) -> None:
        """Until something is so, or the host has ended; one thread at a time reads messages, on behalf of all."""
        while True:
            leads = False
            try:
                with self._changed:
                    while self._is_read and not (self.is_over or is_settled()):
                        self._changed.wait()
                    if self.is_over or is_settled():
                        return
                    leads = self._is_read = True
                self._read_once(block=True)
            finally:
                if leads:
                    self._hand_over()

    def _hand_over(self) -> None:
        with self._changed:
            self._is_read = False
            self._changed.notify_all()

    def _read_once(self, *, block: bool) -> None:
        ready = {file for file, _ in self._poll.poll(self._patience_ms() if block else 0)}
        if self._channel.fileno() in ready and not self._is_given_up:
            self._receive()
        elif ready:
            self._end_by_itself()
        elif self._timeout_secs is not None:
            self._end_if_late(self._timeout_secs)

    def _receive(self) -> None:
        try:
            self._take(*self._channel.receive())
        except EOFError:
            self._end_by_itself()
        except BaseException:  # Ctrl-C, or too many open files: an answer is lost
            self._give_up()
            raise

    def _patience_ms(self) -> int | None:
        """How long to wait until it must have moved on."""
        if self._timeout_secs is None:
            return None
        left = self._timeout_secs - max(0.0, self._delay(self._progress.read()))
        return int(min(max(0, left), _LONGEST_POLL_SECS) * 1000) + 1

    def _take(self, reply: HostReply, files: list[int]) -> None:
        with self._changed:
            self.has_begun = True
            self._answers.drop(reply.dropped)
            answer = self._answers.segment(reply.segment, files)  # what is left of the files is the request handler's
            request = self._lent.pop(reply.call)
            self._answered = reply.call
            if reply.kept:
                self._requests.drop(request.segment)
            else:
                self._requests.give_back(request.segment, request.size)
            call = self._calls.pop(reply.call, None)
            if call is None:
                self._free.append(reply.call)
                for file in files:
                    os.close(file)
            else:
                call.files = files
                call.reply = _Reply(answer, reply.size, reply.call, self._free)

    def _end_by_itself(self) -> None:
        if self._is_given_up and self._is_shared:  # it lives on for others
            self.ending = "was left"
            with self._changed:
                self.release()
            return
        has_ended = self._await_end()
        ended = self._provider.reap(self.process)
        if has_ended is None:  # one that others use is left alone while it runs; any other has been ended by now
            has_ended = ended is not None or not self._is_shared
        cause = ended.cause if ended is not None else ExitCause.OTHER
        was_late = cause is ExitCause.LATE and self._timeout_secs is not None  # as another client has noticed
        if was_late:
            self.ending = self._late_ending
        else:
            code = ended.code if ended is not None else None
            self.ending = describe_exit(code) if has_ended else "closed the connection to its owner"
            if cause is ExitCause.MEMORY:
                self._is_out_of_memory = True
                self.ending += ", since the machine had run out of memory"
        self._find_culprit(timed_out=was_late)

    def _await_end(self) -> bool | None:
        """Gives it, once the connection has ended, a moment to end in its own way; returns whether it has, if known."""
        if self.watched is None:
            return None
        poll = select.poll()
        poll.register(self.watched, select.POLLIN)
        return bool(poll.poll(_LAST_MOMENTS_MS))

    def _end_if_late(self, timeout_secs: float) -> None:
        late = self._progress.read()
        if self._delay(late) > timeout_secs:
            self._provider.reap(self.process, late=True)
            self.ending = self._late_ending
            self._find_culprit(timed_out=True, late=late)

    @property
    def _late_ending(self) -> str:
        return f"was killed, having taken longer than {self._timeout_secs:g} s"

    def _delay(self, snapshot: ActivitySnapshot) -> float:
        """For how many seconds it has been busy with one thing; or, with nothing to do, has left requests alone."""
        if snapshot.call:
            return 0.0 if snapshot.is_elsewhere else snapshot.seconds
        with self._changed:
            oldest = next(iter(self._lent.values()), None)
        if oldest is None:
            return 0.0
        waiting = time.monotonic() - oldest.sent
        return min(snapshot.seconds, waiting) if snapshot.since_ns else waiting - _LONGEST_START_SECS

    def _find_culprit(self, *, timed_out: bool, late: ActivitySnapshot | None = None) -> None:
        """The request on which it was working is to blame, unless that was answered or had just gone on."""
        with contextlib.suppress(EOFError, OSError):
            while not self._is_given_up and self._channel.fileno() in {file for file, _ in self._poll.poll(0)}:
                self._take(*self._channel.receive())
        snapshot = self._progress.read()
        with self._changed:
            self.has_begun = self.has_begun or self._progress.marks > _MARKS_AT_START
            if snapshot.call in self._calls and late in (None, snapshot) and not self._is_given_up:
                self.host_failure = HostFailure(snapshot, timed_out, self.ending, self._is_out_of_memory)
            self.release()

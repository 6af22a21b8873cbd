"""The owner's side of a model host: sends requests, waits for answers, notices death and delay, starts another."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakSet, WeakValueDictionary

from headrace.core.errors import HostStartError
from headrace.hosting.channel import Channel
from headrace.hosting.encoding import Decoded, Message, decode, encode
from headrace.hosting.host import Reply, Request
from headrace.hosting.nursery import Nursery, how_ended
from headrace.hosting.progress import Moment, Progress
from headrace.hosting.segment import Attached, Segment, SegmentPool
from headrace.hosting.system import oom_kills, watch

_MOST_STILLBORN = 5
"""So many hosts in a row may end before they have begun any request."""
_MOST_IN_FLIGHT = 32
"""So many requests may wait in a host's socket; more might fill it, and whoever sends would wait unwatched."""
_LAST_MOMENTS_MS = 1000
_LONGEST_POLL_SECS = 86_400
"""Well within what poll() takes."""


class Loss(NamedTuple):
    """A request without an answer, since its host hung or died."""

    moment: Moment
    """What the host was doing."""
    timed_out: bool
    """Whether it took too long and was killed for it; else it died."""
    ending: str
    """How it ended, in words that follow "the host"."""


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


class Call:
    """A request on its way; once it is forgotten, nobody waits for its answer."""

    def __init__(self, number: int, message: Message) -> None:
        self.number = number
        self.message = message
        self.life: _Life | None = None
        self.reply: _Reply | None = None


class ModelHost:
    """A host for a model, and the next one should that be lost; thread-safe.

    A process forked from its owner may use it, too, and gets a host of its own.

    Args:
        servant: pickled; see ``headrace.hosting.host.Servant``.
        name: of the model, for the log and for errors.
        timeout_secs: the longest that a host may do one thing; None: any time.
    """

    def __init__(self, servant: bytes, name: str, timeout_secs: float | None) -> None:
        self._servant = servant
        self._name = name
        self._timeout_secs = timeout_secs
        self._numbers = count(1)
        self._life: _Life | None = None
        self._is_closed = False
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._nursery = Nursery(self._servant, self._name)
        self._changing = threading.Lock()
        self._stillborn = 0
        if self._life is not None:
            self._life.let_go()

    def submit(self, head: Any, rows: list[Any]) -> Call:
        """Sends a request; several may be on their way, the host takes them in turn.

        Raises:
            HostStartError: there is no host to be had.
            Exception: the request cannot be pickled.
        """
        call = Call(next(self._numbers), encode(head, rows))
        self._send(call)
        return call

    def result(self, call: Call) -> Decoded | Loss:
        """Waits for the answer; a request whose host is lost through no fault of its own is sent to the next one.

        Each call has one result, and one thread that asks for it.

        Raises:
            HostStartError: there is no next host to be had.
            Exception: the answer cannot be unpickled.
        """
        while True:
            life = call.life
            assert life is not None, "a call has only one result"
            if not life.is_over:
                life.wait(call)
            if call.reply is not None:
                return life.read(call)
            if life.loss is not None and life.loss.moment.call == call.number:
                return life.loss
            self._send(call)

    def is_ready(self, call: Call) -> bool:
        """Whether ``result`` would not wait for the host to which the request was sent."""
        life = call.life
        return life is None or life.is_over or life.is_ready(call)

    def close(self) -> None:
        """Ends the host and everything with it, for good; waits a second at most for what it is doing."""
        self._is_closed = True
        self._nursery.hurry()
        with self._changing:
            if self._life is not None:
                self._life.end()
            self._nursery.close()

    def _send(self, call: Call) -> None:
        while True:
            life = self._current()
            if life.send(call):
                return
            life.wait(None)  # until it is seen to have ended

    def _current(self) -> _Life:
        with self._changing:
            if self._is_closed:
                raise HostStartError(self._name, "its owner has closed it.")
            if self._life is None or self._life.is_over:
                self._look_at_the_dead(self._life)
                try:
                    self._life = _Life(self._nursery, self._timeout_secs)
                except OSError as error:
                    raise HostStartError(self._name, f"{error}.") from error
            return self._life

    def _look_at_the_dead(self, life: _Life | None) -> None:
        self._stillborn = self._stillborn + 1 if life and not life.has_begun else 0
        if life and self._stillborn >= _MOST_STILLBORN:
            self._life, self._stillborn = None, 0  # whoever asks next may try again
            raise HostStartError(self._name, f"it {life.ending} before its first request, {_MOST_STILLBORN} times.")


_ALL: WeakSet[ModelHost] = WeakSet()


def _begin_anew() -> None:
    """In a process forked from an owner: the hosts are the parent's, which must not be disturbed."""
    for host in list(_ALL):
        host._begin()


os.register_at_fork(after_in_child=_begin_anew)


class _Life:
    """One host process, from its birth to its end."""

    def __init__(self, nursery: Nursery, timeout_secs: float | None) -> None:
        self._nursery = nursery
        self._timeout_secs = timeout_secs
        self._oom_kills = oom_kills()
        self._progress_segment = Segment.create(0, Progress.SIZE)
        self._progress = Progress(self._progress_segment.memory)
        self._requests = SegmentPool()
        self._answers = Attached()
        self._lent: dict[int, tuple[Segment, int]] = {}
        """Segments that hold requests, each with the size of the request."""
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
        self.loss: Loss | None = None
        """Why it ended, if a request is to blame."""
        self.ending = ""
        self._channel, theirs = Channel.pair()
        try:
            self._process = nursery.fork(theirs.fileno(), self._progress_segment.file)
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self._watched = watch(self._process)
        self._poll = select.poll()
        for file in (self._channel.fileno(), self._watched):
            if file is not None:
                self._poll.register(file, select.POLLIN)

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
        with self._changed:
            leads = not self._is_read and call.reply is None and not self.is_over
            self._is_read = self._is_read or leads
        if leads:
            try:
                self._read_once(block=False)
            finally:
                self._hand_over()
        return call.reply is not None or self.is_over

    def read(self, call: Call) -> Decoded:
        """The answer to a call that has one; frees its memory."""
        reply, call.reply, call.life = call.reply, None, None
        assert reply is not None
        return decode(reply.memory, known=call.message.columns, own=True)

    def end(self) -> None:
        """Ends it; nobody is to blame."""
        if not self.is_over:
            self._give_up()
            self.wait(None)

    def let_go(self) -> None:
        """Closes all but the memory of answers that are not read yet."""
        if not self.is_over:
            self.is_over = True
            self._channel.close()
            if self._watched is not None:
                os.close(self._watched)
            self._requests, self._answers = SegmentPool(), Attached()
            self._lent.clear()
            self._progress_segment.close()

    def _send(self, call: Call, segment: Segment, size: int) -> bool:
        if self.is_over or self._is_given_up:
            return False
        call.life = self
        self._calls[call.number] = call
        self._lent[call.number] = segment, size
        files = self._requests.introduce(segment)
        free = [self._free.popleft() for _ in range(len(self._free))]
        dropped, self._requests.dropped = self._requests.dropped, []
        self._channel.send(Request(call.number, segment.name, size, free, dropped), files)
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
        moment = self._progress.read()
        left = self._timeout_secs - moment.seconds if moment.call else self._timeout_secs
        return int(min(max(0, left), _LONGEST_POLL_SECS) * 1000) + 1

    def _take(self, reply: Reply, files: list[int]) -> None:
        with self._changed:
            self.has_begun = True
            self._answers.drop(reply.dropped)
            answer = self._answers.segment(reply.segment, files)
            request, size = self._lent.pop(reply.call)
            if reply.kept:
                self._requests.drop(request)
            else:
                self._requests.give_back(request, size)
            call = self._calls.pop(reply.call, None)
            if call is None:
                self._free.append(reply.call)
            else:
                call.reply = _Reply(answer, reply.size, reply.call, self._free)

    def _end_by_itself(self) -> None:
        has_ended = self._await_end()
        code = self._nursery.bury(self._process)
        self.ending = how_ended(code) if has_ended else "closed the connection to its owner"
        if code == -signal.SIGKILL and has_ended and oom_kills() > self._oom_kills:
            self.ending += ", since the machine had run out of memory"
        self._find_culprit(timed_out=False)

    def _await_end(self) -> bool:
        """Gives it, once the connection has ended, a moment to end in its own way; returns whether it has, if known."""
        if self._watched is None:
            return True
        poll = select.poll()
        poll.register(self._watched, select.POLLIN)
        return bool(poll.poll(_LAST_MOMENTS_MS))

    def _end_if_late(self, timeout_secs: float) -> None:
        late = self._progress.read()
        if late.call and late.seconds > timeout_secs:
            self._nursery.bury(self._process)
            self.ending = f"was killed, having taken longer than {timeout_secs:g} s"
            self._find_culprit(timed_out=True, late=late)

    def _find_culprit(self, *, timed_out: bool, late: Moment | None = None) -> None:
        """The request on which it was working is to blame, unless that was answered or had just gone on."""
        with contextlib.suppress(EOFError, OSError):
            while not self._is_given_up and self._channel.fileno() in {file for file, _ in self._poll.poll(0)}:
                self._take(*self._channel.receive())
        moment = self._progress.read()
        with self._changed:
            self.has_begun = self.has_begun or moment.call > 0
            if moment.call in self._calls and late in (None, moment) and not self._is_given_up:
                self.loss = Loss(moment, timed_out, self.ending)
            self.let_go()

"""The owner's side of a model host: sends requests, waits for answers, notices death and delay, starts another."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

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

_LAST_MOMENTS_SECS = 1.0


class Loss(NamedTuple):
    """A request without an answer, since its host hung or died."""

    moment: Moment
    """What the host was doing."""
    timed_out: bool
    """Whether it took too long and was killed for it; else it died."""
    ending: str
    """How it ended, in words that follow "the host"."""


class Call:
    """A request on its way."""

    def __init__(self, number: int, message: Message) -> None:
        self.number = number
        self.message = message
        self.life: _Life | None = None
        self.reply: tuple[Segment, int] | None = None


class ModelHost:
    """A host for a model, and the next one should that be lost; thread-safe.

    Args:
        servant: pickled; see ``headrace.hosting.host.Servant``.
        name: of the model, for the log and for errors.
        timeout_secs: the longest that a host may do one thing; None: any time.
    """

    def __init__(self, servant: bytes, name: str, timeout_secs: float | None) -> None:
        self._nursery = Nursery(servant, name)
        self._name = name
        self._timeout_secs = timeout_secs
        self._numbers = count(1)
        self._changing = threading.Lock()
        self._life: _Life | None = None
        self._stillborn = 0

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
        """Waits for the answer; a request whose host is lost through no fault of its own is sent to the next one."""
        while True:
            life = call.life
            assert life is not None
            life.wait(call)
            if call.reply is not None:
                return life.read(call)
            if life.loss is not None and life.loss.moment.call == call.number:
                return life.loss
            self._send(call)

    def is_ready(self, call: Call) -> bool:
        """Whether ``result`` would not wait."""
        life = call.life
        return life is None or life.is_ready(call)

    def close(self) -> None:
        """Ends the host and everything with it."""
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
            if self._life is None or self._life.is_over:
                self._stillborn = self._stillborn + 1 if self._life and not self._life.has_begun else 0
                if self._stillborn >= _MOST_STILLBORN:
                    ending = self._life.ending if self._life else ""
                    raise HostStartError(self._name, f"it {ending} before its first request, {_MOST_STILLBORN} times.")
                self._life = _Life(self._nursery, self._timeout_secs)
            return self._life


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
        self._free: list[int] = []
        """Calls whose answers have been read, which the host has not yet been told."""
        self._calls: WeakValueDictionary[int, Call] = WeakValueDictionary()
        """Calls without an answer; one whose bundle was given up is forgotten."""
        self._changed = threading.Condition()
        self._is_read = False
        """Whether a thread waits for the host's next message, on behalf of all."""
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
        """Sends a request; False if the host is gone."""
        size = call.message.nbytes
        with self._changed:
            segment = self._requests.take(size)
        call.message.write(segment.memory)
        with self._changed:
            if self.is_over:
                return False
            call.life = self
            self._calls[call.number] = call
            self._lent[call.number] = segment, size
            files = self._requests.introduce(segment)
            free, self._free = self._free, []
            dropped, self._requests.dropped = self._requests.dropped, []
            try:
                self._channel.send(Request(call.number, segment.name, size, free, dropped), files)
            except OSError:
                return False
        return True

    def wait(self, call: Call | None) -> None:
        """Until the call is answered or the host has ended."""
        while True:
            with self._changed:
                while self._is_read and not self._is_settled(call):
                    self._changed.wait()
                if self._is_settled(call):
                    return
                self._is_read = True
            self._take_turn(block=True)

    def is_ready(self, call: Call) -> bool:
        """Whether ``wait`` would return at once."""
        with self._changed:
            if self._is_read or self._is_settled(call):
                return self._is_settled(call)
            self._is_read = True
        self._take_turn(block=False)
        return self._is_settled(call)

    def read(self, call: Call) -> Decoded:
        """The answer to a call that has one."""
        assert call.reply is not None
        segment, size = call.reply
        try:
            return decode(segment.memory[:size], known=call.message.columns, own=True)
        finally:
            with self._changed:
                self._free.append(call.number)

    def end(self) -> None:
        """Ends it; nobody is to blame."""
        with self._changed:
            if self.is_over:
                return
            self._channel.close()
        self._await_end()
        self._nursery.bury(self._process)
        with self._changed:
            self._let_go()
            self._changed.notify_all()

    def _is_settled(self, call: Call | None) -> bool:
        return self.is_over or (call is not None and call.reply is not None)

    def _take_turn(self, *, block: bool) -> None:
        try:
            self._read_once(block=block)
        finally:
            with self._changed:
                self._is_read = False
                self._changed.notify_all()

    def _read_once(self, *, block: bool) -> None:
        ready = {file for file, _ in self._poll.poll(self._patience_ms() if block else 0)}
        if self._channel.fileno() in ready:
            try:
                self._take(*self._channel.receive())
            except EOFError:
                self._end_by_itself()
        elif ready:
            self._end_by_itself()
        elif self._timeout_secs is not None:
            self._end_if_late(self._timeout_secs)

    def _patience_ms(self) -> int | None:
        """How long to wait until it must have moved on."""
        if self._timeout_secs is None:
            return None
        moment = self._progress.read()
        left = self._timeout_secs - moment.seconds if moment.call else self._timeout_secs
        return max(0, int(left * 1000)) + 1

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
                call.reply = answer, reply.size

    def _end_by_itself(self) -> None:
        self._await_end()
        code = self._nursery.bury(self._process)
        self.ending = how_ended(code)
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            self.ending += ", since the machine had run out of memory"
        self._find_culprit(timed_out=False)

    def _await_end(self) -> None:
        """Gives it, once the channel is closed at either end, a moment to end in its own way."""
        if self._watched is not None:
            select.select([self._watched], [], [], _LAST_MOMENTS_SECS)

    def _end_if_late(self, timeout_secs: float) -> None:
        late = self._progress.read()
        if late.call and late.seconds > timeout_secs:
            self._nursery.bury(self._process)
            self.ending = f"was killed, having taken longer than {timeout_secs:g} s"
            self._find_culprit(timed_out=True, late=late)

    def _find_culprit(self, *, timed_out: bool, late: Moment | None = None) -> None:
        """The request on which it was working is to blame, unless that was answered or had just gone on."""
        with contextlib.suppress(EOFError):
            while self._channel.fileno() in {file for file, _ in self._poll.poll(0)}:
                self._take(*self._channel.receive())
        moment = self._progress.read()
        with self._changed:
            self.has_begun = self.has_begun or moment.call > 0
            if moment.call in self._calls and late in (None, moment):
                self.loss = Loss(moment, timed_out, self.ending)
            self._let_go()

    def _let_go(self) -> None:
        """Closes all but the memory of answers that are not read yet."""
        if not self.is_over:
            self.is_over = True
            self._channel.close()
            if self._watched is not None:
                os.close(self._watched)
            self._requests, self._answers = SegmentPool(), Attached()
            self._lent.clear()
            self._progress_segment.close()

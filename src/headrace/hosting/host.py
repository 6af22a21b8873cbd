"""The process in which a model lives: takes requests, has the servant answer them, says where it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.hosting.channel import Channel
from headrace.hosting.encoding import Columns, Message, decode, encode
from headrace.hosting.progress import Doing, Progress
from headrace.hosting.segment import Attached, Segment, SegmentPool


class Request(NamedTuple):
    """From owner to host: there are ``size`` bytes in a segment."""

    call: int
    segment: int
    size: int
    free: list[int]
    """Calls whose answers have been read: their segments may be used again."""
    dropped: list[int]
    """The owner's segments that are no longer used."""


class Reply(NamedTuple):
    """From host to owner: there are ``size`` bytes in a segment."""

    call: int
    segment: int
    size: int
    dropped: list[int]
    kept: bool
    """Whether something in the host still refers to the request's memory, which must not be used again then."""


class Answer(NamedTuple):
    """What a servant says to a request."""

    head: Any
    rows: Sequence[Any] = ()
    positions: Sequence[int] | None = None
    """To which row of the request each row belongs; None: in order."""
    reducers: Mapping[type, Callable[[Any], Any]] | None = None
    """How to pickle what does not pickle by itself."""
    echoes: bool = True
    """Whether what the request held, and the rows hold, is as it was sent."""


class Servant(Protocol):
    """Answers requests; raises nothing that its owner should be told of."""

    def answer(self, head: Any, rows: list[Any], progress: Progress) -> Answer:
        """Does what ``head`` says with ``rows``; marks its ``progress``."""
        ...

    def unreadable(self, error: Exception) -> Answer:
        """Says that a request cannot be unpickled."""
        ...

    def unsendable(self, answer: Answer, error: Exception) -> Answer:
        """Says the same as ``answer``, less what cannot be pickled."""
        ...

    def close(self) -> None:
        """Lets go of what it has; the host ends."""
        ...


def serve(servant: Servant, channel: Channel, progress_file: int) -> None:
    """Answers requests until the owner ends the connection."""
    shared = Segment(0, progress_file, os.fstat(progress_file).st_size)
    progress = Progress(shared.memory)
    progress.end()  # ready to begin
    server = _Server(servant, progress)
    while True:
        try:
            request, files = channel.receive()
        except EOFError:
            break
        progress.begin(request.call)
        reply, files = server.handle(request, files)
        try:
            channel.send(reply, files)
        except ConnectionError:  # the owner did not wait for it
            break
        progress.end()  # until then, a host that ends owes an answer
    servant.close()


class _Server:
    def __init__(self, servant: Servant, progress: Progress) -> None:
        self._servant = servant
        self._progress = progress
        self._requests = Attached()
        self._answers = SegmentPool()
        self._unread: dict[int, tuple[Segment, int]] = {}

    def handle(self, request: Request, files: list[int]) -> tuple[Reply, list[int]]:
        """What to send to a request, and the files to send with it."""
        self._requests.drop(request.dropped)
        for call in request.free:
            self._answers.give_back(*self._unread.pop(call))
        memory, is_kept = self._requests.segment(request.segment, files).lend(request.size)
        message = self._answer(memory)
        del memory
        segment = self._answers.take(message.nbytes)
        message.write(segment.memory)
        size = message.nbytes
        del message  # the answer may be all that still refers to the request
        self._unread[request.call] = segment, size
        introduced = self._answers.introduce(segment)
        dropped, self._answers.dropped = self._answers.dropped, []
        return Reply(request.call, segment.name, size, dropped, is_kept()), introduced

    def _answer(self, memory: memoryview) -> Message:
        known: Columns | None = None
        try:
            head, rows, known = decode(memory, own=False)
        except Exception as error:
            answer = self._servant.unreadable(error)
        else:
            answer = self._servant.answer(head, rows, self._progress)
            del rows
        self._progress.mark(Doing.ANSWERING)
        try:
            return _encode(answer, known)
        except Exception as error:
            return _encode(self._servant.unsendable(answer, error), known)


def _encode(answer: Answer, known: Columns | None) -> Message:
    head, rows, positions, reducers, echoes = answer
    return encode(head, rows, known=known if echoes else None, positions=positions, reducers=reducers)

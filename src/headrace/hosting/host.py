"""The process in which a model lives: takes requests, has the servant answer them, says where it is."""

from __future__ import annotations

import os
import pickle
import select
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from headrace.core.files import keep_copies, kept_copies
from headrace.hosting.arena import Arena, NotMappableError, export
from headrace.hosting.channel import Channel
from headrace.hosting.encoding import Columns, Message, decode, encode
from headrace.hosting.progress import Doing, Progress
from headrace.hosting.segment import Attached, Segment, SegmentPool
from headrace.hosting.system import peak_bytes

_MOST_COPIES = 4
"""So many files go with a message besides."""


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


class Guest(NamedTuple):
    """From owner to host: somebody else will send requests, too, through the file that comes with this."""


class Export(NamedTuple):
    """A request's head: load, and put into an arena what others can map."""

    work: bytes
    """Pickled; the request to the servant that has it load."""
    refusal: str = ""
    """Why it should not be put into an arena after all, if so."""


class Exported(NamedTuple):
    """The answer's head; where there is an arena, its file comes along, and the host is of no more use."""

    told: bytes
    """What the servant said to the work: a message, for whoever can read it."""
    arena: Arena | None = None
    reason: str = ""
    """Why there is no arena; empty: loading has failed, as the servant told."""
    peak: int | None = None
    """Bytes of memory that this process has had at a time, at most; None: unknown."""
    copies: Sequence[str] = ()
    """URIs of which this machine has copies now; their files come along, last."""


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
    files: Sequence[int] = ()
    """Descriptors that go along, and are closed here."""
    is_last: bool = False
    """Whether the host ends once this is said, whatever else it was asked for."""


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

    def exports(self, work: Any) -> Any:
        """What ``work`` has had it load, for ``attach`` in other processes; None if that has failed."""
        ...

    def attach(self, work: Any, value: Any) -> None:
        """Takes what another one has exported, so that it need not be loaded."""
        ...

    def close(self) -> None:
        """Lets go of what it has; the host ends."""
        ...


def serve(servant: Servant, channel: Channel, progress_file: int) -> None:
    """Answers requests, the owner's and those of its guests, until the owner ends the connection, or a last answer.

    What has been exported is not closed: it lives on elsewhere, and its memory here is not what it was.
    """
    shared = Segment(0, progress_file, os.fstat(progress_file).st_size)
    progress = Progress(shared.memory)
    progress.end()  # ready to begin
    owner = channel.fileno()
    clients = {owner: _Client(servant, progress, channel)}
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    is_wanted = True
    while is_wanted:
        for file, _ in poll.poll():
            guests = clients[file].serve()
            if clients[file].is_last:
                return  # what the servant has cannot be let go of in order
            if guests is None and file == owner:
                is_wanted = False
            elif guests is None:
                poll.unregister(file)
                clients.pop(file).close()
            for guest in guests or ():
                clients[guest] = _Client(servant, progress, Channel.inherited(guest))
                poll.register(guest, select.POLLIN)
    if not any(client.has_exported for client in clients.values()):
        servant.close()


class _Client:
    """One end of a connection: the owner's or a guest's, with the memory that goes to and fro."""

    def __init__(self, servant: Servant, progress: Progress, channel: Channel) -> None:
        self._servant = servant
        self._progress = progress
        self._channel = channel
        self._requests = Attached()
        self._answers = SegmentPool()
        self._unread: dict[int, tuple[Segment, int]] = {}
        self.has_exported = False
        self.is_last = False
        """Whether it has got the host's last answer."""

    def serve(self) -> list[int] | None:
        """Answers one request; returns the files of new guests, None if this one has left."""
        try:
            request, files = self._channel.receive()
        except EOFError:
            return None
        if isinstance(request, Guest):
            return files
        self._progress.begin(request.call)
        is_here = True
        try:
            self._handle(request, files)
        except ConnectionError:  # it did not wait for the answer
            is_here = False
        self._progress.end()  # until then, a host that ends owes an answer
        return [] if is_here else None

    def close(self) -> None:
        """Lets go of the connection."""
        self._channel.close()

    def _handle(self, request: Request, files: list[int]) -> None:
        self._requests.drop(request.dropped)
        for call in request.free:
            self._answers.give_back(*self._unread.pop(call))
        memory, is_kept = self._requests.segment(request.segment, files).lend(request.size)
        message, more = self._answer(memory)
        del memory
        segment = self._answers.take(message.nbytes)
        message.write(segment.memory)
        size = message.nbytes
        del message  # the answer may be all that still refers to the request
        self._unread[request.call] = segment, size
        introduced = self._answers.introduce(segment)
        dropped, self._answers.dropped = self._answers.dropped, []
        reply = Reply(request.call, segment.name, size, dropped, is_kept())
        try:
            self._channel.send(reply, [*introduced, *more])
        finally:
            for file in more:
                os.close(file)

    def _answer(self, memory: memoryview) -> tuple[Message, Sequence[int]]:
        known: Columns | None = None
        try:
            head, rows, known = decode(memory, own=False)
        except Exception as error:
            answer = self._servant.unreadable(error)
        else:
            if isinstance(head, Export):
                answer = self._export(head)
            else:
                answer = self._servant.answer(head, rows, self._progress)
            del rows
        self._progress.mark(Doing.ANSWERING)
        try:
            message = _encode(answer, known)
        except Exception as error:
            answer = self._servant.unsendable(answer, error)._replace(files=answer.files)
            message = _encode(answer, known)
        self.is_last = answer.is_last
        return message, answer.files

    def _export(self, request: Export) -> Answer:
        work = pickle.loads(request.work)
        keep_copies(kept_copies())
        answer = self._servant.answer(work, [], self._progress)
        message = _encode(answer, None)
        told = bytearray(message.nbytes)
        message.write(memoryview(told))
        value = self._servant.exports(work)
        if value is None:
            return Answer(Exported(bytes(told)), is_last=answer.is_last)
        try:
            if request.refusal:
                raise NotMappableError(request.refusal)
            file, arena = export(value)
        except NotMappableError as error:
            copies = dict(islice(kept_copies().items(), _MOST_COPIES))
            files = [os.dup(copy) for copy in copies.values()]
            return Answer(Exported(bytes(told), None, str(error), peak_bytes(), tuple(copies)), files=files)
        self.has_exported = True
        return Answer(Exported(bytes(told), arena, peak=peak_bytes()), files=[file])


def _encode(answer: Answer, known: Columns | None) -> Message:
    head, rows, positions, reducers, echoes, *_ = answer
    return encode(head, rows, known=known if echoes else None, positions=positions, reducers=reducers)

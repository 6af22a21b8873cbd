"""The process in which a model lives: takes requests, has the request handler answer them, says where it is."""

from __future__ import annotations

import os
import pickle
import select
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from headrace.core.files import keep_copies, kept_copies
from headrace.hosts.system import peak_bytes
from headrace.ipc.channel import Channel
from headrace.ipc.codec import Message, RequestColumns, decode, encode
from headrace.ipc.progress import Activity, Progress
from headrace.ipc.segment import PeerSegments, Segment, SegmentPool
from headrace.ipc.weights_file import NotMappableError, WeightsFile, export

_MOST_COPIES = 4
"""So many files go with a message besides."""


class HostRequest(NamedTuple):
    """From owner to host: there are ``size`` bytes in a segment."""

    call: int
    segment: int
    size: int
    free: list[int]
    """Calls whose answers have been read: their segments may be used again."""
    dropped: list[int]
    """The owner's segments that are no longer used."""


class HostReply(NamedTuple):
    """From host to owner: there are ``size`` bytes in a segment."""

    call: int
    segment: int
    size: int
    dropped: list[int]
    kept: bool
    """Whether something in the host still refers to the request's memory, which must not be used again then."""


class ClientChannel(NamedTuple):
    """From owner to host: somebody else will send requests, too, through the file that comes with this."""


class Export(NamedTuple):
    """A request's head: load, and put into an arena what others can map."""

    work: bytes
    """Pickled; the request to the request handler that has it load."""
    refusal: str = ""
    """Why it should not be put into an arena after all, if so."""


class Exported(NamedTuple):
    """The answer's head; where there is an arena, its file comes along, and the host is of no more use."""

    told: bytes
    """What the request handler said to the work: a message, for whoever can read it."""
    arena: WeightsFile | None = None
    reason: str = ""
    """Why there is no arena; empty: loading has failed, as the request handler told."""
    peak: int | None = None
    """Bytes of memory that this process has had at a time, at most; None: unknown."""
    copies: Sequence[str] = ()
    """URIs of which this machine has copies now; their files come along, last."""


class Response(NamedTuple):
    """What a request handler says to a request."""

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


class RequestHandler(Protocol):
    """Answers requests; raises nothing that its owner should be told of."""

    def answer(self, head: Any, rows: list[Any], progress: Progress) -> Response:
        """Does what ``head`` says with ``rows``; marks its ``progress``."""
        ...

    def unreadable(self, error: Exception) -> Response:
        """Says that a request cannot be unpickled."""
        ...

    def unsendable(self, answer: Response, error: Exception) -> Response:
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


def serve(request_handler: RequestHandler, channel: Channel, progress_file: int) -> None:
    """Answers requests, the owner's and those of its guests, until the owner ends the connection, or a last answer.

    What has been exported is not closed: it lives on elsewhere, and its memory here is not what it was.
    """
    shared = Segment(0, progress_file, os.fstat(progress_file).st_size)
    progress = Progress(shared.memory)
    progress.end()  # ready to begin
    owner = channel.fileno()
    clients = {owner: _Client(request_handler, progress, channel)}
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    is_wanted = True
    while is_wanted:
        for file, _ in poll.poll():
            guests = clients[file].serve()
            if clients[file].is_last:
                return  # what the request handler has cannot be let go of in order
            if guests is None and file == owner:
                is_wanted = False
            elif guests is None:
                poll.unregister(file)
                clients.pop(file).close()
            for guest in guests or ():
                clients[guest] = _Client(request_handler, progress, Channel.inherited(guest))
                poll.register(guest, select.POLLIN)
    if not any(client.has_exported for client in clients.values()):
        request_handler.close()


class _Client:
    """One end of a connection: the owner's or a guest's, with the memory that goes to and fro."""

    def __init__(self, request_handler: RequestHandler, progress: Progress, channel: Channel) -> None:
        self._request_handler = request_handler
        self._progress = progress
        self._channel = channel
        self._requests = PeerSegments()
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
        if isinstance(request, ClientChannel):
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

    def _handle(self, request: HostRequest, files: list[int]) -> None:
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
        reply = HostReply(request.call, segment.name, size, dropped, is_kept())
        try:
            self._channel.send(reply, [*introduced, *more])
        finally:
            for file in more:
                os.close(file)

    def _answer(self, memory: memoryview) -> tuple[Message, Sequence[int]]:
        known: RequestColumns | None = None
        try:
            head, rows, known = decode(memory, own=False)
        except Exception as error:
            answer = self._request_handler.unreadable(error)
        else:
            if isinstance(head, Export):
                answer = self._export(head)
            else:
                answer = self._request_handler.answer(head, rows, self._progress)
            del rows
        self._progress.mark(Activity.ANSWERING)
        try:
            message = _encode(answer, known)
        except Exception as error:
            answer = self._request_handler.unsendable(answer, error)._replace(files=answer.files)
            message = _encode(answer, known)
        self.is_last = answer.is_last
        return message, answer.files

    def _export(self, request: Export) -> Response:
        work = pickle.loads(request.work)
        keep_copies(kept_copies())
        answer = self._request_handler.answer(work, [], self._progress)
        message = _encode(answer, None)
        told = bytearray(message.nbytes)
        message.write(memoryview(told))
        value = self._request_handler.exports(work)
        if value is None:
            return Response(Exported(bytes(told)), is_last=answer.is_last)
        try:
            if request.refusal:
                raise NotMappableError(request.refusal)
            file, arena = export(value)
        except NotMappableError as error:
            copies = dict(islice(kept_copies().items(), _MOST_COPIES))
            files = [os.dup(copy) for copy in copies.values()]
            return Response(Exported(bytes(told), None, str(error), peak_bytes(), tuple(copies)), files=files)
        self.has_exported = True
        return Response(Exported(bytes(told), arena, peak=peak_bytes()), files=[file])


def _encode(answer: Response, known: RequestColumns | None) -> Message:
    head, rows, positions, reducers, echoes, *_ = answer
    return encode(head, rows, known=known if echoes else None, positions=positions, reducers=reducers)

"""The host process: receives requests, has the request handler process them, marks its progress, sends responses."""

from __future__ import annotations

import os
import pickle
import select
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headrace.core.files import keep_copies, kept_copies
from headrace.hosts.client import client_of
from headrace.hosts.provider import ClientChannel, Exclusive, Withdrawal
from headrace.ipc.channel import LONGEST_INLINE, Channel, Content, Frame, Link, Outgoing
from headrace.ipc.codec import Columns, Decoded, Message, decode, encode
from headrace.ipc.progress import Activity, Progress
from headrace.ipc.segment import Segment
from headrace.ipc.weights_file import NotMappableError, WeightsLayout, export
from headrace.models.memory import peak_bytes

if TYPE_CHECKING:  # it needs asyncio, which the machine's manager does without
    from headrace.hosts.side_by_side import SideBySide

_LONGEST_STALL_SECS = 10.0
"""How long a client may be stopped in the middle of a message, while others wait; the owner may be for ever."""
_MOST_COPIES = 4
"""Limit of local copies of remote files sent with a message, which carries at most 8 descriptors in all."""


class Export(NamedTuple):
    """The head of a request to load a model and export it to a weights file."""

    work: bytes
    """Pickled head of the request with which the request handler loads the model."""
    refusal: str = ""
    """If not empty: load only, and give this as the reason for not exporting."""


class Exported(NamedTuple):
    """The response's head. With a weights file, its descriptor is attached, and the host ends."""

    load_response: bytes
    """The request handler's response to ``work``, encoded."""
    layout: WeightsLayout | None = None
    """Description of the weights file; None: there is none."""
    reason: str = ""
    """Why there is no weights file; empty if loading failed, which ``load_response`` explains."""
    peak: int | None = None
    """Peak memory of this process, in bytes; None: unknown."""
    copies: Sequence[str] = ()
    """URIs of remote files copied to this machine; the copies' descriptors are attached."""


class Response(NamedTuple):
    """A request handler's response."""

    head: Any
    rows: Sequence[Any] = ()
    positions: Sequence[int] | None = None
    """The index of the request row that each row belongs to; None: row ``i`` to row ``i``."""
    reducers: Mapping[type, Callable[[Any], Any]] | None = None
    """Reducers for objects that do not pickle by themselves."""
    echoes: bool = True
    """Whether objects of the request that ``rows`` hold are unchanged, so that indices may be sent instead."""
    files: Sequence[int] = ()
    """Descriptors to attach; closed here once sent."""
    is_last: bool = False
    """Whether the host is of no more use: it exits after this response, or is killed by the client that gets it."""


Later: TypeAlias = Callable[[], Awaitable[Response]]
"""Answers a request side by side with others; called on the event loop's thread."""
_Answered: TypeAlias = tuple[Response, Columns | None]
"""A response, and the columns of its request, if that could be read."""


class RequestHandler(ABC):
    """Processes requests: one at a time, unless it answers them side by side, as engines do.

    Errors that a client should see are part of the response, not raised.
    """

    side_by_side: SideBySide | None = None
    """What requests share that are answered side by side, once there may be some. Then it marks the progress page."""

    @abstractmethod
    def answer(self, head: Any, rows: list[Any], progress: Progress) -> Response | Later:
        """Processes one request; marks each operation on ``progress``. Or returns what will do so, beside others."""

    @abstractmethod
    def unreadable(self, error: Exception) -> Response:
        """The response to a request that cannot be unpickled."""

    @abstractmethod
    def unsendable(self, answer: Response, error: Exception) -> Response:
        """A response to send instead of ``answer``, which cannot be pickled."""

    def exports(self, work: Any) -> Any:
        """The model that ``work`` loaded, to be exported for ``attach`` in other processes; None if loading failed."""
        return None

    def attach(self, work: Any, value: Any) -> None:  # noqa: B027 - there may be nothing to do
        """Takes a model that another process has exported, instead of loading it."""

    def close(self) -> None:  # noqa: B027 - as above
        """Releases models and other resources before the host exits."""


def serve(request_handler: RequestHandler, channel: Channel, progress_file: int) -> None:
    """Serves the owner and the clients that it introduces: one request at a time, or side by side.

    Returns when the owner (``channel``) has closed its connection, and closes the request handler; or after a response
    with ``is_last``. Takes ownership of ``progress_file``.
    """
    shared = Segment.received(progress_file)
    progress = Progress(shared.memory)
    progress.end()  # ready to begin
    owner = channel.fileno()
    clients = {owner: _Client(request_handler, progress, channel)}
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    while owner in clients:
        for file, _ in poll.poll() if len(clients) > 1 else [(owner, 0)]:  # reading waits, too
            client = clients[file]
            new_clients = client.serve(None if file == owner else _LONGEST_STALL_SECS)
            if client.is_last:
                return  # its device is lost, or its model destroyed: closing the request handler could hang or raise
            if new_clients is None:
                poll.unregister(file)
                clients.pop(file).close()
            for new_client in map(Channel.inherited, new_clients or ()):
                clients[new_client.fileno()] = _Client(request_handler, progress, new_client)
                poll.register(new_client.fileno(), select.POLLIN)
    request_handler.close()


class _Client:
    """The host's side of one client connection: channel and segments."""

    def __init__(self, request_handler: RequestHandler, progress: Progress, channel: Channel) -> None:
        self._request_handler = request_handler
        self._outgoing: Outgoing | None = None
        """Sends everything, once requests are answered side by side."""
        self._latest = 0
        """The number of the latest call."""
        self._progress = progress
        self._channel = channel
        self._link = Link(channel)
        self._unread: dict[int, tuple[Segment, int]] = {}
        """Segments of responses that the client has not read yet, and the bytes used, by call number."""
        self.is_last = False
        """Whether the latest response was the host's last."""

    def serve(self, stall_secs: float | None) -> list[int] | None:
        """Processes one message; returns the descriptors of new clients' channels, or None if this client has left.

        So has one that is stopped for ``stall_secs`` in the middle of a message.
        """
        try:
            received, files = self._channel.receive(stall_secs=stall_secs)
        except (EOFError, TimeoutError):
            return None
        if isinstance(received, ClientChannel):
            return files
        request = Frame(*received)
        self._latest = request.call
        if self._request_handler.side_by_side is None:
            self._progress.begin(request.call)
        is_here = True
        try:
            self._handle(request, files)
        except ConnectionError:  # the client left without waiting for the response
            is_here = False
        if self._request_handler.side_by_side is None:
            self._progress.end()  # only now: if the host dies before it has responded, this request is at fault
        return [] if is_here else None

    def close(self) -> None:
        """Closes the connection."""
        if self._outgoing is not None and self._request_handler.side_by_side is not None:
            client = client_of(self._latest)
            self._request_handler.side_by_side.drop(lambda number: client_of(number) == client)
            self._outgoing.end()
        self._channel.close()

    def _handle(self, request: Frame, files: list[int]) -> None:
        if request.dropped:
            self._link.peers.drop(request.dropped)
        for call in request.free:
            self._link.own.give_back(*self._unread.pop(call))
        is_kept: Callable[[], bool] | None = None
        if request.content is not None:
            answer = self._answer(request.call, memoryview(request.content), own=True)
        else:
            memory, is_kept = self._link.peers.segment(request.segment, files).lend(request.size)
            answer = self._answer(request.call, memory, own=False)
            del memory
        if answer is None:
            return
        message, more = answer
        del answer
        if self._outgoing is not None:
            self._outgoing.send(request.call, message.content())
            return
        try:
            size = message.nbytes
            if size <= LONGEST_INLINE and not request.flag:
                where: Content = message.content()
            else:
                where = self._link.own.take(size)
                message.write(where.memory)
                self._unread[request.call] = where, size
            del message  # before is_kept(): the response itself may refer to the request's memory
            self._link.send(request.call, where, size, flag=is_kept is not None and is_kept(), files=more)
        finally:
            for file in more:
                os.close(file)

    def _answer(self, number: int, memory: memoryview, *, own: bool) -> tuple[Message, Sequence[int]] | None:
        """The response to a request, and files for it; None: it is answered side by side with others."""
        known: Columns | None = None
        try:
            request = decode(memory, own=own)
        except Exception as error:
            answer: Response | None = self._request_handler.unreadable(error)
        else:
            known, answer = request.columns, self._respond(number, request)
            del request
        if answer is None:
            return None
        is_in_turn = self._request_handler.side_by_side is None
        if is_in_turn:
            self._progress.mark(Activity.ANSWERING)
        message, is_last = self._encoded(answer, known)
        self.is_last = is_last and is_in_turn  # else other answers may be on their way, and the client kills it
        return message, answer.files

    def _respond(self, number: int, request: Decoded) -> Response | None:
        """As ``_answer``, of a request that could be read."""
        head, rows, known = request
        if isinstance(head, Export):
            return self._export(head)
        shared = self._request_handler.side_by_side
        if isinstance(head, Withdrawal):
            if shared is not None:
                shared.drop(number.__eq__)
            return Response(None)  # in case that the client waits
        answer = self._request_handler.answer(head, rows, self._progress)
        shared = self._request_handler.side_by_side
        if shared is not None and isinstance(head, Exclusive):
            begin = partial(self._read_and_answer, rows[0])
        elif isinstance(answer, Response):
            return answer
        else:
            begin = partial(self._answer_later, answer, known)
        assert shared is not None
        self._outgoing = self._outgoing or Outgoing(self._channel)
        shared.begin(number, begin, partial(self._send, number), exclusive=isinstance(head, Exclusive))
        return None

    async def _answer_later(self, answer: Later, known: Columns) -> _Answered:
        try:
            return await answer(), known
        except Exception as error:
            return self._request_handler.unreadable(error), None

    async def _read_and_answer(self, content: bytes) -> _Answered:
        try:
            head, rows, known = decode(memoryview(content), own=True)
            answer = self._request_handler.answer(head, rows, self._progress)
        except Exception as error:
            return self._request_handler.unreadable(error), None
        return (answer, known) if isinstance(answer, Response) else await self._answer_later(answer, known)

    def _send(self, number: int, answered: _Answered) -> bool:
        """Sends the response to a request that was answered side by side; returns whether it is the last one."""
        message, is_last = self._encoded(*answered)
        if self._outgoing is not None:
            self._outgoing.send(number, message.content())
        return is_last

    def _encoded(self, answer: Response, known: Columns | None) -> tuple[Message, bool]:
        """A response to send, and whether it is the last one; of one that cannot be pickled, what is sent instead."""
        try:
            return _encode(answer, known), answer.is_last
        except Exception as error:
            answer = self._request_handler.unsendable(answer, error)
            return _encode(answer, known), answer.is_last

    def _export(self, request: Export) -> Response:
        work = pickle.loads(request.work)
        keep_copies(kept_copies())
        answer = self._request_handler.answer(work, [], self._progress)
        assert isinstance(answer, Response), "to load is no request that is answered side by side"
        load_response = encoded(answer)
        value = self._request_handler.exports(work)
        if value is None:
            return Response(Exported(load_response), is_last=answer.is_last)
        try:
            if request.refusal:
                raise NotMappableError(request.refusal)
            weights, layout = export(value, destroys=True)
        except NotMappableError as error:
            copies = dict(islice(kept_copies().items(), _MOST_COPIES))
            files = [os.dup(copy) for copy in copies.values()]
            return Response(Exported(load_response, None, str(error), peak_bytes(), tuple(copies)), files=files)
        return Response(Exported(load_response, layout, peak=peak_bytes()), files=weights, is_last=True)


def encoded(answer: Response) -> bytes:
    """A response as bytes, for ``Exported.load_response``."""
    return b"".join(_encode(answer, None).content())


def _encode(answer: Response, known: Columns | None) -> Message:
    head, rows, positions, reducers, echoes, *_ = answer
    return encode(head, rows, known=known if echoes else None, positions=positions, reducers=reducers)

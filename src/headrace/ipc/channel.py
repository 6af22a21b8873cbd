"""Sends messages and file descriptors between two processes: small ones through a socket, others in shared memory."""

from __future__ import annotations

import array
import contextlib
import errno
import math
import os
import pickle
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias

from headrace.ipc.segment import PeerSegments, Segment, SegmentPool

_HEADER = struct.Struct("!QQ")
"""Size of the content in bytes; its number, 0 for a pickle."""
_SHORTEST = 256
"""Bytes. Shorter messages are padded, so that one system call receives a small message and nothing of the next one."""
_BUFFER = 1 << 18
"""Bytes that may be under way in each direction; systems have limits of their own."""
_LONGEST_POLL_SECS = 86_400
_LONGEST_LAST_SEND_SECS = 1.0
LONGEST_INLINE = 7 << 10
"""Bytes. Requests and responses of at most this size may be sent through the channel, which is faster."""
_MOST_FILES = 8
_ROOM_FOR_FILES = socket.CMSG_LEN(_MOST_FILES * array.array("i").itemsize)
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_TRUNCATED = int(socket.MSG_CTRUNC)
"""As a plain number: the enum's ``&`` is a function in Python."""


class Channel:
    """One end of a Unix socket pair. Any thread may send; only one thread at a time may receive.

    Messages are pickled, so both ends must be trusted. An error or Ctrl-C in the middle of a message leaves the stream
    out of step, so it shuts the channel down.
    """

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(None)  # the program may have called socket.setdefaulttimeout
        self._socket = end
        self._sending = threading.Lock()
        self._is_broken = False
        """Whether receiving a message failed part-way."""

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Creates a channel and returns both ends."""
        mine, yours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (mine, yours):  # macOS's default would hold one message of a few kilobytes
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        return cls(mine), cls(yours)

    @classmethod
    def inherited(cls, file: int) -> Channel:
        """Wraps an inherited descriptor. Programs that this process starts do not inherit it in turn."""
        os.set_inheritable(file, False)
        return cls(socket.socket(fileno=file))

    def fileno(self) -> int:
        """The socket's descriptor, for polling; -1 once closed."""
        return self._socket.fileno()

    def send(self, message: Any, files: Sequence[int] = ()) -> None:
        """Sends a message, and duplicates of ``files`` (at most 8 descriptors) with it.

        Raises:
            OSError: the other end is closed.
        """
        content = pickle.dumps(message, protocol=5)
        self._send([_HEADER.pack(len(content), 0), content], files)

    def send_content(self, number: int, pieces: Sequence[bytes | bytearray]) -> None:
        """Sends bytes, and a positive number; the other end receives ``(number, memory)`` as the message.

        Raises:
            OSError: the other end is closed.
        """
        self._send([_HEADER.pack(sum(map(len, pieces)), number), *pieces], ())

    def _send(self, parts: Sequence[bytes | bytearray], files: Sequence[int]) -> None:
        framed = b"".join(parts).ljust(_SHORTEST, b"\0")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        with self._sending:
            try:
                sent = self._socket.sendmsg([framed], rights) if rights else self._socket.send(framed)
                if sent < len(framed):  # sendall(b"") would fail if the peer has read everything and closed
                    self._socket.sendall(memoryview(framed)[sent:])
            except BaseException:
                self.shut_down()
                raise

    def receive(self, timeout_secs: float | None = None, *, stall_secs: float | None = None) -> tuple[Any, list[int]]:
        """Waits for the next message; returns it and its file descriptors, which the caller must close.

        Args:
            timeout_secs: how long the whole message may take; None: for ever.
            stall_secs: how long nothing more may come of a message that has begun; None: for ever.

        Raises:
            EOFError: the other end is closed.
            TimeoutError: the message did not arrive completely in time.
            OSError: this process has too many open files to accept the descriptors.
        """
        if self._is_broken:
            raise EOFError
        deadline = math.inf
        if timeout_secs is not None:
            deadline = time.monotonic() + timeout_secs
            self._await(deadline)
        files: list[int] = []
        try:
            start, rights, flags, _ = self._socket.recvmsg(_SHORTEST, _ROOM_FOR_FILES, _CLOSE_ON_EXEC)
            files = array.array("i", b"".join(data for _, _, data in rights)).tolist() if rights else files
            if flags & _TRUNCATED:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            for file in files:
                os.set_inheritable(file, False)
            if not start:
                raise EOFError
            if len(start) < _SHORTEST:
                start += self._exactly(_SHORTEST - len(start), deadline, stall_secs)
            size, number = _HEADER.unpack_from(start)
            more = size + _HEADER.size - _SHORTEST
            whole = start + self._exactly(more, deadline, stall_secs) if more > 0 else start
            content = memoryview(whole)[_HEADER.size : _HEADER.size + size]
            return (number, content) if number else pickle.loads(content), files
        except BaseException as error:
            self._is_broken = True
            for file in files:
                os.close(file)
            self.shut_down()
            if isinstance(error, ConnectionError):
                raise EOFError from error
            raise

    def has_hung_up(self) -> bool:
        """Whether the other end is closed, on systems that can tell without reading (Linux)."""
        poll = select.poll()
        poll.register(self.fileno(), getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(0))

    def shut_down(self) -> None:
        """Ends the connection for every process and thread that uses either end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes this process's descriptor; the connection stays open while another process has a copy."""
        self._socket.close()

    def _exactly(self, size: int, deadline: float, stall_secs: float | None) -> bytes:
        parts: list[bytes] = []
        while size:
            limit = deadline if stall_secs is None else min(deadline, time.monotonic() + stall_secs)
            if limit < math.inf:
                self._await(limit)
            part = self._socket.recv(size)
            if not part:
                raise EOFError
            if len(part) == size and not parts:
                return part
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _await(self, deadline: float) -> None:
        """Waits until there is something to receive."""
        if not is_readable(self.fileno(), deadline - time.monotonic()):
            raise TimeoutError


class Frame(NamedTuple):
    """A request or a response: in ``content``, or in the first ``size`` bytes of a segment.

    Sent as a plain tuple, since the class would take most of the time to pickle; with ``content`` and defaults alone,
    not even pickled.
    """

    call: int
    """The call's number."""
    content: bytes | memoryview | None = None
    segment: int = 0
    """The segment's name."""
    size: int = 0
    dropped: Sequence[int] = ()
    """Names of the sender's segments that the receiver must close."""
    flag: bool = False
    """Of a request: the response must be in a segment. Of a response: the host still refers to the request's segment,
    so that the client must not reuse it."""
    free: Sequence[int] = ()
    """Calls whose responses have been read: the host may reuse their segments."""


Content: TypeAlias = Sequence[bytes | bytearray] | Segment
"""A message in pieces, or the segment that holds it."""


class Link:
    """One end of a connection: a channel, and the segments that each end writes for the other; not thread-safe."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.own = SegmentPool()
        self.peers = PeerSegments()

    def send(
        self,
        call: int,
        where: Content,
        size: int,
        *,
        flag: bool = False,
        free: Sequence[int] = (),
        files: Sequence[int] = (),
    ) -> None:
        """Sends a ``Frame`` of ``size`` bytes.

        Raises:
            OSError: the other end is closed.
        """
        dropped, self.own.dropped = self.own.dropped, []
        if isinstance(where, Segment):
            frame = Frame(call, None, where.name, size, dropped, flag, free)
            self.channel.send(tuple(frame), [*self.own.files_for(where), *files])
        elif dropped or flag or free or files:
            self.channel.send(tuple(Frame(call, b"".join(where), 0, 0, dropped, flag, free)), files)
        else:
            self.channel.send_content(call, where)


class Outgoing:
    """Sends content on a thread of its own, so that whoever has something to send never waits for a full socket.

    Once the channel is shut down, what is sent is dropped.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._messages: SimpleQueue[tuple[int, Sequence[bytes | bytearray]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace sends", daemon=True)
        self._thread.start()

    def send(self, number: int, pieces: Sequence[bytes | bytearray]) -> None:
        """As ``Channel.send_content``, after what was sent before; any thread may."""
        self._messages.put((number, pieces))

    def end(self) -> None:
        """Shuts the channel down and ends the thread; a forked child, which has no such thread, does nothing."""
        if self._thread.is_alive():
            self._channel.shut_down()
            self._messages.put(None)
            self._thread.join(_LONGEST_LAST_SEND_SECS)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed, which whoever receives notices
            while (message := self._messages.get()) is not None:
                self._channel.send_content(*message)


def is_readable(file: int, secs: float) -> bool:
    """Whether a descriptor becomes readable within so many seconds."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(milliseconds(secs)))


def milliseconds(secs: float) -> int:
    """A time for ``poll()``, which takes no more than a C int."""
    return int(min(max(0.0, secs), _LONGEST_POLL_SECS) * 1000) + 1

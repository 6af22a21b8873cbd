"""Small messages, and file descriptors with them, between two processes."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import pickle
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct("!Q")
_MOST_FILES = 8
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Channel:
    """One end of a socket pair. Sending is thread-safe; receiving is for one thread at a time.

    Messages are pickles: both ends belong to the same program. One that is broken off, by an error or Ctrl-C, leaves
    a channel that nobody could make sense of, so it is shut down.
    """

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(None)  # whatever the program has set as the default
        self._socket = end
        self._sending = threading.Lock()
        self._is_broken = False
        """Whether a message was broken off as it was received."""

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Both ends of a new one."""
        mine, yours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(mine), cls(yours)

    @classmethod
    def inherited(cls, file: int) -> Channel:
        """The end that is open in this process as ``file``; programs that it starts do not get it."""
        os.set_inheritable(file, False)
        return cls(socket.socket(fileno=file))

    def fileno(self) -> int:
        """For polling; -1 once closed."""
        return self._socket.fileno()

    def send(self, message: Any, files: Sequence[int] = ()) -> None:
        """Sends.

        Raises:
            OSError: the other end is gone.
        """
        content = pickle.dumps(message, protocol=5)
        framed = _HEADER.pack(len(content)) + content
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        with self._sending:
            try:
                sent = self._socket.sendmsg([framed], rights)
                if sent < len(framed):  # to send nothing fails, too, once the other end has read all and is gone
                    self._socket.sendall(memoryview(framed)[sent:])
            except BaseException:
                self.shut_down()
                raise

    def receive(self, timeout_secs: float | None = None) -> tuple[Any, list[int]]:
        """The next message and the file descriptors that came with it.

        Raises:
            EOFError: the other end is gone.
            TimeoutError: no message came for so many seconds, or not all of it.
            OSError: this process has too many open files for those that came.
        """
        if self._is_broken:
            raise EOFError
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        self._await(deadline)
        files: list[int] = []
        try:
            start, files, flags, _ = socket.recv_fds(self._socket, _HEADER.size, _MOST_FILES, _CLOSE_ON_EXEC)
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            for file in files:
                os.set_inheritable(file, False)
            if not start:
                raise EOFError
            header = start + self._exactly(_HEADER.size - len(start), deadline)
            (size,) = _HEADER.unpack(header)
            return pickle.loads(self._exactly(size, deadline)), files
        except BaseException as error:
            self._is_broken = True
            for file in files:
                os.close(file)
            self.shut_down()
            if isinstance(error, ConnectionError):
                raise EOFError from error
            raise

    def shut_down(self) -> None:
        """Ends the connection: both ends see it, in whichever processes and threads they are used."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes this end here; the connection lasts while another process has a copy of the end."""
        self._socket.close()

    def _exactly(self, size: int, deadline: float | None) -> bytes:
        parts = []
        while size:
            self._await(deadline)
            part = self._socket.recv(size)
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _await(self, deadline: float | None) -> None:
        """Until there is something to receive."""
        if deadline is not None:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError

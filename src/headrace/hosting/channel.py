"""Small messages, and file descriptors with them, between two processes."""

from __future__ import annotations

import array
import os
import pickle
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct("!I")
_MOST_FILES = 8
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Channel:
    """One end of a socket pair. Sending is thread-safe; receiving is for one thread at a time.

    Messages are pickles: both ends belong to the same program.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

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
            sent = self._socket.sendmsg([framed], rights)
            self._socket.sendall(framed[sent:])

    def receive(self, timeout_secs: float | None = None) -> tuple[Any, list[int]]:
        """The next message and the file descriptors that came with it.

        Raises:
            EOFError: the other end is gone.
            TimeoutError: nothing came for so many seconds.
        """
        self._socket.settimeout(timeout_secs)
        try:
            start, files, _, _ = socket.recv_fds(self._socket, _HEADER.size, _MOST_FILES, _CLOSE_ON_EXEC)
            for file in files:
                os.set_inheritable(file, False)
            header = start + self._exactly(_HEADER.size - len(start)) if start else b""
            if not header:
                raise EOFError
            return pickle.loads(self._exactly(*_HEADER.unpack(header))), files
        except ConnectionError as error:
            raise EOFError from error

    def close(self) -> None:
        """Closes this end; whoever waits at the other one sees it."""
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(size)
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

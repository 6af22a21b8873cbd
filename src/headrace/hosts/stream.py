"""A client's connection to a host that answers many requests side by side, each as soon as it is done."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import NamedTuple

from headrace.hosts.provider import ExitCause, HostFailure, HostProvider, describe_exit
from headrace.ipc.channel import Channel
from headrace.ipc.progress import Progress

_EXIT_GRACE_MS = 1000
"""How long a host that has closed its connection may take to exit by itself."""
_LONGEST_POLL_SECS = 86_400
"""Keeps the milliseconds within a C int, as poll() requires."""

Content = Sequence[bytes | bytearray]
"""An encoded message, in pieces."""


class StreamedAnswer(NamedTuple):
    """A message from the host."""

    number: int
    """Of the request."""
    content: memoryview


class HostStream:
    """The connection to one host of this process's own, from its start to its end.

    Any thread may send, and sending never waits; one thread receives. The host marks its progress page all the while:
    if it has not for longer than the time limit, it hangs, and is killed.

    Args:
        provider: starts the host.
        timeout_secs: time limit; None: no limit.

    Raises:
        HostStartError: the host cannot be started.
        OSError: too many files are open.
    """

    def __init__(self, provider: HostProvider, timeout_secs: float | None) -> None:
        self._provider = provider
        self._timeout_secs = timeout_secs
        self.process, self._channel, self._page, self._pidfd, _ = provider.host(0)
        self._progress = Progress(self._page.memory)
        self._poll = select.poll()
        for file in (self._channel.fileno(), self._pidfd):
            if file is not None:
                self._poll.register(file, select.POLLIN)
        self._outgoing: SimpleQueue[tuple[int, Content] | None] = SimpleQueue()
        self._sender = threading.Thread(
            target=_send_all, args=(self._channel, self._outgoing), name="headrace sends to a host", daemon=True
        )
        self._sender.start()
        self._is_over = False

    def send(self, number: int, content: Content) -> None:
        """Sends a message; a host that is gone does not get it."""
        self._outgoing.put((number, content))

    def receive(self) -> StreamedAnswer | HostFailure:
        """Waits for a message; or for the host's end, after which there is nothing more to receive."""
        while True:
            files = {file for file, _ in self._poll.poll(self._poll_timeout_ms())}
            if self._channel.fileno() in files:
                with contextlib.suppress(EOFError):
                    (number, content), _ = self._channel.receive()
                    return StreamedAnswer(number, content)
            if files:
                return self._ended()
            if self._timeout_secs is not None and self._silent_secs() > self._timeout_secs:
                return self.kill(f"was killed, having taken longer than {self._timeout_secs:g} s", timed_out=True)

    def kill(self, exit_text: str, *, timed_out: bool = False, device_lost: bool = False) -> HostFailure:
        """Ends the host at once; returns how it ended, as the caller puts it."""
        snapshot = self._progress.read()
        self._provider.reap(self.process, late=True)
        self._release()
        return HostFailure(snapshot, timed_out, exit_text, device_lost=device_lost)

    def hang_up(self) -> None:
        """Closes the connection, which ends the host; ``receive``, perhaps in another thread, tells."""
        self._channel.shut_down()

    def end(self) -> None:
        """Closes the connection and waits for the host's end; kills it after a second. For the receiving thread."""
        self.hang_up()
        while not self._is_over:
            self.receive()

    def release_in_child(self) -> None:
        """In a forked child: closes its copies of the descriptors; the host is the parent's."""
        self._outgoing.put(None)
        self._close_files()

    def _ended(self) -> HostFailure:
        """Waits a moment for the host to exit by itself, so that its own exit code survives; then kills it."""
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            poll.poll(_EXIT_GRACE_MS)
        snapshot = self._progress.read()
        ended = self._provider.reap(self.process)
        exit_text = describe_exit(None if ended is None else ended.code)
        is_out_of_memory = ended is not None and ended.cause is ExitCause.MEMORY
        if is_out_of_memory:
            exit_text += ", since the machine had run out of memory"
        self._release()
        return HostFailure(snapshot, timed_out=False, exit_text=exit_text, out_of_memory=is_out_of_memory)

    def _silent_secs(self) -> float:
        """For how long the host has marked nothing; 0 before its first mark, since it may be importing modules."""
        snapshot = self._progress.read()
        return snapshot.seconds if snapshot.since_ns else 0.0

    def _poll_timeout_ms(self) -> int | None:
        if self._timeout_secs is None:
            return None
        left = self._timeout_secs - self._silent_secs()
        return int(min(max(0.0, left), _LONGEST_POLL_SECS) * 1000) + 1

    def _release(self) -> None:
        self._is_over = True
        self._channel.shut_down()
        self._outgoing.put(None)
        self._sender.join()  # before its descriptor is closed, which another connection might get
        self._close_files()

    def _close_files(self) -> None:
        self._channel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._page.close()


def _send_all(channel: Channel, outgoing: SimpleQueue[tuple[int, Content] | None]) -> None:
    with contextlib.suppress(OSError):  # the host is gone, which the receiving thread notices
        while (message := outgoing.get()) is not None:
            channel.send_content(*message)

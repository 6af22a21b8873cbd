"""A client's connection to a host that answers many requests side by side, each as soon as it is done."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import NamedTuple

from headrace.hosts.provider import ExitCause, HostExit, HostFailure, HostProvider, await_exit, describe_exit
from headrace.ipc.channel import Channel, milliseconds
from headrace.ipc.progress import Progress

Content = Sequence[bytes | bytearray]
"""An encoded message, in pieces."""


class StreamedAnswer(NamedTuple):
    """A message from the host."""

    number: int
    """Of the request."""
    content: memoryview


class Outgoing:
    """Sends messages on a thread of its own, so that whoever has something to send never waits for a full socket.

    Args:
        channel: where to; once it is shut down, what is sent is dropped.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._messages: SimpleQueue[tuple[int, Content] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace sends", daemon=True)
        self._thread.start()

    def send(self, number: int, content: Content) -> None:
        """Sends a message, after those before it; any thread may."""
        self._messages.put((number, content))

    def end(self) -> None:
        """Ends the thread; call it after the channel was shut down, and before its descriptor is closed."""
        self.forget()
        self._thread.join()

    def forget(self) -> None:
        """Ends the thread without waiting; in a forked child, which has none."""
        self._messages.put(None)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed, which whoever receives notices
            while (message := self._messages.get()) is not None:
                self._channel.send_content(*message)


class HostStream:
    """The connection to one host, from its start to its end, or to this process's leave of a host that others use, too.

    Any thread may send, and sending never waits; one thread receives. The host marks its progress page all the while:
    if it has not for longer than the time limit, it hangs, and is killed.

    Args:
        provider: starts the host, or gives access to the one that processes share.
        timeout_secs: time limit; None: no limit.

    Raises:
        HostStartError: the host cannot be started.
        OSError: too many files are open.
    """

    def __init__(self, provider: HostProvider, timeout_secs: float | None) -> None:
        self._provider = provider
        self._timeout_secs = timeout_secs
        self.process, self._channel, self._page, self._pidfd, self._is_shared = provider.host(0)
        self._began = time.monotonic()
        self._progress = Progress(self._page.memory)
        self._poll = select.poll()
        for file in (self._channel.fileno(), self._pidfd):
            if file is not None:
                self._poll.register(file, select.POLLIN)
        self._outgoing = Outgoing(self._channel)
        self._has_hung_up = False
        self._is_over = False

    def send(self, number: int, content: Content) -> None:
        """Sends a message; a host that is gone does not get it."""
        self._outgoing.send(number, content)

    def receive(self) -> StreamedAnswer | HostFailure:
        """Waits for a message; or for the host's end, after which there is nothing more to receive."""
        while True:
            files = {file for file, _ in self._poll.poll(self._poll_timeout_ms())}
            if self._channel.fileno() in files:
                try:
                    (number, content), _ = self._channel.receive(stall_secs=self._timeout_secs)
                except EOFError:
                    return self._ended()
                except TimeoutError:  # it was stopped in the middle of a message
                    return self.kill(self._late_ending, timed_out=True)
                return StreamedAnswer(number, content)
            if files:
                return self._ended()
            if self._timeout_secs is not None and self._silent_secs() > self._timeout_secs:
                return self.kill(self._late_ending, timed_out=True)

    def kill(self, exit_text: str, *, timed_out: bool = False, device_lost: bool = False) -> HostFailure:
        """Ends the host at once; returns how it ended, as the caller puts it."""
        snapshot = self._progress.read()
        self._provider.reap(self.process, late=True)
        self._release()
        return HostFailure(snapshot, timed_out, exit_text, device_lost=device_lost)

    def hang_up(self) -> None:
        """Closes the connection, which ends the host, or leaves it to others; ``receive``, in any thread, tells."""
        self._has_hung_up = True
        self._channel.shut_down()

    def end(self) -> None:
        """Closes the connection and waits for the host's end; kills it after a second, unless others use it.

        For the receiving thread.
        """
        self.hang_up()
        while not self._is_over:
            self.receive()

    def release_in_child(self) -> None:
        """In a forked child: closes its copies of the descriptors; the host is the parent's."""
        self._outgoing.forget()
        self._close_files()

    def _ended(self) -> HostFailure:
        """Waits a moment for the host to exit by itself, so that its own exit code survives; then kills it."""
        snapshot = self._progress.read()
        if self._is_shared and self._has_hung_up:
            self._release()
            return HostFailure(snapshot, timed_out=False, exit_text="was left to others")
        await_exit(self._pidfd)
        snapshot = self._progress.read()
        ended = self._provider.reap(self.process) or HostExit(None)
        self._release()
        is_late = ended.cause is ExitCause.LATE  # another process had it killed
        is_out_of_memory = ended.cause is ExitCause.MEMORY
        exit_text = self._late_ending if is_late else describe_exit(ended.code)
        if is_out_of_memory:
            exit_text += ", since the machine had run out of memory"
        return HostFailure(snapshot, is_late, exit_text, out_of_memory=is_out_of_memory)

    def _silent_secs(self) -> float:
        """For how long the host has marked nothing while this process listened.

        0 before its first mark, since it may be importing modules.
        """
        snapshot = self._progress.read()
        return min(snapshot.seconds, time.monotonic() - self._began) if snapshot.since_ns else 0.0

    @property
    def _late_ending(self) -> str:
        return f"was killed, having taken longer than {self._timeout_secs or 0:g} s"

    def _poll_timeout_ms(self) -> int | None:
        if self._timeout_secs is None:
            return None
        return milliseconds(self._timeout_secs - self._silent_secs())

    def _release(self) -> None:
        self._is_over = True
        self._channel.shut_down()
        self._outgoing.end()
        self._close_files()

    def _close_files(self) -> None:
        self._channel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._page.close()

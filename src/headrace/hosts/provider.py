"""What a client has of a host: a way to it, whoever started it, and what is said when it has ended."""

from __future__ import annotations

import contextlib
import signal
from enum import Enum
from typing import NamedTuple, Protocol

from headrace.ipc.channel import Channel
from headrace.ipc.segment import Segment


class HostHandle(NamedTuple):
    """One client's way to one host."""

    process: int
    channel: Channel
    progress: Segment
    watched: int | None
    """A descriptor that is readable once the process has ended; None where there is no such thing."""
    is_shared: bool = False
    """Whether others use the host, too, so that it goes on when this client leaves."""


class ExitCause(Enum):
    """Why a host has ended, as far as that is certain."""

    LATE = "it took too long for one of its clients"
    MEMORY = "the kernel killed it for want of memory"
    UNKNOWN = "somebody killed it, and this system does not tell whether that was the kernel for want of memory"
    OTHER = "neither of these"


class HostExit(NamedTuple):
    """How a host has ended."""

    code: int | None
    """As in ``subprocess``, minus the number of a signal that killed it; None: not known."""
    cause: ExitCause = ExitCause.OTHER


class HostProvider(Protocol):
    """Lets hosts; thread-safe."""

    def host(self, number: int) -> HostHandle:
        """A way to a living host: to the one of that number where they are shared.

        Raises:
            HostStartError: it cannot be had.
            OSError: too many files are open.
        """
        ...

    def reap(self, process: int, *, late: bool = False) -> HostExit | None:
        """Ends a host, if nobody else uses it or it is ``late``; returns how it ended.

        None: it has not, since others use it; or how is not known.
        """
        ...

    def cancel_waits(self) -> None:
        """Has nobody wait for a host from now on: it fails."""
        ...

    def close(self) -> None:
        """Lets no more."""
        ...

    def after_fork(self) -> None:
        """In a fork of this process: lets go of what is the parent's, and begins anew."""
        ...


def describe_exit(code: int | None) -> str:
    """An exit code in words; negative: the number of a signal."""
    if code is None:
        return "was killed together with the process that had started it"
    if code >= 0:
        return f"ended itself with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"

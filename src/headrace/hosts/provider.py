"""What connects a client to a host: their messages, the provider's interface, and how a host is lost."""

from __future__ import annotations

import contextlib
import signal
from enum import Enum
from typing import NamedTuple, Protocol

from headrace.core.errors import DeviceLostError, HostDiedError
from headrace.ipc.channel import Channel
from headrace.ipc.progress import ActivitySnapshot
from headrace.ipc.segment import Segment


class ClientChannel(NamedTuple):
    """From owner to host: the attached descriptor is the channel of another client, to be served, too."""


class Exclusive(NamedTuple):
    """The head of a request whose only row is another one, as bytes.

    That is answered with none of other clients beside it, and read only then.
    """


class Withdrawal(NamedTuple):
    """The head of a message about a request that is answered side by side with others: it is to be dropped."""


class HostHandle(NamedTuple):
    """One client's connection to one host."""

    process: int
    channel: Channel
    progress: Segment
    pidfd: int | None
    """A descriptor that becomes readable when the process exits (a pidfd); None where the system has none."""
    is_shared: bool = False
    """Whether other processes use the host, too, so that it keeps running when this client leaves."""


class ExitCause(Enum):
    """Why a host exited, as far as that is certain."""

    LATE = "it took too long for one of its clients"
    MEMORY = "the kernel killed it for want of memory"
    OTHER = "neither of these, or unknown"


class HostExit(NamedTuple):
    """How a host exited."""

    code: int | None
    """As in ``subprocess``: a negative number is the signal that killed it; None: unknown."""
    cause: ExitCause = ExitCause.OTHER


class HostFailure(NamedTuple):
    """The result of a request during which its host died, or was killed because it exceeded its time limit."""

    snapshot: ActivitySnapshot
    """What the host was doing."""
    timed_out: bool
    """Whether it was killed because it exceeded its time limit; else it died."""
    exit_text: str
    """How it exited, in words that follow "the host"."""
    out_of_memory: bool = False
    """Whether it was certainly the kernel's out-of-memory killer."""
    device_lost: bool = False
    """Whether it exited by itself because its device failed for good."""


class DeviceLostInHostError(HostDiedError, DeviceLostError):
    """A model cannot be loaded, since its host lost the device during the load. This process still has its own."""

    retryable = False


def loss_error(
    loss: HostFailure, what: str, timeout_secs: float | None, kind: type[HostDiedError] = HostDiedError
) -> Exception:
    """The exception for what a host was doing when it was lost; it has that class if the host died."""
    if loss.timed_out:
        return TimeoutError(f"{what} took longer than {timeout_secs:g} s.")
    return kind(f"the host {loss.exit_text} while it was {what}.")


def load_error(loss: HostFailure, name: str, timeout_secs: float | None) -> Exception:
    """The exception for a load whose process was lost."""
    kind = DeviceLostInHostError if loss.device_lost else HostDiedError
    return loss_error(loss, f"loading the model of {name}", timeout_secs, kind)


def died(result: object) -> bool:
    """Whether the result of an attempt is that its host died: then something outside may have killed it."""
    return isinstance(result, HostFailure) and not result.timed_out


class HostProvider(Protocol):
    """Starts hosts, or gives access to shared ones; thread-safe."""

    def host(self, number: int) -> HostHandle:
        """Connects to a running host: shared host ``number``, or a new one.

        Raises:
            HostStartError: the host cannot be started.
            OSError: too many files are open.
        """
        ...

    def reap(self, process: int, *, late: bool = False) -> HostExit | None:
        """Reaps a host; kills it first, unless other processes use it and it is not ``late`` (over its time limit).

        Returns:
            How it exited; None if it still runs for others, or its exit status is unknown.
        """
        ...

    def cancel_waits(self) -> None:
        """Makes every current and future wait for a host fail."""
        ...

    def close(self) -> None:
        """Ends the fork server or lease behind it; it gives no more hosts."""
        ...


def describe_exit(code: int | None) -> str:
    """An exit code, as in ``HostExit``, in words that follow "it"."""
    if code is None:
        return "was killed together with the process that had started it"
    if code >= 0:
        return f"ended itself with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"

"""What a client and a host send each other, and a client's side of it: calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import ref

from headrace.ipc.codec import Message
from headrace.ipc.segment import Reply, Segment

LONGEST_INLINE = 7 << 10
"""Bytes. Requests and responses of at most this size may be sent through the channel, which is faster."""


class HostRequest(NamedTuple):
    """From client to host: a request is in ``content``, or in the first ``size`` bytes of a segment.

    Sent as a plain tuple, since the class would take most of the time to pickle; with ``content`` and defaults alone,
    not even pickled.
    """

    call: int
    """The call's number."""
    content: bytes | memoryview | None = None
    segment: int = 0
    """The segment's name."""
    size: int = 0
    free: Sequence[int] = ()
    """Calls whose responses have been read: the host may reuse their segments."""
    dropped: Sequence[int] = ()
    """Names of the client's segments that the host must close."""
    may_inline: bool = True
    """Whether the response may be sent in ``content``."""


class HostReply(NamedTuple):
    """From host to client: a response is in ``content``, or in the first ``size`` bytes of a segment.

    Sent like a ``HostRequest``.
    """

    call: int
    content: bytes | memoryview | None = None
    segment: int = 0
    size: int = 0
    dropped: Sequence[int] = ()
    """Names of the host's segments that the client must close."""
    kept: bool = False
    """Whether the host still refers to the request's segment, so that the client must not reuse it."""


class ClientChannel(NamedTuple):
    """From owner to host: the attached descriptor is the channel of another client, to be served, too."""


class Call:
    """A request and, later, its response. Dropping the last reference discards the response."""

    def __init__(self, number: int, message: Message) -> None:
        self.number = number
        self.message = message
        self.connection: Any = None
        """The ``HostConnection`` that has sent it."""
        self.reply: Reply | bytes | memoryview | None = None
        """The response; a ``Reply`` if it is in the host's memory."""
        self.files: list[int] = []
        """Descriptors that came with the response; the caller must close them."""

    def answered(self) -> None:
        """Called by the reading thread once there is a response."""


class PendingRequest(NamedTuple):
    """A request without a response."""

    call: ref[Call]
    """Of an abandoned bundle, the call vanishes."""
    segment: Segment | None
    """The memory that holds it; None: it was sent through the channel."""
    size: int
    """Size of the request, in bytes."""
    sent: float
    """When it was sent, in seconds of the monotonic clock."""

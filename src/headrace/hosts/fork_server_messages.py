"""The messages between a fork server and its owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.hosts.environment import ProcessEnvironment
from headrace.ipc.weights_file import WeightsLayout


@dataclass(frozen=True)
class ForkServerSetup:
    """The first message from owner to fork server; the descriptors of an ``OutputReader`` are attached."""

    environment: ProcessEnvironment
    modules: Sequence[str] = ()
    """Modules to import before the configuration is known."""


@dataclass(frozen=True)
class ForkServerConfig:
    """The second message."""

    request_handler: bytes
    """The pickled request handler of every host."""
    environment: ProcessEnvironment
    imports: bool
    """Whether the fork server unpickles the request handler, which imports its modules; else each host does."""


class Ready:
    """The fork server's answer to its configuration: it can fork hosts."""


@dataclass(frozen=True)
class HasThreads:
    """The fork server's answer: importing the modules started threads, which do not survive a fork; it exits."""

    threads: list[str]


@dataclass(frozen=True)
class Failed:
    """The fork server's answer: unpickling the request handler or the model, or forking a host, has failed."""

    lines: list[str]
    """Lines of the traceback."""


@dataclass(frozen=True)
class PreloadRequest:
    """The owner's request to preload what future hosts inherit.

    Descriptors are attached in this order: the computing page, the layout's files, the copies.
    """

    layout: WeightsLayout | None
    """Description of what to map; None: nothing."""
    work: bytes
    """Pickled head of the request with which the model was loaded."""
    copies: Sequence[str]
    """URIs of remote files with a local copy."""
    has_page: bool = False
    """Whether the first descriptor is a ``ComputingPage``."""


class Preloaded:
    """The fork server's answer: future hosts inherit it."""


@dataclass(frozen=True)
class Fork:
    """The owner's request for a host. Attached descriptors: the host's channel, and its progress page."""

    environment: Mapping[str, str]
    """Additional environment variables of this host."""


@dataclass(frozen=True)
class Reap:
    """The owner's request to kill a host and the processes that it started, and to report how it exited."""

    host: int
    """Its process id."""
    only_if_exited: bool = False
    """Whether a host that does not exit by itself within a second is left running."""

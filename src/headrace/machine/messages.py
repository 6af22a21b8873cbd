"""What a client and the machine's manager say to each other; a client raises a ``HeadraceError`` that is the answer."""

from __future__ import annotations

from typing import NamedTuple

from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.host import Exported


class LoadRequest(NamedTuple):
    """A client's request for a model; the first request for a key decides for all later ones."""

    key: str
    variant: str
    """Identifies what the request handler does; a client may join hosts of its own variant only."""
    name: str
    """The model's name in logs and errors."""
    request_handler: bytes
    """Pickled; loads the model, and answers requests if the model lives in hosts."""
    work: bytes
    """Pickled; the load request for the request handler."""
    environment: ProcessEnvironment
    copies: int
    """How many hosts to start."""
    hosted: bool
    """Whether to use hosts even if clients could map the model."""
    timeout_secs: float | None
    """Time limit for loading, in seconds."""
    process: str
    """The client's process, unique on the machine: one with several leases counts once among those that compute."""
    linger_secs: float
    """How long the model stays in memory after its last lease has ended."""
    at_least: int | None
    """A lower bound, in bytes, for what loading takes; None: unknown."""
    offers: bool = False
    """Whether the client can load the model itself, for all."""
    refusal: str = ""
    """If not empty, why the model has to stay in the host that loads it."""


class LoadHere(NamedTuple):
    """The manager's request to a client that has offered it: load the model, and answer with an ``Exported``.

    The client waits for a ``ModelGrant`` then, like all others.
    """


class ModelGrant(NamedTuple):
    """The manager's answer to a LoadRequest.

    If the client is to map the model, files come along: the page that counts the processes that compute with shared
    models, and those that the layout describes.
    """

    exported: Exported
    """What loading it has given; without a weights file and a reason why, it failed."""
    nbytes: int
    """Memory that the model takes, in bytes."""
    is_first: bool
    """Whether it was loaded for this client."""
    variant: str
    """The variant of the client for which it was loaded."""
    free: int
    """Free memory before the load, in bytes."""

    @property
    def is_loaded(self) -> bool:
        """Whether loading succeeded, be the model mapped or in hosts."""
        return self.exported.layout is not None or bool(self.exported.reason)


class JoinHost(NamedTuple):
    """A client's request to connect to the host with this number.

    The answer is its process id. Files: the client's end of a channel, the progress page, the watched file.
    """

    number: int


class EndHost(NamedTuple):
    """A client's question how a host ended; the manager kills it first if it is ``late``."""

    process: int
    late: bool


class StatusRequest(NamedTuple):
    """A request for the manager's state."""

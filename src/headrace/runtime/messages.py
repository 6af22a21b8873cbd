"""What a process and its model hosts say to each other: a request's head, and the heads of its response.

A host that has lost its device, so that no later call can succeed, responds with a ``HostFailure`` and exits. So does
one whose engine has lost it, or answers nothing; but it waits to be killed by the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.batching.size import BatchTime
from headrace.core.events import BatchCompleted, Event
from headrace.core.result import Caught, Failure, Skipped
from headrace.failures.search import InjectedFailure
from headrace.ipc.codec import sent_as_plain_values

_PLAIN = {str, int, float, bool, type(None)}


@sent_as_plain_values
class Work(NamedTuple):
    """What to do with a request's rows: elements, identified by their positions."""

    model: Any
    preprocess: bool = False
    infer: bool = False
    """Also postprocess. With neither flag set, only load the model."""
    weight: float = 0
    useful: float = 0
    """``weight`` and ``useful`` are those of the ``Batch``: with padding, and without."""
    injected_failures: Mapping[int, InjectedFailure] = {}
    """By position: elements to fail instead of running an operation that killed a host."""

    def plain(self) -> tuple[Any, ...] | None:
        """The fields, if they are plain values."""
        fields = self[:-1]
        return None if self.injected_failures or not _PLAIN.issuperset(map(type, fields)) else fields

    @classmethod
    def of_plain(cls, plain: tuple[Any, ...]) -> Work:
        """The same work."""
        return cls(*plain)


@sent_as_plain_values
class Done(NamedTuple):
    """The result of each element. The response's rows are predictions, or preprocessed elements."""

    tags: Sequence[int]
    """The position of each row's element."""
    failures: list[Failure]
    """Tagged with positions, as ``skipped`` is."""
    events: list[Event]
    observations: list[tuple[float, BatchTime]]
    """Batch sizes, and the times to report to the ``SizeController``."""
    skipped: Sequence[Skipped] = ()
    """Includes elements only for skips in postprocessing; the client has the others."""

    def plain(self) -> tuple[Any, ...] | None:
        """The fields of the response of a batch that succeeded: positions, a batch's only event, and its time."""
        if self.failures or self.skipped or not len(self.events) == len(self.observations) == 1:
            return None
        (event,), (observation,) = self.events, self.observations
        fields = _fields(event) if type(event) is BatchCompleted else (event,)
        if not _PLAIN.issuperset(map(type, (*fields, *observation))):
            return None
        has_all_in_order = self.tags == [*range(len(self.tags))]
        return len(self.tags) if has_all_in_order else self.tags, fields, observation

    @classmethod
    def of_plain(cls, plain: tuple[Any, ...]) -> Done:
        """The same response."""
        tags, event, observation = plain
        tags = range(tags) if isinstance(tags, int) else tags
        return cls(tags, [], [BatchCompleted(*event)], [observation])


class Raised(NamedTuple):
    """An exception that the session does not catch, or one raised while the model was loading."""

    caught: Caught
    events: list[Event]
    loading: bool = False


class Unreadable(NamedTuple):
    """The request or the response could not be pickled or unpickled."""

    caught: Caught


class EngineRequest(NamedTuple):
    """To an engine in a host, which answers requests side by side: submit the rows."""

    inference_args: dict[str, Any] | None


def _fields(event: BatchCompleted) -> tuple[Any, ...]:
    return event.model, event.examples, event.bytes, event.seconds, event.useful, event.padded

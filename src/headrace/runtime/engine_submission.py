"""A request to an engine in a host, as the worker keeps it until it has its answer."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple

from headrace.core.errors import copy_of
from headrace.core.result import Caught
from headrace.ipc.codec import Message
from headrace.runtime.messages import EngineAnswer


class Submitted(NamedTuple):
    """A request, and where its answer is awaited."""

    number: int
    message: Message
    answer: Future[tuple[EngineAnswer, list[Any]]]

    def end(self, answer: EngineAnswer, predictions: list[Any]) -> None:
        """Gives it its answer."""
        with suppress(InvalidStateError):  # nobody waits any more
            self.answer.set_result((answer, predictions))

    def fail(self, error: BaseException) -> None:
        """A copy, not as the future's exception: asyncio makes another of some classes."""
        self.end(EngineAnswer(Caught(copy_of(error), [])), [])

"""Lets code that sends one request for each example send them in batches, without knowing of it.

Each example is asked for by a coroutine with the provider's official client. In place of HTTP the client has a
transport that keeps the bodies of requests until every coroutine waits for one. They then are one batch, and its
answers are what the client reads. So a batch has exactly the bodies that single requests would have, and its answers
are read the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import ConfigurationError, EndpointError, extra_required
from headrace.core.remote import ElementFailure
from headrace.core.request_context import usage_was_paid_before
from headrace.handlers.batch_jobs import BatchAnswer, BatchJobs, BatchUnfinishedError
from headrace.handlers.client_errors import is_final

__all__ = ["BatchOptions", "BatchRequests"]

MAX_WAIT_SECS = 90_000.0
"""25 hours: providers give up a batch after 24."""


@dataclass(frozen=True)
class BatchOptions:
    """What a user says about batches.

    Args:
        who: the handler's class, for errors.
        directory: in which is kept what was sent.
        max_wait_secs: how long to wait for a batch.

    Raises:
        ConfigurationError: one of them is wrong.
    """

    who: str
    directory: str
    max_wait_secs: float

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str) or not self.directory or "://" in self.directory:
            raise ConfigurationError(
                f"{self.who}: batch_directory must be the path of a folder on a local disk, not {self.directory!r}."
            )
        if os.path.exists(self.directory) and not os.path.isdir(self.directory):
            raise ConfigurationError(f"{self.who}: batch_directory={self.directory!r} is no folder; name one.")
        if isinstance(self.max_wait_secs, bool) or not isinstance(self.max_wait_secs, int | float):
            raise ConfigurationError(f"{self.who}: max_wait_secs must be a number, not {self.max_wait_secs!r}.")
        if not self.max_wait_secs > 0:
            raise ConfigurationError(f"{self.who}: max_wait_secs must be more than 0, not {self.max_wait_secs!r}.")

    @classmethod
    def of(
        cls, who: str, extra: str, directory: str | os.PathLike[str] | None, max_wait_secs: float
    ) -> BatchOptions | None:
        """The options of a handler; None without a directory.

        Raises:
            ConfigurationError: one of them is wrong.
            MissingExtraError: the package filelock is not installed, which the extra brings.
        """
        if directory is None:
            return None
        with extra_required(extra):
            import filelock  # noqa: F401, PLC0415 - only batches need it

        return cls(who, os.fspath(directory), max_wait_secs)


class BatchRequests:
    """The requests of coroutines that run side by side; they are sent when all of them wait.

    Args:
        jobs: answers requests in batches.
    """

    def __init__(self, jobs: BatchJobs) -> None:
        self._jobs = jobs
        self._waiting: list[tuple[Any, asyncio.Future[BatchAnswer], asyncio.Task[Any] | None]] = []
        self._errors: dict[Any, BatchUnfinishedError] = {}
        """Of coroutines that were ended."""
        self._answered: dict[Any, list[tuple[Any, int]]] = {}
        """The bodies of a coroutine's requests, with the statuses of their answers."""
        self._busy = 0
        """How many coroutines neither wait nor have ended."""
        self._idle = asyncio.Event()

    def transport_for(self, http_client: type[Any]) -> Any:
        """What an HTTP client of this class, httpx's or one that is made like it, is to send requests with."""
        name = next(cls.__module__ for cls in http_client.__mro__ if cls.__name__ == "AsyncClient")
        library: Any = sys.modules[name.partition(".")[0]]

        async def answer(request: Any) -> Any:
            found = await self._answer(json.loads(request.content))
            usage_was_paid_before(not found.is_new)
            headers = {"content-type": "application/json"}
            return library.Response(found.status, headers=headers, content=found.body.encode(), request=request)

        return library.MockTransport(answer)

    async def run(self, examples: Sequence[Any], predict: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        """What ``predict`` returns for each example; in its place the exception that it raised, or why it was ended.

        Raises:
            Exception: that of ``BatchJobs.answers``.
        """
        self._busy = len(examples)
        tasks = [asyncio.ensure_future(predict(example)) for example in examples]
        for task in tasks:
            task.add_done_callback(lambda _: self._rest())
        try:
            while await self._idle.wait() and self._waiting:
                await self._settle()
            found = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for task in tasks:
                task.cancel()
        unfit = [task for task, one in zip(tasks, found, strict=True) if _is_unfit(one)]
        await self._jobs.refuse([body for task in unfit for body in self._paid_for(task)])
        return [self._errors.get(task, one) for task, one in zip(tasks, found, strict=True)]

    def _paid_for(self, task: Any) -> list[Any]:
        """The requests of a coroutine whose answers were of no use, unless its last one only failed for now."""
        answered = self._answered.get(task, [])
        has_passing = any(status >= 400 and not is_final(status) for _, status in answered[-1:])
        return [] if has_passing else [body for body, _ in answered]

    async def _answer(self, body: Any) -> BatchAnswer:
        future: asyncio.Future[BatchAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, future, asyncio.current_task()))
        self._rest()
        return await future

    def _rest(self) -> None:
        self._busy -= 1
        if not self._busy:
            self._idle.set()

    async def _settle(self) -> None:
        """Has everything answered that waits."""
        waiting, self._waiting = self._waiting, []
        self._busy = len(waiting)
        self._idle.clear()
        answers = await self._jobs.answers([body for body, _, _ in waiting])
        for (body, future, task), answer in zip(waiting, answers, strict=True):
            if isinstance(answer, BatchAnswer):
                self._answered.setdefault(task, []).append((body, answer.status))
                future.set_result(answer)
            elif task is not None:  # the client would make a failed connection of any error
                self._errors[task] = answer
                task.cancel()


def _is_unfit(outcome: Any) -> bool:
    """Whether an example's own answers were of no use."""
    if isinstance(outcome, EndpointError | ConfigurationError):
        return False
    return isinstance(outcome, Exception | ElementFailure)

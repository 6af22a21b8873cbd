"""Has requests answered by a provider's Batch API: sends them as batches, polls, and collects, each request once.

::

    requests -> known already? -> answers
                   | no
                   v
             in a batch that runs? --------> polled -> ended -> answers, kept in the store
                   | no                        ^
                   v                           |
             announced -> sent -> written down-+

What was sent is in a ``BatchStore``. Requests are found there by their content: the same request, repeated
after a crash or in another process, gets the same answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, Protocol

from headrace.core.errors import ConfigurationError, EndpointError, HeadraceError, as_type_name, extra_required
from headrace.handlers.batch_store import Announced, BatchStore, Line, Sent, unusable
from headrace.handlers.text_endpoints import is_final, status_of

MAX_WAIT_SECS = 90_000.0
"""25 hours: providers give up a batch after 24."""
FIRST_POLL_SECS, LONGEST_POLL_SECS = 1.0, 60.0
"""Polls follow each other at growing intervals."""
ARRIVING_SECS = 60.0
"""How long a batch or an answer may be on its way, or not be known everywhere."""
OLD_SECS = 600.0
"""After which nothing is on its way any more."""
REFUSED_SECS = 300.0
"""How long to wait with a batch for which the provider has no room."""
_TRIES = 3
"""How often a request is sent that no batch has come to."""
_LOCK_SECS = 0.1
_NOT_TAKEN = (429, 529)
"""Statuses of a provider that has not even looked at a batch."""

_LOGGER = logging.getLogger(__name__)


class BatchUnfinishedError(HeadraceError, TimeoutError):
    """A request was not answered in time, by any batch."""


class BatchLateError(BatchUnfinishedError):
    """A request was not answered in time, and its batch still runs."""


class BatchRefusedError(HeadraceError, RuntimeError):
    """The provider refuses a whole batch: nothing of it is done."""

    is_for_now = False
    """Whether the batch would be accepted when others have ended."""


Requests = Mapping[str, Mapping[str, Any]]
"""The bodies of requests by ids, which are digests of their content."""
Collected = tuple[list[Line], str]
"""What a batch leaves behind, in any order, perhaps without requests that it has not come to; and how it ended."""


class BatchApi(Protocol):
    """What a provider's Batch API does; in a module with the handler that asks single requests of it."""

    most_requests: int
    """In a batch."""
    most_bytes: int
    """Of a batch."""

    async def prepare(self, token: str, requests: Requests) -> Any:
        """Does what has to be done before there can be a batch; returns what ``send`` needs."""

    async def send(self, token: str, prepared: Any) -> str:
        """Makes a batch; returns its id."""

    async def find(self, batch: Announced) -> str | None:
        """The id of a batch that may have arrived; "" if it has not; None: that cannot be told yet."""

    async def collect(self, remote: str) -> Collected | None:
        """What a batch leaves behind; None while it runs. BatchRefusedError, EndpointError: nothing will come."""


_Outcome = Line | BatchUnfinishedError
"""Of a request; a line has a status."""


def batch_options(
    caller: str, extra: str, directory: str | os.PathLike[str] | None, max_wait_secs: float
) -> tuple[str, float] | None:
    """The folder of a handler's batches, if it has one, and how long to wait for a batch."""
    if directory is None:
        return None
    with extra_required(extra):
        import filelock  # noqa: F401, PLC0415 - only batches need it

    path = os.fspath(directory)
    if not path or "://" in path or (os.path.exists(path) and not os.path.isdir(path)):
        raise ConfigurationError(f"{caller}: batch_directory={path!r} must be the path of a folder on a local disk.")
    if not isinstance(max_wait_secs, int | float) or not max_wait_secs > 0:
        raise ConfigurationError(f"{caller}: max_wait_secs must be a number of more than 0, not {max_wait_secs!r}.")
    return path, max_wait_secs


class BatchJobs:
    """Answers requests with a Batch API.

    Args:
        caller: the handler's class, for errors.
        directory: in which is kept what was sent; ConfigurationError if it cannot be used.
        max_wait_secs: how long to wait for a batch.
        where: of the endpoint; the same body elsewhere is another request.
        api: the provider's.
        error: what the provider's client raises.
    """

    def __init__(
        self, caller: str, directory: str, max_wait_secs: float, where: str, api: BatchApi, *, error: type[Exception]
    ) -> None:
        self._caller = caller
        self._directory = directory
        self._max_wait_secs = max_wait_secs
        self._where = where
        self._api = api
        self._errors = (error, ConnectionError)
        self._store = BatchStore(directory)

    async def answers(self, bodies: Sequence[Mapping[str, Any]]) -> list[_Outcome]:
        """The answers, in order; of equal requests only one is sent. EndpointError: the provider refuses a batch."""
        ids = await asyncio.to_thread(lambda: list(map(self._id_of, bodies)))
        requests = dict(zip(ids, bodies, strict=True))
        found: dict[str, _Outcome] = {}
        deadline, tries = time.monotonic() + self._max_wait_secs, 0
        while tries < _TRIES and (left := {one: requests[one] for one in requests if _is_to_be_asked(found.get(one))}):
            until = time.monotonic() + self._max_wait_secs
            try:
                known, batches = await self._sent(left, until)
            except BatchLateError as late:
                found |= dict.fromkeys(left, late)
                known, batches, _ = await asyncio.to_thread(self._store.look_up, left)
            found |= {line.id: line for line in known}
            answers = [await self._waited_for(batch, until) for batch in batches]
            for some in answers:
                found |= some
            if all(answers) or time.monotonic() >= deadline:
                tries += 1
            else:
                await asyncio.sleep(REFUSED_SECS)
        return await self._handed_out(ids, found)

    async def _handed_out(self, ids: Sequence[str], found: Mapping[str, _Outcome]) -> list[_Outcome]:
        """The answers in order; of several to equal requests, and of those in several runs, one is new."""
        lost = BatchUnfinishedError("the provider took no batch with it in time; it has others that have not ended.")
        new = await asyncio.to_thread(self._store.count, ids)
        outcomes = [found.get(one, lost) for one in ids]
        for place, outcome in enumerate(outcomes):
            if isinstance(outcome, Line) and outcome.id in new:
                new.remove(outcome.id)
                outcomes[place] = outcome._replace(is_new=True)
        return outcomes

    async def refuse(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Forgets answers that could not be used: the next one with the same request asks again."""
        await asyncio.to_thread(lambda: self._store.refuse(map(self._id_of, bodies)))

    def _id_of(self, body: Mapping[str, Any]) -> str:
        content = json.dumps([self._where, body], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=20).hexdigest()

    async def _sent(self, left: Requests, until: float) -> tuple[list[Line], list[Sent]]:
        """The answers that are known, and the batches in which all other requests now are."""
        since = time.monotonic()
        for pause in _pauses():
            async with self._alone(until):  # not while this one waits: others may have nothing to do with it
                if await self._is_clear(left, since):
                    lines, batches, known = await asyncio.to_thread(self._store.look_up, left)
                    missing = {one: body for one, body in left.items() if one not in known}
                    for part in await asyncio.to_thread(_parts_of, missing, self._api):
                        batches.append(await self._send(part))
                    return lines, batches
            await self._rest(pause, until, "it is not known yet whether the batch with this request has arrived")
        raise AssertionError("this is a bug in Headrace, please report it")

    async def _is_clear(self, left: Requests, since: float) -> bool:
        """Whether all batches have arrived, or not, whose sender was killed, or heard nothing."""
        is_clear = True
        for announced in await asyncio.to_thread(self._store.announced, left):
            with self._refusing():
                remote = await self._api.find(announced)
            is_old = time.time() - announced.at >= OLD_SECS or time.monotonic() - since >= ARRIVING_SECS
            if remote:
                await asyncio.to_thread(self._store.sent, announced.token, remote)
            elif remote is not None and is_old:
                await asyncio.to_thread(self._store.forget, announced.token)
            else:
                is_clear = False
        return is_clear

    async def _rest(self, pause: float, until: float, reason: str) -> None:
        if time.monotonic() + pause > until:
            raise BatchLateError(
                f"no answer after {self._max_wait_secs:g} s: {reason}. Run again later with the same batch_directory."
            )
        await asyncio.sleep(pause)

    @contextmanager
    def _refusing(self, remote: str = "") -> Iterator[None]:
        """A context in which a client's error that would come again is an EndpointError."""
        try:
            yield
        except self._errors as error:
            if not is_final(status_of(error)):
                raise
            gone = f" If it has no batch {remote} any more, name another batch_directory." if remote else ""
            raise EndpointError(
                f"{self._caller}: the endpoint refuses the batch: {as_type_name(error)}: {error}. Check the key, the "
                f"URL, the account, and whether the endpoint has a Batch API.{gone}"
            ) from error

    async def _send(self, requests: Requests) -> Sent:
        token = uuid.uuid4().hex
        with self._refusing():
            prepared = await self._api.prepare(token, requests)
            await asyncio.to_thread(self._store.announce, token, requests)
            try:
                remote = await self._api.send(token, prepared)
            except self._errors as error:
                if is_final(status_of(error)) or status_of(error) in _NOT_TAKEN:
                    await asyncio.to_thread(self._store.forget, token)
                raise  # else it may have arrived all the same: the next try looks for it
        await asyncio.to_thread(self._store.sent, token, remote)
        _LOGGER.info("%s: %s requests were sent as batch %s", self._caller, f"{len(requests):,}", remote)
        return Sent(token, remote)

    async def _waited_for(self, batch: Sent, until: float) -> dict[str, _Outcome]:
        """The answers of a batch; an error in the place of each that did not come. Empty if it is to be sent later."""
        ids = {line.id for line in await asyncio.to_thread(self._store.lines, batch.token)}
        later = (
            f"batch {batch.remote} stays at the provider. What was sent is in {self._directory}: run again with the "
            "same batch_directory to collect it; nothing is paid twice."
        )
        try:
            collected = await self._polled(batch.remote, ids, until)
        except BatchRefusedError as error:
            await asyncio.to_thread(self._store.forget, batch.token)
            if not error.is_for_now:
                raise EndpointError(f"{self._caller}: {error}") from error
            _LOGGER.info("%s: %s; it is sent again in %g s", self._caller, error, REFUSED_SECS)
            return {}
        except asyncio.CancelledError:
            _LOGGER.warning("%s: %s", self._caller, later)
            raise
        if collected is None:
            return dict.fromkeys(ids, BatchLateError(f"no answer after {self._max_wait_secs:g} s; {later}"))
        answered, ended = collected
        await asyncio.to_thread(self._store.end, batch.token, answered)
        otherwise = f"batch {batch.remote} ended ({ended}) without its answer"
        return {line.id: _outcome(line, otherwise) for line in await asyncio.to_thread(self._store.lines, batch.token)}

    async def _polled(self, remote: str, ids: set[str], until: float) -> Collected | None:
        """What a batch leaves behind; None if it does not end in time. Answers may come after its end."""
        since, ended_at = time.monotonic(), None
        for pause in _pauses():
            collected = None
            is_known = time.monotonic() - since >= ARRIVING_SECS
            try:
                with self._refusing(remote) if is_known else nullcontext():
                    collected = await self._api.collect(remote)
            except self._errors as error:
                _LOGGER.info("%s: batch %s could not be polled: %s", self._caller, remote, as_type_name(error))
            if collected is not None:
                ended_at = ended_at or time.monotonic()
                is_whole = ids <= {line.id for line in collected[0]}
                if is_whole or time.monotonic() - ended_at >= ARRIVING_SECS:
                    return collected
            if time.monotonic() + pause > until:
                break
            await asyncio.sleep(pause)
        return None

    @asynccontextmanager
    async def _alone(self, until: float) -> AsyncIterator[None]:
        """While the context is open, nobody else sends batches of this directory. Locks end with their process."""
        from filelock import FileLock, Timeout  # noqa: PLC0415 - only batches need it

        lock = FileLock(os.path.join(self._directory, "lock"), thread_local=False)
        while not lock.is_locked:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                await self._rest(_LOCK_SECS, until, f"another process keeps {lock.lock_file} locked")
            except OSError as error:
                raise unusable(self._directory, error) from error
        try:
            yield
        finally:
            lock.release()


def _parts_of(requests: Requests, api: BatchApi) -> list[Requests]:
    """Requests that fit into a batch, together."""
    parts: list[dict[str, Mapping[str, Any]]] = []
    size = api.most_bytes
    for name, body in requests.items():
        needed = len(json.dumps(body)) + len(name) + 200  # what a provider's format has around it
        if size + needed > api.most_bytes or len(parts[-1]) == api.most_requests:
            parts.append({})
            size = 0
        parts[-1][name] = body
        size += needed
    return list(parts)


def _is_to_be_asked(outcome: _Outcome | None) -> bool:
    """Whether there is no answer, or one that the same request may not get again."""
    if isinstance(outcome, Line):
        return outcome.status != 200 and not is_final(outcome.status)
    return outcome is None or not isinstance(outcome, BatchLateError)


def _outcome(line: Line, otherwise: str) -> _Outcome:
    if line.status is not None:
        return line
    return BatchUnfinishedError(f"{otherwise}: {line.body}" if line.body else f"{otherwise}.")


def _pauses() -> Iterator[float]:
    """Seconds between polls."""
    longest = FIRST_POLL_SECS
    while True:
        yield longest * random.uniform(0.75, 1.0)  # noqa: S311 - jitter keeps no secret
        longest = min(1.5 * longest, LONGEST_POLL_SECS)

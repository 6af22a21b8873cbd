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
import itertools
import json
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from headrace.core.errors import EndpointError, HeadraceError, as_type_name
from headrace.handlers.batch_api import BatchApi, BatchNotMadeError, BatchRefusedError, Collected, Request, parts_of
from headrace.handlers.batch_lines import BatchLines
from headrace.handlers.batch_store import LOCK, Announced, BatchStore, Line, Sent, unusable
from headrace.handlers.client_errors import is_final, status_of

__all__ = ["BatchAnswer", "BatchJobs", "BatchUnfinishedError"]

FIRST_POLL_SECS, LONGEST_POLL_SECS = 1.0, 60.0
"""Polls follow each other at growing intervals."""
ARRIVING_SECS = 60.0
"""For how long is looked for what may be on its way yet, or not be known everywhere at once."""
OLD_SECS = 600.0
"""After which nothing is on its way any more."""
REFUSED_SECS = 300.0
"""How long a batch waits for others that take up what may be at the provider at a time."""
_TRIES = 3
"""How often a request is sent that no batch has come to."""
_READINGS = 8
"""How often what an ended batch lacks is looked for, which with pauses takes half a minute."""
_LOCK_SECS = 0.1
_OK = 200
_MISSING = 404
_NOT_TAKEN = (429, 529)
"""What a provider says that has not even looked at a batch."""

_LOGGER = logging.getLogger(__name__)


class BatchUnfinishedError(HeadraceError, TimeoutError):
    """A request was not answered in time, by any batch."""


class BatchLateError(BatchUnfinishedError):
    """A request was not answered in time, and its batch still runs."""


class BatchAnswer(NamedTuple):
    """The answer to a request, as HTTP would have it."""

    status: int
    body: str
    """JSON."""
    is_new: bool = False
    """Whether it is handed out for the first time; else what it cost was counted before."""


class BatchJobs:
    """Answers requests with a Batch API.

    Args:
        who: the handler's class, for errors.
        directory: of the store.
        max_wait_secs: how long to wait for a batch.
        where: of the endpoint; the same body elsewhere is another request.
        api: the provider's.
        run: by which answers are asked for; what another one could not use is asked for again.
    """

    def __init__(
        self, who: str, directory: str, max_wait_secs: float, where: str, api: BatchApi, *, run: str = ""
    ) -> None:
        self._who = who
        self._directory = directory
        self._max_wait_secs = max_wait_secs
        self._where = where
        self._api = api
        self._run = run
        self._store = BatchStore(directory)

    async def answers(self, bodies: Sequence[Mapping[str, Any]]) -> list[BatchAnswer | BatchUnfinishedError]:
        """The answers, in order; of equal requests only one is sent.

        Raises:
            EndpointError: the provider refuses a batch, or everything.
            Exception: whatever the client raises where a batch could not be sent.
        """
        requests = await asyncio.to_thread(lambda: [Request(self._id_of(body), body) for body in bodies])
        found: dict[str, BatchAnswer | BatchUnfinishedError] = {}
        deadline, tries = time.monotonic() + self._max_wait_secs, 0
        while tries < _TRIES and (left := {one.id: one for one in requests if _is_to_be_asked(found.get(one.id))}):
            until = time.monotonic() + self._max_wait_secs
            try:
                known, batches = await self._sent(left, until)
            except BatchLateError as late:
                found |= dict.fromkeys(left, late)
                known, batches, _ = await asyncio.to_thread(self._store.look_up, left, self._run)
            found |= {line.id: BatchAnswer(_OK, line.body) for line in known}
            is_full = False
            for batch in batches:
                answers = await self._waited_for(batch, until)
                is_full = is_full or not answers
                found |= answers
            if is_full and time.monotonic() < deadline:
                await asyncio.sleep(REFUSED_SECS)
            else:
                tries += 1
        return await self._handed_out(requests, found)

    async def _handed_out(
        self, requests: Sequence[Request], found: Mapping[str, BatchAnswer | BatchUnfinishedError]
    ) -> list[BatchAnswer | BatchUnfinishedError]:
        """The answers in order; of several to equal requests, and of those in several runs, one is new."""
        lost = BatchUnfinishedError("the provider took no batch with it in time; it has others that have not ended.")
        new = await asyncio.to_thread(self._store.count, [request.id for request in requests])
        answers: list[BatchAnswer | BatchUnfinishedError] = []
        for request in requests:
            answer = found.get(request.id, lost)
            if isinstance(answer, BatchAnswer) and request.id in new:
                new.remove(request.id)
                answer = answer._replace(is_new=True)
            answers.append(answer)
        return answers

    async def refuse(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Has later runs ask again for what could not be used."""
        await asyncio.to_thread(lambda: self._store.refuse(map(self._id_of, bodies), self._run))

    def _id_of(self, body: Mapping[str, Any]) -> str:
        content = json.dumps([self._where, body], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=20).hexdigest()

    async def _sent(self, left: Mapping[str, Request], until: float) -> tuple[list[Line], list[Sent]]:
        """The answers that are known, and the batches in which all other requests now are.

        Raises:
            BatchLateError: it is not known in time what was sent before.
        """
        since, has_said = time.monotonic(), False
        for pause in _pauses():
            async with self._alone(until):  # not while this one waits: others may have nothing to do with it
                if await self._is_clear(left, since):
                    return await self._sent_rest(left)
            if not has_said:
                _LOGGER.warning(
                    "%s: a batch was sent that may have arrived; it is looked for at the provider", self._who
                )
                has_said = True
            await self._rest(pause, until, "it is not known yet whether the batch with this request has arrived")
        raise AssertionError("this is a bug in Headrace, please report it")

    async def _sent_rest(self, left: Mapping[str, Request]) -> tuple[list[Line], list[Sent]]:
        lines, batches, known = await asyncio.to_thread(self._store.look_up, left, self._run)
        missing = [request for request in left.values() if request.id not in known]
        limits = self._api.most_requests, self._api.most_bytes
        for part in await asyncio.to_thread(lambda: list(parts_of(missing, *limits))):
            batches.append(await self._send(part))
        return lines, batches

    async def _is_clear(self, left: Mapping[str, Request], since: float) -> bool:
        """Whether all batches have arrived, or not, whose sender was killed, or heard nothing."""
        is_clear = True
        for announced in await asyncio.to_thread(self._store.announced, left):
            remote = await self._found(announced)
            if remote:
                await asyncio.to_thread(self._store.sent, announced.number, remote)
            elif remote is not None and (time.monotonic() - since >= ARRIVING_SECS or _is_old(announced)):
                await asyncio.to_thread(self._store.forget, announced.number)
            else:
                is_clear = False
        return is_clear

    async def _rest(self, pause: float, until: float, reason: str) -> None:
        if time.monotonic() + pause > until:
            raise BatchLateError(
                f"no answer after {self._max_wait_secs:g} s: {reason}. Run again later with the same batch_directory."
            )
        await asyncio.sleep(pause)

    async def _found(self, announced: Announced) -> str | None:
        try:
            return await self._api.find(announced)
        except self._api.errors as error:
            if is_final(status_of(error)):
                raise self._refusal(error) from error
            raise

    async def _send(self, requests: Sequence[Request]) -> Sent:
        failures: tuple[type[Exception], ...] = (BatchNotMadeError, *self._api.errors)
        number, token = await asyncio.to_thread(self._store.announce, [request.id for request in requests])
        try:
            remote = await self._api.send(token, requests)
        except failures as failure:
            error = failure.error if isinstance(failure, BatchNotMadeError) else failure
            if error is not failure or is_final(status_of(error)) or status_of(error) in _NOT_TAKEN:
                await asyncio.to_thread(self._store.forget, number)
            if is_final(status_of(error)):
                raise self._refusal(error) from error
            raise error from error.__cause__  # it may have arrived all the same: the next try looks for it
        await asyncio.to_thread(self._store.sent, number, remote)
        _LOGGER.info("%s: %s requests were sent as batch %s", self._who, f"{len(requests):,}", remote)
        return Sent(number, remote)

    async def _waited_for(self, batch: Sent, until: float) -> dict[str, BatchAnswer | BatchUnfinishedError]:
        """The answers of a batch; an error in the place of each that did not come. Empty if it is to be sent later."""
        try:
            collected = await self._polled(batch.remote, until)
        except BatchRefusedError as error:
            await asyncio.to_thread(self._store.forget, batch.number)
            if error.is_for_now:
                _LOGGER.info("%s: %s; it is sent again in %g s", self._who, error, REFUSED_SECS)
                return {}
            raise EndpointError(f"{self._who}: {error}") from error
        except asyncio.CancelledError:
            _LOGGER.warning("%s: %s", self._who, self._later(batch.remote))
            raise
        if collected is None:
            late = BatchLateError(f"no answer after {self._max_wait_secs:g} s; {self._later(batch.remote)}")
            return dict.fromkeys((line.id for line in await self._lines(batch)), late)
        await asyncio.to_thread(self._store.end, batch.number, await self._whole(batch, collected))
        otherwise = f"batch {batch.remote} ended ({collected.ended}) without its answer"
        return {line.id: _answer(line, otherwise) for line in await self._lines(batch)}

    async def _whole(self, batch: Sent, collected: Collected) -> list[Line]:
        """The lines of a batch that has ended; its files are read again if they lack some, which may come late."""
        known = BatchLines(line.id for line in await self._lines(batch))
        known.add(collected.lines)
        for pause in itertools.islice(_pauses(), _READINGS):
            if not known.lacking:
                break
            lacking = f"batch {batch.remote} has ended and lacks {known.lacking:,} answers"
            _LOGGER.warning("%s: %s; its results are read again in %.1f s", self._who, lacking, pause)
            await asyncio.sleep(pause)
            with suppress(HeadraceError, *self._api.errors):
                again = await self._api.collect(batch.remote)
                known.add(again.lines if again else [])
        return known.settled(batch.remote)

    async def _lines(self, batch: Sent) -> list[Line]:
        return await asyncio.to_thread(self._store.lines, batch.number)

    async def _polled(self, remote: str, until: float) -> Collected | None:
        """What a batch leaves behind; None if it does not end in time."""
        since = time.monotonic()
        for pause in _pauses():
            asked = 0.0
            try:
                collected = await self._api.collect(remote)
                if collected is not None:
                    return collected
            except self._api.errors as error:
                may_come = status_of(error) == _MISSING and time.monotonic() - since < ARRIVING_SECS
                if is_final(status_of(error)) and not may_come:
                    raise self._refusal(error, remote) from error
                asked = _retry_after(error)
                _LOGGER.info("%s: batch %s could not be polled: %s", self._who, remote, as_type_name(error))
            if time.monotonic() + max(pause, asked) > until:
                break
            await asyncio.sleep(max(pause, asked))
        return None

    def _later(self, remote: str) -> str:
        return (
            f"batch {remote} stays at the provider. What was sent is in {self._directory}: run again with the same "
            "batch_directory to collect it; nothing is paid twice."
        )

    def _refusal(self, error: Exception, remote: str = "") -> EndpointError:
        gone = f" If it has no batch {remote} any more, name another batch_directory." if remote else ""
        return EndpointError(
            f"{self._who}: the endpoint refuses the batch: {as_type_name(error)}: {error}. Check the key, the URL, the "
            f"account, and whether the endpoint has a Batch API.{gone}"
        )

    @asynccontextmanager
    async def _alone(self, until: float) -> AsyncIterator[None]:
        """While the context is open, nobody else sends batches of this directory. Locks end with their process."""
        from filelock import FileLock, Timeout  # noqa: PLC0415 - only batches need it

        lock = FileLock(os.path.join(self._directory, LOCK), thread_local=False)
        while not lock.is_locked:
            try:
                with suppress(Timeout):
                    lock.acquire(timeout=0)
            except OSError as error:
                raise unusable(self._directory, error) from error
            if not lock.is_locked:
                await self._rest(_LOCK_SECS, until, f"another process keeps {lock.lock_file} locked")
        try:
            yield
        finally:
            lock.release()


def _is_old(announced: Announced) -> bool:
    return time.time() - announced.at >= OLD_SECS


def _is_to_be_asked(answer: BatchAnswer | BatchUnfinishedError | None) -> bool:
    """Whether there is no answer, or one that the same request may not get again."""
    if isinstance(answer, BatchAnswer):
        return answer.status >= 400 and not is_final(answer.status)
    return answer is None or not isinstance(answer, BatchLateError)


def _answer(line: Line, otherwise: str) -> BatchAnswer | BatchUnfinishedError:
    if line.status is not None:
        return BatchAnswer(line.status, line.body)
    return BatchUnfinishedError(f"{otherwise}: {line.body}" if line.body else f"{otherwise}.")


def _pauses() -> Iterator[float]:
    """Seconds between polls."""
    longest = FIRST_POLL_SECS
    while True:
        yield longest * random.uniform(0.75, 1.0)  # noqa: S311 - jitter keeps no secret
        longest = min(1.5 * longest, LONGEST_POLL_SECS)


def _retry_after(error: Exception) -> float:
    """How long the endpoint asked to wait, in seconds; 0: it did not."""
    given = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(given))
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
    return 0.0

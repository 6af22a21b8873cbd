"""Engines in hosts: their handler there, and in a worker what stands in for an engine, in one copy or several."""

from __future__ import annotations

import math
import time
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

from headrace.core.engine import EngineModelHandler, predict_each
from headrace.core.event_loop import Ended, ended_in_time, in_context
from headrace.core.events import Event
from headrace.core.model_cache import Slot
from headrace.core.remote import ElementFailure, ElementRetry
from headrace.core.request_context import request_context
from headrace.core.result import Caught
from headrace.failures.device import device_loss
from headrace.hosts.host import Later, Response
from headrace.hosts.provider import HostFailure
from headrace.hosts.side_by_side import SideBySide
from headrace.ipc.progress import Progress
from headrace.ipc.serialization import exception_reducers
from headrace.runtime.host_transport import HostTransport
from headrace.runtime.request_handler import (
    BatchRequestHandler,
    Done,
    EngineRequest,
    Work,
    device_failure,
    raised,
    why_unsendable,
)
from headrace.runtime.spec import SessionSpec

NOT_MAPPED = "it is an engine, which takes the requests of all processes itself"
"""Why the weights of a shared engine are not in shared memory."""
_DONE = Response(Done((), [], [], []))
_BLOCK, _LONGEST = 64, 16_384
"""Bytes of a prompt that are looked up together, and of its beginning that count: some 16 tokens, as in vLLM."""
_REMEMBERED = 32_768
"""How many blocks of prompts are remembered of a copy: 2 MB of text, about what the cache of a large engine holds."""
_MOST_SLACK = 16


class PrefixRouter:
    """Chooses a copy for each request. Pure; not thread-safe.

    That is the copy which has had the longest beginning of the prompt before, if it is a quarter of the prompt or more:
    otherwise a short preamble that all prompts share would decide. Among equals it is the least loaded.

    Args:
        copies: how many there are.
        slack: how many more requests than the least loaded copy one may have, to be given another for its prefix.
    """

    def __init__(self, copies: int, slack: int) -> None:
        self._slack = slack
        self._known: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(copies)]
        """Of each copy the checksums of beginnings that it has had, the latest last."""
        self._turn = 0

    def choose(self, prefix: str, loads: Sequence[int], is_up: Sequence[bool]) -> int:
        """The copy that gets a request: one of those that are up, unless none is."""
        blocks = _beginnings(prefix)
        copies = range(len(loads))
        candidates = [copy for copy in copies if is_up[copy]] or copies
        most = min(loads[copy] for copy in candidates) + self._slack
        self._turn += 1

        def rank(copy: int) -> tuple[int, int, int]:
            known = sum(1 for _ in takewhile(self._known[copy].__contains__, blocks))
            return known if 4 * known >= len(blocks) else 0, -loads[copy], (copy + self._turn) % len(loads)

        chosen = max((copy for copy in candidates if loads[copy] <= most), key=rank)
        self._remember(self._known[chosen], blocks)
        return chosen

    @staticmethod
    def _remember(known: OrderedDict[int, None], blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # what many prompts begin with is forgotten last
            known[block] = None
            known.move_to_end(block)
        while len(known) > _REMEMBERED:
            known.popitem(last=False)


def _beginnings(prefix: str) -> list[int]:
    """The checksums of a text's first block, its first two, and so on."""
    text = prefix[:_LONGEST].encode(errors="replace")[:_LONGEST]
    found, checksum = [], 0
    for start in range(0, len(text) - _BLOCK + 1, _BLOCK):
        checksum = zlib.crc32(text[start : start + _BLOCK], checksum)
        found.append(checksum)
    return found


class EngineCopies:
    """Stands in for an engine that lives in hosts, which end, or are left to others, when this is garbage-collected.

    A copy whose host was lost gets no requests until it is up again. If it was idle then, it gets one, which starts it;
    if that fails, another copy has the request.

    Args:
        copies: each is loaded.
        room: how many requests each is given at a time.
        prefix: the handler's.
    """

    def __init__(self, copies: Sequence[HostTransport], room: int, prefix: Callable[[Any], str | None] | None) -> None:
        self._copies = copies
        self._prefix = prefix
        self._router = PrefixRouter(len(copies), min(_MOST_SLACK, room // 2))
        weakref.finalize(self, _close, copies)

    def predict(self, examples: Sequence[Any], inference_args: dict[str, Any] | None) -> Awaitable[list[Any]]:
        """As ``HostTransport.predict``; its errors do not refer to this object: who keeps one would keep the hosts."""
        if len(self._copies) == 1:
            return self._copies[0].predict(examples, inference_args)
        return self._routed(self._copies, self._router, self._prefix, examples, inference_args)

    @staticmethod
    async def _routed(
        copies: Sequence[HostTransport],
        router: PrefixRouter,
        prefix_of: Callable[[Any], str | None] | None,
        examples: Sequence[Any],
        inference_args: dict[str, Any] | None,
    ) -> list[Any]:
        prefix = "" if prefix_of is None else str(prefix_of(examples[0]) or "")
        is_up = [not (one.is_down and one.in_flight) for one in copies]
        for others in reversed(range(len(copies))):
            copy = copies[router.choose(prefix, [one.in_flight for one in copies], is_up)]
            try:
                return await copy.predict(examples, inference_args)
            except Exception:
                is_up = [not one.is_broken for one in copies]
                if not (others and copy.is_broken and any(is_up)):
                    raise
        raise AssertionError


def _close(copies: Sequence[HostTransport]) -> None:
    """Ends the hosts, unless others use them."""
    for one in copies:
        one.close()


class EngineRequestHandler(BatchRequestHandler):
    """Holds an engine, as any model, and gives it requests; pickled to the host.

    Args:
        spec: of the session.
        name: of the model.
    """

    def __init__(self, spec: SessionSpec, name: Any) -> None:
        super().__init__(replace(spec, cache=None))
        self._name = name
        self._handler: EngineModelHandler[Any, Any, Any]
        self._slot: Slot
        self._succeeded_at = -math.inf
        """When a request last has."""
        self._in_flight = 0
        self._hangs = False
        """Whether a request was late because the engine answers nothing."""

    def answer(self, head: Work | EngineRequest, rows: list[Any], progress: Progress) -> Response | Later:
        """Loads the engine, unless it is; a request's answer comes later."""
        if self.side_by_side is None:
            loaded = super().answer(Work(self._name), [], progress)
            if not isinstance(loaded, Response) or not isinstance(loaded.head, Done):
                return loaded
            worker = self._opened(progress)
            self._slot, self._handler = worker.access.borrow(self._name), worker.plan.models[self._name]
            self.side_by_side = SideBySide(progress, self._handler.max_concurrent, self._spec.timeout_secs)
            self.side_by_side.start()
            if isinstance(head, Work):
                return loaded
        return partial(self._predict, head, rows, progress) if isinstance(head, EngineRequest) else _DONE

    def unsendable(self, answer: Response, error: Exception) -> Response:
        """An engine's request fails as a whole."""
        if device_loss(error) or not isinstance(answer.head, Done):
            return super().unsendable(answer, error)
        problem = next(filter(None, map(why_unsendable, answer.rows)), None)
        return raised(problem or Caught.of(error), answer.head.events)

    def close(self) -> None:
        """Ends the engine."""
        if self.side_by_side is not None:
            self.side_by_side.close()
            self._slot.release()
            del self._slot
            self.side_by_side = None
        super().close()

    async def _predict(self, request: EngineRequest, rows: list[Any], progress: Progress) -> Response:
        """The engine's answer, or why there is none; it tells what was reported meanwhile."""
        used: list[Event] = []
        context, began = request_context(used.append), time.monotonic()
        submit = partial(self._submit, request, rows)
        self._in_flight += 1
        try:
            ended = await in_context(context, ended_in_time(submit, self._spec.timeout_secs))
            if ended is None:
                # If more are in flight, some should have succeeded lately.
                since = began if self._in_flight == 1 else began + (self._spec.timeout_secs or 0.0) / 2
                self._hangs |= self._succeeded_at < since
                return self._too_late(used, progress)
        finally:
            self._in_flight -= 1
        predictions: Sequence[Any] = ended.result or ()
        errors = [row.error for row in predictions if type(row) in (ElementFailure, ElementRetry)]
        errors += [] if ended.error is None else [ended.error]
        for lost in filter(None, map(device_loss, errors)):
            return Response(device_failure(lost, progress), is_last=True)
        if ended.error is not None:
            return raised(Caught.of(ended.error), used)
        self._succeeded_at = time.monotonic()
        return Response(Done(range(len(predictions)), [], used, []), predictions, reducers=exception_reducers(errors))

    async def _submit(self, request: EngineRequest, rows: list[Any]) -> Ended:
        """Not an exception: a task that raises SystemExit ends its loop."""
        try:
            return Ended(await predict_each(self._handler, rows, self._slot.model.model, request.inference_args))
        except BaseException as error:
            return Ended(error=error)

    def _too_late(self, used: list[Event], progress: Progress) -> Response:
        """What to say of a request that took too long, by itself or because the engine hangs."""
        secs = f"{self._spec.timeout_secs:g} s"
        if self._hangs:
            why = f"was killed, since its engine answers nothing: a request took longer than {secs}"
            return Response(HostFailure(progress.read(), True, why), is_last=True)
        error = TimeoutError(f"{type(self._handler).__qualname__}.submit took longer than {secs}.")
        vars(error)["retryable"] = False  # the next try would cost the same time
        return raised(Caught.of(error), used)

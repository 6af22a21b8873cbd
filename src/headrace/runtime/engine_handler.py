"""An engine's handler in a host: loads it in turn, and gives it the requests of all clients side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
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
from headrace.ipc.exceptions import stand_ins
from headrace.ipc.progress import Progress
from headrace.runtime.messages import Done, EngineRequest, Work
from headrace.runtime.request_handler import BatchRequestHandler, device_failure, raised, why_unsendable
from headrace.runtime.spec import SessionSpec

NOT_MAPPED = "it is an engine, which takes the requests of all processes itself"
"""Why the weights of a shared engine are not in shared memory."""
_DONE = Response(Done((), [], [], []))


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
        self._succeeded = 0
        """How many requests have."""
        self._succeeded_at = -math.inf
        """When the last one has."""
        self._in_flight = 0
        self._hangs = False
        """Whether a request was late because the engine answers nothing."""

    def answer(self, head: Work | EngineRequest, rows: list[Any], progress: Progress) -> Response | Later:
        """Loads the engine, unless it is; a request's answer comes later."""
        if self.side_by_side is None:
            loaded = super().answer(Work(self._name), [], progress)
            if not isinstance(loaded, Response) or not isinstance(loaded.head, Done):
                return loaded
            worker = self._opened()
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
        context, succeeded = request_context(used.append), self._succeeded
        submit = partial(self._submit, request, rows)
        self._in_flight += 1
        try:
            ended = await in_context(context, ended_in_time(submit, self._spec.timeout_secs))
            if ended is None:
                self._hangs |= succeeded == self._succeeded or self._is_silent()
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
        self._succeeded += 1
        self._succeeded_at = time.monotonic()
        return Response(Done(range(len(predictions)), [], used, []), predictions, reducers=stand_ins(errors))

    async def _submit(self, request: EngineRequest, rows: list[Any]) -> Ended:
        """Not an exception: a task that raises SystemExit ends its loop."""
        try:
            return Ended(await predict_each(self._handler, rows, self._slot.model.model, request.inference_args))
        except BaseException as error:
            return Ended(error=error)

    def _is_silent(self) -> bool:
        """Whether nothing has ended lately although more than the request that is late is in flight."""
        lately = time.monotonic() - (self._spec.timeout_secs or 0.0) / 2
        return self._in_flight > 1 and self._succeeded_at < lately

    def _too_late(self, used: list[Event], progress: Progress) -> Response:
        """What to say of a request that took too long, by itself or because the engine hangs."""
        secs = f"{self._spec.timeout_secs:g} s"
        if self._hangs:
            why = f"was killed, since its engine answers nothing: a request took longer than {secs}"
            return Response(HostFailure(progress.read(), True, why), is_last=True)
        error = TimeoutError(f"{type(self._handler).__qualname__}.submit took longer than {secs}.")
        vars(error)["retryable"] = False  # the next try would cost the same time
        return raised(Caught.of(error), used)

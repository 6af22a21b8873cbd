"""A session's models in hosts: sends requests, collects responses, and retries loads that a host did not survive.

``HostedModelProxy`` is one of them as a handler sees it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, TypeAlias
from weakref import WeakSet

from headrace.core.answer import SKIP
from headrace.core.errors import HostDiedError, HostError
from headrace.core.events import WANTED, BatchCompleted, BatchFailed, CallEnded, ElementsSkipped, Event, HostLost
from headrace.core.phases import Look, Phase
from headrace.core.result import Caught
from headrace.failures.breaker import CircuitBreaker, LoadPolicy
from headrace.failures.recovery import HOST_TIMED_OUT
from headrace.hosts.client import ModelHosts
from headrace.hosts.connection import Call
from headrace.hosts.provider import DeviceLostInHostError, HostFailure, loss_error
from headrace.ipc.progress import Activity
from headrace.ipc.serialization import with_traceback_of
from headrace.runtime.model_source import ModelProxy
from headrace.runtime.observers import sample_also
from headrace.runtime.request_handler import Done, Raised, Unreadable, WaitContext, Work
from headrace.runtime.spec import SessionSpec

_LOGGER = logging.getLogger(__name__)
_PHASES = {
    Activity.DECODING: Phase.TRANSFER,
    Activity.LOADING: Phase.LOADING,
    Activity.PREPROCESSING: Phase.PREPROCESSING,
    Activity.INFERENCE: Phase.MODEL,
    Activity.POSTPROCESSING: Phase.POSTPROCESSING,
    Activity.ANSWERING: Phase.TRANSFER,
}

Answer: TypeAlias = tuple[Done | Raised | Unreadable | HostFailure, list[Any]]
"""A request's response, and its rows: predictions or preprocessed elements."""


class HostedModels:
    """The models of a session, in hosts; thread-safe.

    Args:
        spec: of the session.
        hosts: run the models.
        report: receives events of hosts that were lost.
        keeps: resources to close last.
    """

    def __init__(
        self,
        spec: SessionSpec,
        hosts: ModelHosts,
        report: Callable[[Iterable[Event]], None],
        keeps: ExitStack | None = None,
    ) -> None:
        self._plan = spec.plan
        self._report = report
        self._name = spec.plan.name
        self._timeout_secs = spec.timeout_secs
        self._hosts = hosts
        self._keeps = keeps or ExitStack()
        self.in_flight = 2 * hosts.copies
        """How many batches of a bundle may be in flight: for each host, one computing and one waiting."""
        self._loads = {name: LoadPolicy(spec.clock.time_ns) for name in spec.plan.models}
        self._opening = LoadPolicy(spec.clock.time_ns)
        self.asked_for: set[Any] = set()
        """The names of models that have been loaded."""
        self.breaker = CircuitBreaker()
        """For preprocessing requests, which come before batching."""
        self._threads: WeakSet[threading.Thread] = WeakSet()
        """Those of ``in_background``."""
        sample_also(self)

    def look(self) -> Look:
        """What the hosts are at, for samples."""
        phases = [_PHASES[one.activity] for one in self._hosts.snapshots if one.activity in _PHASES]
        return Look(phases, processes=self._hosts.processes)

    def submit(self, work: Work, rows: list[Any]) -> Call | Raised | Unreadable:
        """Sends a request; the response is known at once if rows cannot be pickled or the load has just failed."""
        standing = self._record(work).current_error()
        if standing is not None:
            return Raised(Caught(standing, []), [])
        try:
            return self._hosts.submit(work, rows)
        except (HostError, OSError, MemoryError):  # the machine's fault, not the rows'
            raise
        except Exception as error:
            return Unreadable(Caught.of(error))

    def is_ready(self, call: Call | Raised | Unreadable) -> bool:
        """Whether ``answer`` would return without waiting."""
        return not isinstance(call, Call) or call.connection is None or call.connection.is_ready(call)

    def answer(self, work: Work, rows: list[Any], call: Call | Raised | Unreadable) -> Answer:
        """Waits for the response; sends the request again if its host was lost while loading and may be retried."""
        record = self._record(work)
        while isinstance(call, Call):
            try:
                result = self._hosts.result(call)
            except HostError:
                raise
            except Exception as problem:  # the answer cannot be unpickled
                return Unreadable(Caught.of(problem)), []
            if not isinstance(result, HostFailure) and isinstance(result.head, HostFailure):
                result = result.head
            # A host lost while loading says nothing about the rows: the load policy decides whether to send them again.
            # Any other lost host is the caller's to recover from.
            if isinstance(result, HostFailure) and result.snapshot.activity is Activity.LOADING:
                error = self._load_lost(result, work.model)
                again = record.failed(error, result.snapshot.seconds, timed_out=result.timed_out)
                call = self._hosts.submit(work, rows) if again else Raised(Caught(error, []), [])
                continue
            if isinstance(result, HostFailure):
                return result, []
            record.loaded()
            if work.infer or not work.preprocess:
                self.asked_for.add(work.model)
            if CallEnded in WANTED and work.infer and isinstance(result.head, Done | Raised):
                seconds, label = time.monotonic() - call.made, self._plan.label(work.model)
                result.head.events.insert(0, CallEnded(label, seconds, is_request=False))
            return result.head, result.rows
        return call, []

    def ask(self, work: Work, rows: list[Any]) -> Answer:
        """Sends a request and waits for its response."""
        return self.answer(work, rows, self.submit(work, rows))

    def lost(self, loss: HostFailure, what: str, label: str, kind: type[HostDiedError] = HostDiedError) -> Exception:
        """Notes that a host was lost while it was doing something for a model; returns the error of that."""
        _LOGGER.warning("%s: the host %s while it was %s.", self._name, loss.exit_text, what)
        self._report([HostLost(label, loss.timed_out, loss.exit_text)])
        return loss_error(loss, what, self._timeout_secs, kind)

    def load(self, name: Any, *, may_be_lost: bool = False) -> list[Event]:
        """Loads the named model, unless it is loaded; returns the events of that.

        Raises:
            HostStartError: no host can be started.
            Exception: the model cannot be loaded; or its host was lost, unless that ``may_be_lost``.
        """
        answer, _ = self.ask(Work(name), [])
        if isinstance(answer, HostFailure):
            if may_be_lost:
                return []
            raise self._load_lost(answer, name)
        if not isinstance(answer, Done):
            raise with_traceback_of(*answer.caught)
        return answer.events

    def start(self) -> None:
        """Starts the hosts, which is else done for the first request.

        Raises:
            HostStartError: one cannot be started.
        """
        self._hosts.start_all()

    def in_background(self, work: Callable[[], None]) -> Callable[[], None]:
        """Does work that asks these models for something, on a thread of its own; ``close`` ends it.

        Returns:
            What waits, once, until it is done, and raises what it has raised.
        """
        # Not joined: Ctrl-C during ``Thread.join`` makes Python take the thread for ended (before 3.13), and ``close``
        # would not wait for it. Nor an Event, whose lock Ctrl-C may leave locked.
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

        def wait() -> None:
            error = ended.get()
            if error is not None:
                raise error

        thread = threading.Thread(target=run, name="headrace starts a host", daemon=True)
        thread.start()
        self._threads.add(thread)
        return wait

    def close(self) -> None:
        """Disconnects from the hosts, and ends those that are this session's own."""
        with self._keeps:
            self._hosts.close()  # what the threads wait for fails
            for thread in list(self._threads):
                thread.join()

    def _load_lost(self, loss: HostFailure, name: Any) -> Exception:
        kind = DeviceLostInHostError if loss.device_lost else HostDiedError
        return self.lost(loss, f"loading the model of {self._name}", self._plan.label(name), kind)

    def _record(self, work: Work) -> LoadPolicy:
        """The load record of the requested model; preprocessing whose key is not known yet has its own."""
        return self._loads[work.model] if work.infer or not self._plan.routed else self._opening


_COUNTED_HERE = (BatchCompleted, BatchFailed, ElementsSkipped)


class HostOutOfMemoryError(HostDiedError, MemoryError):
    """A host ran out of memory and died; a smaller batch may fit."""


class HostedModelProxy(ModelProxy):
    """Forwards batches to the model's hosts; disconnects from them when it is garbage-collected.

    Args:
        name: of the model.
        models: its hosts.
        report: receives the hosts' events, except those that this process counts itself.
        elsewhere: a context for waiting on the hosts.
    """

    def __init__(
        self, name: Any, models: HostedModels, report: Callable[[Iterable[Event]], None], elsewhere: WaitContext
    ) -> None:
        self._name = name
        self._models = models
        self._report = report
        self._elsewhere = elsewhere

    def run(self, examples: Sequence[Any]) -> list[Any]:
        """Runs a batch; one whose host dies is sent once more, since something external may have killed the host."""
        work, rows = Work(self._name, infer=True), [(self._name, example) for example in examples]
        with self._elsewhere():
            answer, predictions = self._models.ask(work, rows)
            if isinstance(answer, HostFailure) and not (answer.timed_out or answer.out_of_memory):
                self._lost(answer, len(rows))
                answer, predictions = self._models.ask(work, rows)
        if isinstance(answer, HostFailure):
            raise self._lost(answer, len(rows))
        if not isinstance(answer, Done):
            raise with_traceback_of(*answer.caught)
        self._report(event for event in answer.events if not isinstance(event, _COUNTED_HERE))
        answers: list[Any] = [SKIP] * len(rows)
        for place, (_, prediction) in zip(answer.tags, predictions, strict=True):
            answers[place] = prediction
        return answers

    def _lost(self, loss: HostFailure, count: int) -> Exception:
        kind = HostOutOfMemoryError if loss.out_of_memory else HostDiedError
        error = self._models.lost(loss, f"running inference on {count} elements", str(self._name), kind)
        # Already retried here, or a retry would cost another timeout.
        vars(error).update({"retryable": False, HOST_TIMED_OUT: loss.timed_out})
        return error

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self._models.close()

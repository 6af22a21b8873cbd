"""A session's models in hosts: sends requests, collects responses, and retries loads that a host did not survive.

``HostedModelProxy`` is one of them as a handler sees it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakSet

from headrace.batching.size import BatchTime, Untimed
from headrace.core.answer import SKIP
from headrace.core.errors import HostDiedError, HostError
from headrace.core.events import WANTED, BatchCompleted, BatchFailed, CallEnded, ElementsSkipped, Event, HostLost
from headrace.core.phases import Look, Phase
from headrace.core.result import Caught
from headrace.failures.breaker import CircuitBreaker, LoadPolicy, survive_one_death
from headrace.failures.recovery import overrun
from headrace.failures.search import parts_after_timeout
from headrace.hosts.client import ModelHosts
from headrace.hosts.connection import Call
from headrace.hosts.provider import HostFailure, died, load_error
from headrace.ipc.progress import Activity
from headrace.ipc.serialization import with_traceback_of
from headrace.runtime.messages import Done, Raised, Unreadable, Work
from headrace.runtime.model_source import ModelProxy
from headrace.runtime.observers import sample_also
from headrace.runtime.request_handler import WaitContext
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

T = TypeVar("T")
Answer: TypeAlias = tuple[Done | Raised | Unreadable | HostFailure, list[Any]]
"""A request's response, and its rows: predictions or preprocessed elements."""


class HostedModels:
    """The models of a session, in hosts; thread-safe.

    Args:
        spec: of the session.
        hosts: run the models.
        report: receives events of hosts that were lost while loading a model.
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
        self._quickest_call_secs: dict[Any, float] = {}
        """Seconds of each model's fastest batch."""
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
            return Raised(Caught(standing, []), [], loading=True)
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
                error = self._load_error(work, result)
                again = record.failed(error, result.snapshot.seconds, timed_out=result.timed_out)
                call = self._hosts.submit(work, rows) if again else Raised(Caught(error, []), [], loading=True)
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
            raise load_error(answer, self._name, self._timeout_secs)
        if not isinstance(answer, Done):
            raise with_traceback_of(*answer.caught)
        return answer.events

    def start(self) -> None:
        """Starts the hosts, which is else done for the first request.

        Raises:
            HostStartError: one cannot be started.
        """
        self._hosts.start_all()

    def in_background(self, work: Callable[[], T]) -> Callable[[], T]:
        """Does work that asks these models for something; ``close`` ends it.

        Returns:
            What waits for the result, once, and returns or raises it.
        """
        # Not a Future: Ctrl-C in the first instructions of ``Future.result`` would leave it locked, and the thread that
        # works could never end.
        ended: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                ended.put((work(), None))
            except BaseException as error:
                ended.put((None, error))

        def result() -> T:
            value, error = ended.get()
            if error is not None:
                raise error
            return cast(T, value)

        thread = threading.Thread(target=run, name="headrace starts a host", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are too many threads, or the interpreter is shutting down
            run()
        else:
            self._threads.add(thread)
        return result

    def note_call(self, name: Any, time: BatchTime) -> None:
        """Records the duration of a call of the named model, if it is known."""
        if not isinstance(time, Untimed):
            self._quickest_call_secs[name] = min(time, self._quickest_call_secs.get(name, time))

    def parts_after_timeout(self, name: Any, count: int) -> int:
        """Into how many parts to cut a group of ``count`` elements that timed out in the named model."""
        call_secs = self._quickest_call_secs.get(name, math.inf)
        return parts_after_timeout(count, call_secs, self._timeout_secs or math.inf)

    def close(self) -> None:
        """Disconnects from the hosts, and ends those that are this session's own."""
        with self._keeps:
            self._hosts.close()  # what the threads wait for fails
            for thread in list(self._threads):
                thread.join()

    def _record(self, work: Work) -> LoadPolicy:
        """The load record of the requested model; preprocessing whose key is not known yet has its own."""
        return self._loads[work.model] if work.infer or not self._plan.routed else self._opening

    def _load_error(self, work: Work, host_failure: HostFailure) -> Exception:
        self._report([HostLost(self._plan.label(work.model), host_failure.timed_out, host_failure.exit_text)])
        _LOGGER.warning("%s: the host %s while it was loading the model.", self._name, host_failure.exit_text)
        return load_error(host_failure, self._name, self._timeout_secs)


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
            answer, predictions = survive_one_death(lambda: self._ask(work, rows), _may_have_been_killed)
        if isinstance(answer, HostFailure):
            raise self._error(answer, len(rows))
        if not isinstance(answer, Done):
            raise with_traceback_of(*answer.caught)
        for _, took in answer.observations:
            self._models.note_call(self._name, took)
        self._report(event for event in answer.events if not isinstance(event, _COUNTED_HERE))
        answers: list[Any] = [SKIP] * len(rows)
        for place, (_, prediction) in zip(answer.tags, predictions, strict=True):
            answers[place] = prediction
        return answers

    def parts(self, count: int) -> int:
        """Into how many parts to cut a batch of ``count`` elements that timed out."""
        return self._models.parts_after_timeout(self._name, count)

    def _ask(self, work: Work, rows: list[Any]) -> Answer:
        answer, predictions = self._models.ask(work, rows)
        if isinstance(answer, HostFailure):
            self._report([HostLost(str(self._name), answer.timed_out, answer.exit_text)])
        return answer, predictions

    @staticmethod
    def _error(host_failure: HostFailure, count: int) -> Exception:
        text = f"the host {host_failure.exit_text} while it was running inference on {count} elements."
        died = HostOutOfMemoryError if host_failure.out_of_memory else HostDiedError
        error = overrun(text) if host_failure.timed_out else died(text)
        vars(error)["retryable"] = False  # already retried here, or a retry would cost another timeout
        return error

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self._models.close()


def _may_have_been_killed(answer: Answer) -> bool:
    """Whether the host died, but not for lack of memory: the same batch would only do that again."""
    return died(answer[0]) and not getattr(answer[0], "out_of_memory", False)

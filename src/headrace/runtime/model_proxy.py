"""Stands in for a keyed model that lives in the machine's hosts, so that a handler can call it in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.core.answer import SKIP
from headrace.core.errors import HostDiedError
from headrace.core.events import BatchCompleted, BatchFailed, ElementsSkipped, Event, HostLost
from headrace.failures.load_policy import survive_one_death
from headrace.failures.recovery import overrun
from headrace.hosts.provider import HostFailure, died
from headrace.ipc.exceptions import with_traceback_of
from headrace.runtime.hosted_models import Answer, HostedModels
from headrace.runtime.messages import Done, Work
from headrace.runtime.model_source import ModelProxy
from headrace.runtime.request_handler import WaitContext

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
        for _, time in answer.observations:
            self._models.note_call(self._name, time)
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

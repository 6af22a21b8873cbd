"""One of the models by key that lives in the machine's hosts: a handler calls it from here as if it were here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.core.errors import HostDiedError
from headrace.core.events import BatchCompleted, BatchFailed, Event
from headrace.hosting.exceptions import with_traceback_of
from headrace.hosting.life import Loss
from headrace.runtime.hosted_models import HostedModels
from headrace.runtime.servant import Done, Work
from headrace.runtime.session import ModelElsewhere


class HostedModel(ModelElsewhere):
    """Stands for the model; whoever forgets it leaves the hosts.

    Args:
        name: of the model.
        models: the way to it.
        tell: is told of what happens there, but for the batch, which is counted here.
    """

    def __init__(self, name: Any, models: HostedModels, tell: Callable[[Iterable[Event]], None]) -> None:
        self._name = name
        self._models = models
        self._tell = tell

    def run(self, examples: Sequence[Any]) -> list[Any]:
        """See ``ModelElsewhere``."""
        answer, rows = self._models.ask(Work(self._name, infer=True), [(self._name, example) for example in examples])
        if isinstance(answer, Loss):
            text = f"the host {answer.ending} while it was running inference on {len(examples)} elements."
            raise (TimeoutError if answer.timed_out else HostDiedError)(text)
        if not isinstance(answer, Done):
            raise with_traceback_of(*answer.caught)
        self._tell(event for event in answer.events if not isinstance(event, BatchCompleted | BatchFailed))
        return [prediction for _, prediction in rows]

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self._models.close()

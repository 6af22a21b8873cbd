"""Preprocessing and postprocessing, which need no model; and which errors of any operation fail elements only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from headrace.core.answer import SKIP
from headrace.core.errors import DeviceLostError, RowCostError
from headrace.core.events import ElementFailed, ElementsSkipped, Observer
from headrace.core.phases import Phase, during
from headrace.core.result import Caught, Failure, Outcome, Predictions, Skipped, Stage
from headrace.failures.device import device_loss, one_line
from headrace.failures.search import InjectedFailure
from headrace.ipc.progress import Activity, Progress
from headrace.runtime.plan import ONLY, is_remote
from headrace.runtime.spec import SessionSpec

lost_devices: dict[str, str] = {}
"""The error message for each model cache of this process whose device is lost."""


class OperationMarks:
    """Marks each operation of a host in advance, so that its owner can tell where it hangs, or what kills it.

    Args:
        progress: where to.
        injected_failures: by position, elements over which an earlier host was lost: their operation raises instead.
    """

    def __init__(self, progress: Progress, injected_failures: Mapping[int, InjectedFailure]) -> None:
        self._progress = progress
        self._injected_failures = injected_failures

    def loading(self) -> None:
        """A model is about to be used, and may have to load."""
        self._progress.mark(Activity.LOADING)

    def operation(self, stage: Stage, tag: Any, index: int) -> None:
        """An operation is about to run; what is raised here counts as raised by it.

        Args:
            stage: its kind. The search for bad elements of a batch announces each call of the model.
            tag: of the operation's element; None for a call of the model, which takes a batch.
            index: which operation of its stage, counted from 0; 0 for a call of the model.
        """
        injected = self._injected_failures.get(tag)
        if injected is not None and (injected.stage, injected.index) == (stage, index):
            raise injected.error
        self._progress.mark(Activity[stage.name], -1 if tag is None else tag, index)

    def waiting(self) -> AbstractContextManager[None]:
        """The process sleeps on purpose, which is not hanging."""
        return self._progress.elsewhere()


class Operations:
    """Runs preprocessing and postprocessing, which need no model; used by one thread.

    Methods raise exceptions that the session does not catch, and DeviceLostError even if the session catches it.
    """

    def __init__(self, spec: SessionSpec, observer: Observer, marks: OperationMarks | None = None) -> None:
        self.spec = spec
        self._plan = spec.plan
        self._observer = observer
        self._marks = marks

    @during(Phase.PREPROCESSING)
    def preprocess(self, element: Any, tag: Any) -> tuple[Any, Failure | Skipped | None]:
        """The preprocessed element and None; or None and the outcome of an element that failed or was skipped."""
        value, outcome = self._applied(Stage.PREPROCESSING, self._plan.preprocess, element, tag, source=element)
        return value, self.skip(outcome) if isinstance(outcome, Skipped) else outcome

    @during(Phase.POSTPROCESSING)
    def postprocess(self, tags: list[Any], values: list[Any], model: Any = ONLY) -> list[Outcome]:
        """Outcomes for the named model's predictions; the first one holds the good values."""
        if not self._plan.postprocess:
            return [Predictions(tags, values)]
        good = Predictions([], [])
        outcomes: list[Outcome] = [good]
        skipped: dict[int, Skipped] = {}
        for tag, given in zip(tags, values, strict=True):
            value, outcome = self._applied(Stage.POSTPROCESSING, self._plan.postprocess, given, tag, model=model)
            if outcome is None:
                good.tags.append(tag)
                good.values.append(value)
            elif isinstance(outcome, Failure):
                outcomes.append(outcome)
            else:
                those = skipped.setdefault(outcome.index, Skipped(outcome.stage, outcome.index, [], []))
                those.tags.append(tag)
                those.elements.extend(outcome.elements)
        return [*outcomes, *(self.skip(those, model) for those in skipped.values())]

    def _applied(
        self, stage: Stage, operations: Sequence[Callable[[Any], Any]], value: Any, tag: Any, **more: Any
    ) -> tuple[Any, Failure | Skipped | None]:
        """What the operations make of a value, and None; or None and the outcome, if one fails or skips it."""
        marks = self._marks
        for index, operation in enumerate(operations):
            try:
                if marks is not None:
                    marks.operation(stage, tag, index)
                given, value = value, operation(value)
            except BaseException as error:
                if not catches(self.spec, error):
                    raise
                return None, self.fail(tag, stage, index, value, Caught.of(error), **more)
            if value is SKIP:
                return None, Skipped(stage, index, [tag], [given])
        return value, None

    def skip(self, skipped: Skipped, model: Any = ONLY) -> Skipped:
        """Reports skipped elements and returns them."""
        label = "" if skipped.stage is Stage.PREPROCESSING else self._plan.label(model)
        self._observer.on_event(ElementsSkipped(label, skipped.stage, len(skipped.tags)))
        return skipped

    def fail(self, tag: Any, stage: Stage, index: int, element: Any, caught: Caught, **more: Any) -> Failure:
        """Reports a failed element and returns its outcome."""
        self._observer.on_event(ElementFailed(stage, caught.error))
        return self._plan.failure(tag, stage, index, element, caught, **more)


def catches(spec: SessionSpec, error: BaseException, model: Any = ONLY) -> bool:
    """Whether an exception becomes a failure of elements; if not, the caller raises it.

    Once the process has lost its GPU every call fails, and no element is to blame.

    Raises:
        DeviceLostError: the exception shows that this process has lost its device.
    """
    models = spec.plan.models
    about = [models[model]] if model in models else models.values()
    is_of_endpoint = all(map(is_remote, about))  # its device is not this process's
    culprit = device_loss(error) if isinstance(error, Exception) and not is_of_endpoint else None
    if culprit is not None and str(error) != lost_devices.get(spec.cache_name):
        lost_devices[spec.cache_name] = (
            f"{spec.plan.name} is of no use in this process any more, which has lost its device "
            f"({one_line(culprit)}). Only a new process can go on. With isolate=True (headrace run: --isolate) the "
            "model has a process of its own, which is replaced, and only the element that caused the loss fails."
        )
        raise DeviceLostError(lost_devices[spec.cache_name]) from error
    return is_any_of(error, spec.caught) and not isinstance(error, DeviceLostError)


def is_any_of(error: BaseException, classes: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Whether an error has one of the classes, or takes the place of one that has: ``RowCostError`` does."""
    return isinstance(error, classes) or (isinstance(error, RowCostError) and isinstance(error.__cause__, classes))


def check_device(spec: SessionSpec) -> None:
    """Call this before using the models.

    Raises:
        DeviceLostError: this process has lost the device of these models.
    """
    if lost_devices and spec.cache_name in lost_devices:
        raise DeviceLostError(lost_devices[spec.cache_name])

"""Measures what a handler needs on this machine: loads each model as a sharing pipeline would, and times batches."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from headrace.core.config import BatchingConfig, PlacementConfig
from headrace.core.errors import ConfigurationError, HostDiedError, as_type_name
from headrace.core.events import Event, ModelLoaded
from headrace.core.result import Skipped
from headrace.failures.load_policy import load_error
from headrace.hosts.provider import HostFailure
from headrace.hosts.system import allowed_cores
from headrace.ipc.exceptions import with_traceback_of
from headrace.models.memory import memory_available, memory_limit
from headrace.runtime.acquire import AcquiredModel, acquire, attached
from headrace.runtime.batch_costs import Cost, measure
from headrace.runtime.messages import Done, Work
from headrace.runtime.model_source import Loaded, LoadedModels
from headrace.runtime.observers import FanOut
from headrace.runtime.operations import Operations
from headrace.runtime.placement import connect_shared_hosts
from headrace.runtime.placement_choice import Choice, choose
from headrace.runtime.plan import Plan
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.session import close_session, open_session
from headrace.runtime.spec import SessionSpec
from headrace.runtime.worker import Worker

Call: TypeAlias = Callable[[list[Any]], None]
"""Runs a batch."""

_LARGEST = 4096
"""Elements; larger batches are hardly cheaper for each element."""
_MOST_BAD = 100
"""Rows; where more of them fail, the model or its columns are wrong."""
_MOST_ROWS = 20_000
"""How many rows to read at most in search of elements for one model."""


@dataclass(frozen=True)
class ModelFindings:
    """Measurements of one model."""

    name: str
    """Empty if there is only one."""
    load_seconds: float | None
    """Seconds in ``load_model``; None: unknown."""
    ready_seconds: float
    """Seconds until other processes could use it, with starting processes, imports, and writing shared memory."""
    peak: int | None
    """Peak bytes of the process that loaded it, imports included."""
    nbytes: int
    """Bytes of the model, in shared memory or in its host."""
    reason: str
    """Why its weights cannot be mapped; empty if they can."""
    attach_seconds: float | None = None
    """Seconds to map it once everything is imported; None: it cannot be mapped."""
    first_attach_seconds: float | None = None
    """The same including the imports that this process had not done yet."""
    private: int | None = None
    """Bytes private to each process that has mapped it."""
    file_bytes: int = 0
    """Bytes of weights that stay in the model's own files, mapped by all processes; not in ``nbytes``."""
    costs: tuple[Cost, ...] = ()
    trouble: str = ""
    """Why no batches, or no larger ones, were measured; empty if nothing went wrong."""

    @property
    def mapped(self) -> bool:
        """Whether its weights can be mapped."""
        return not self.reason


@dataclass(frozen=True)
class Profile:
    """Measurements of a handler on this machine."""

    handler: str
    default: str
    """The placement without the user's say: what the handler asks for."""
    copies: int
    """How many hosts the handler asks for."""
    cores: int
    memory_limit: int
    """Bytes available to all processes together."""
    memory_available: int
    """Bytes that could be allocated before anything was loaded."""
    models: tuple[ModelFindings, ...]
    processes: int
    choice: Choice
    """What ``placement="auto"`` chooses for one process per core."""
    routed: bool
    """Whether there is a model for each key: then the machine shares each of them, whatever ``"auto"`` would choose."""
    bad_rows: int = 0
    """Rows that were left out, since they could not be read, preprocessed or predicted."""
    bad_row: str = ""
    """Why the first of them was."""

    @property
    def nbytes(self) -> int:
        """Bytes of one copy of all models."""
        return sum(model.nbytes for model in self.models)

    @property
    def copy_each(self) -> int:
        """Bytes if each of the ``processes`` has its own copy."""
        return self.nbytes * self.processes + self.file_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of weights in the models' own files, which are in memory once for all processes."""
        return sum(model.file_bytes for model in self.models)

    @property
    def copy_per_machine(self) -> int:
        """Bytes if the ``processes`` share what can be shared."""
        return sum(self._shared(model) for model in self.models) + self.file_bytes

    @property
    def asked_choice(self) -> Choice:
        """What ``placement="auto"`` would choose for ``processes`` processes."""
        return choose(self.nbytes, self.processes, self.choice.free)

    def _shared(self, model: ModelFindings) -> int:
        if model.mapped:
            return model.nbytes + (model.private or 0) * (self.copies if self.copies > 1 else self.processes)
        return model.nbytes * self.copies


def profiling_spec(
    handler: Any, inference_args: dict[str, Any] | None = None, batching: BatchingConfig | None = None
) -> SessionSpec:
    """The spec to profile: the handler as a transform with ``placement="machine"`` would run it.

    Args:
        handler: a model handler.
        inference_args: extra arguments for the model's call.
        batching: replaces the handler's own batching options; its largest size bounds the measurements.

    Raises:
        ConfigurationError: an argument is wrong, or models cannot be shared on this system.
        Exception: the handler refuses the inference arguments.
    """
    placement = PlacementConfig("machine", linger_secs=0)
    spec = prepare(handler, InferenceRequest(inference_args, placement=placement, batching=batching))
    if spec.plan.remote:
        raise ConfigurationError(f"{spec.plan.name} sends requests to an endpoint; it has no model on this machine.")
    if spec.has_engines_in_hosts:  # measured in batches all the same
        return replace(spec, shared=frozenset(), isolated=False)
    return spec


def profile_handler(spec: SessionSpec, rows: Iterable[Any] | None = None, processes: int | None = None) -> Profile:
    """Loads the models one after the other, times them, and releases each.

    Args:
        spec: from ``profiling_spec``.
        rows: elements; read only as far as needed, and repeated if there are few. None: no batches are measured.
        processes: the number of processes to report memory for; one per core by default.

    Raises:
        Exception: a model cannot be loaded.
    """
    plan, available = spec.plan, memory_available()
    plan.handler.set_environment_vars()  # as a worker does first
    elements = None if rows is None else _Elements(spec, rows)
    models = tuple(_profiled(spec, name, elements) for name in plan.models)
    cross_bundle = any(model.share_model_across_processes() for model in plan.models.values())
    return Profile(
        plan.name,
        "machine" if cross_bundle or spec.copies > 1 else "process",
        spec.copies,
        allowed_cores(),
        memory_limit(),
        available,
        models,
        processes or allowed_cores(),
        choose(sum(model.nbytes for model in models), allowed_cores(), available),
        plan.routed,
        elements.bad if elements is not None else 0,
        elements.trouble if elements is not None else "",
    )


def _profiled(spec: SessionSpec, name: Any, elements: _Elements | None) -> ModelFindings:
    """Measures one model, which is released afterwards."""
    spec = replace(spec, copies=1)
    events: list[Event] = []
    started = time.perf_counter()
    acquired = acquire(spec, name, events.extend)
    ready_seconds = time.perf_counter() - started
    if isinstance(acquired, HostFailure):
        raise load_error(acquired, spec.plan.name, spec.timeout_secs)
    load_seconds = next((event.seconds for event in events if isinstance(event, ModelLoaded)), None)
    findings = ModelFindings(
        spec.plan.label(name), load_seconds, ready_seconds, acquired.peak, acquired.nbytes, acquired.reason
    )
    findings = replace(findings, file_bytes=acquired.file_bytes)
    with ExitStack() as stack:
        stack.callback(acquired.give_back)
        if not acquired.files:
            return _measured(findings, _in_hosts(spec, name, acquired), name, elements)
        findings, loaded = _mapped(findings, acquired)
        return _measured(findings, _in_process(spec, name, loaded), name, elements)


def _mapped(findings: ModelFindings, acquired: AcquiredModel) -> tuple[ModelFindings, Loaded]:
    """Maps the model twice: the first time may include imports, which not every process has to pay for."""
    loaded, first_seconds, private = attached(acquired)
    seconds = first_seconds
    if private < memory_available() // 2:
        _, seconds, private = attached(acquired)  # keep the first, lest its memory be reused
    findings = replace(findings, attach_seconds=seconds, first_attach_seconds=first_seconds, private=private)
    return findings, loaded


@contextmanager
def _in_process(spec: SessionSpec, name: Any, loaded: Loaded) -> Iterator[Call]:
    """Runs batches on a model in this process."""
    session = open_session(spec)
    try:
        session.shared(lambda: LoadedModels({name: loaded}))
        worker = Worker(spec)
    finally:
        close_session(session)

    def run(elements: list[Any]) -> None:
        with worker.borrow(name) as held:
            worker.run(name, held.model, elements)

    with closing(worker):
        yield run


@contextmanager
def _in_hosts(spec: SessionSpec, name: Any, acquired: AcquiredModel) -> Iterator[Call]:
    """Runs batches on a model in a host of the machine's manager."""
    models = connect_shared_hosts(spec, lambda _: None, acquired)

    def run(elements: list[Any]) -> None:
        answer, _ = models.ask(Work(name, infer=True, weight=len(elements)), elements)
        if isinstance(answer, HostFailure):
            raise HostDiedError(f"the host {answer.exit_text} while it computed.")
        if not isinstance(answer, Done):
            raise with_traceback_of(*answer.caught)

    with closing(models):
        yield run


class _Elements:
    """Preprocessed elements by model, read only as far as they are needed."""

    def __init__(self, spec: SessionSpec, rows: Iterable[Any]) -> None:
        self._plan: Plan = spec.plan
        self._rows = iter(rows)
        self._operations = Operations(catching(spec, Exception), FanOut())
        self._found: dict[Any, list[Any]] = defaultdict(list)
        self._read = 0
        self.bad = 0
        """Rows that were left out."""
        self.trouble = ""
        """The first error of such a row."""

    def largest(self, name: Any) -> int:
        """The largest batch size of the named model."""
        batching = self._plan.batching_of(name)
        if self._plan.prebatched:
            return 1
        return _LARGEST if batching.sizes_are_weights else min(_LARGEST, batching.max_batch_size)

    def take(self, name: Any, count: int) -> list[Any]:
        """``count`` elements, repeated if there are fewer; empty if there are none."""
        found = self._found[name]
        while len(found) < count and self._read < _MOST_ROWS and self._add():
            pass
        return (found * -(-count // len(found)))[:count] if found else []

    def without_failing(self, name: Any, run: Call) -> bool:
        """Leaves out the elements that fail alone; returns whether there are any."""
        found, self._found[name] = self._found[name], []
        for element in found:
            try:
                run([element])
            except Exception as error:
                self._leave_out(error)
            else:
                self._found[name].append(element)
        return len(self._found[name]) < len(found)

    def _leave_out(self, error: Exception) -> None:
        self.bad += 1
        self.trouble = self.trouble or f"{as_type_name(error)}: {error}"

    def _add(self) -> bool:
        """Reads one more row; returns whether there was one."""
        for row in self._rows:
            self._read += 1
            element, outcome = self._operations.preprocess(row, None)
            if isinstance(outcome, Skipped):
                continue
            try:
                if outcome is not None:
                    raise outcome.error
                name = self._plan.handler.cohort(element[0]) if self._plan.routed else next(iter(self._plan.models))
            except Exception as error:
                self._leave_out(error)
                continue
            self._found[name].append(element)
            return True
        return False


def _measured(
    findings: ModelFindings, model: AbstractContextManager[Call], name: Any, elements: _Elements | None
) -> ModelFindings:
    with model as run:
        if elements is None:
            return findings
        costs, trouble = _costs(run, name, elements)
    if not (costs or trouble):
        trouble = f"every row fails; the first: {elements.trouble}" if elements.bad else "no row is for this model."
    return replace(findings, costs=tuple(costs), trouble=trouble)


def _costs(run: Call, name: Any, elements: _Elements) -> tuple[list[Cost], str]:
    """The costs of batches without elements that fail alone; and what ended the measurements, if anything did."""
    costs: list[Cost] = []
    while True:
        try:
            costs.extend(measure(run, lambda size: elements.take(name, size), elements.largest(name)))
        except Exception as error:
            is_lost = isinstance(error, HostDiedError)
            if not is_lost and elements.bad < _MOST_BAD and elements.without_failing(name, run):
                costs.clear()
                continue
            return costs, f"{as_type_name(error)}: {error}"
        return costs, ""

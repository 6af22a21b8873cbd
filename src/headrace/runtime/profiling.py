"""Measures what a handler needs on this machine: loads each model as a sharing pipeline would, and times batches."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from headrace.batching.batcher import Batch
from headrace.batching.columnar import as_columns
from headrace.core.config import BatchingConfig, PlacementConfig
from headrace.core.errors import ConfigurationError, as_type_name
from headrace.core.events import Event, ModelLoaded
from headrace.core.result import Skipped
from headrace.hosts.system import allowed_cores
from headrace.models.memory import memory_available, memory_limit
from headrace.runtime.acquire import AcquiredModel, acquire, attached
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.operations import Operations
from headrace.runtime.placement import Choice
from headrace.runtime.plan import Plan
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.spec import SessionSpec

_STEP = 8
_LONG_SECS = 1.0
"""The first batch that takes this long is the last."""
_ENOUGH_SECS, _FEWEST_CALLS = 0.3, 3
"""What to spend on each size, unless one call takes long."""
_LARGEST = 4096
"""Elements; larger batches are hardly cheaper for each element."""
_MOST_ROWS = 20_000
"""How many rows to read at most."""
_NO_ROW = object()


class Cost(NamedTuple):
    """The cost of batches of one size."""

    size: int
    seconds: float
    """Median seconds of a batch; the very first call is not counted."""
    calls: int


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
    """Rows that were left out, since they could not be read or preprocessed."""
    bad_row: str = ""

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
        return Choice(self.nbytes, self.processes, self.choice.free)

    def _shared(self, model: ModelFindings) -> int:
        if model.mapped:
            return model.nbytes + (model.private or 0) * (self.copies if self.copies > 1 else self.processes)
        return model.nbytes * self.copies


def profiling_spec(
    handler: Any, inference_args: dict[str, Any] | None = None, batching: BatchingConfig | None = None
) -> SessionSpec:
    """The spec to profile: the handler as a transform with ``placement="machine"`` would run it.

    The largest size in ``batching``, in place of the handler's own options, bounds the measurements.

    Raises:
        ConfigurationError: an argument is wrong, or models cannot be shared on this system.
    """
    placement = PlacementConfig("machine", linger_secs=0)
    spec = prepare(handler, InferenceRequest(inference_args, placement=placement, batching=batching))
    if spec.plan.remote:
        raise ConfigurationError(f"{spec.plan.name} sends requests to an endpoint; it has no model on this machine.")
    return replace(spec, isolated=False)  # engines are measured in batches all the same


def profile_handler(spec: SessionSpec, rows: Iterable[Any] | None = None, processes: int | None = None) -> Profile:
    """Loads the models one after the other, times them, and releases each.

    Rows are read only as far as needed, and repeated if there are few. Without them no batches are measured. Memory is
    reported for ``processes``, by default one per core.
    """
    plan, available = spec.plan, memory_available()
    plan.handler.set_environment_vars()  # as a worker does first
    elements = None if rows is None else _Samples(spec, rows)
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
        Choice(sum(model.nbytes for model in models), allowed_cores(), available),
        plan.routed,
        elements.bad if elements is not None else 0,
        elements.trouble if elements is not None else "",
    )


def _profiled(spec: SessionSpec, name: Any, elements: _Samples | None) -> ModelFindings:
    """Measures one model, which is released afterwards."""
    spec = replace(spec, copies=1, plan=replace(spec.plan, preprocess=(), postprocess=()))
    events: list[Event] = []
    started = time.perf_counter()
    acquired = acquire(spec, name, events.extend)
    ready_seconds = time.perf_counter() - started
    load_seconds = next((event.seconds for event in events if isinstance(event, ModelLoaded)), None)
    label, exported = spec.plan.label(name), acquired.grant.exported
    files = exported.layout.file_bytes if exported.layout is not None else 0
    findings = ModelFindings(
        label, load_seconds, ready_seconds, exported.peak, acquired.grant.nbytes, exported.reason, file_bytes=files
    )
    try:
        if acquired.files:
            findings = _with_attaching(findings, acquired)
        return findings if elements is None else _with_costs(findings, spec, name, elements)
    finally:
        acquired.give_back()


def _with_attaching(findings: ModelFindings, acquired: AcquiredModel) -> ModelFindings:
    _first, first_seconds, private = attached(acquired)
    seconds = first_seconds
    if private < memory_available() // 2:  # again, without imports; the first is kept, lest its memory be reused
        _, seconds, private = attached(acquired)
    return replace(findings, attach_seconds=seconds, first_attach_seconds=first_seconds, private=private)


def _with_costs(findings: ModelFindings, spec: SessionSpec, name: Any, elements: _Samples) -> ModelFindings:
    """The findings with what batches cost a worker; a batch that fails ends the measurements."""
    costs: list[Cost] = []
    trouble = ""
    with closing(open_worker(spec)) as worker:

        def run(batch: list[Any]) -> None:
            executor, tagged = worker.executor(FanOut()), Batch(batch, [None] * len(batch))
            executor.submit(name, as_columns(tagged) if spec.plan.batching.columnar else tagged)
            deque(executor.collect(), maxlen=0)

        try:
            costs.extend(measure(run, lambda size: elements.take(name, size), elements.largest(name)))
        except Exception as error:
            trouble = f"{as_type_name(error)}: {error}"
    if not (costs or trouble):
        trouble = f"every row fails; the first: {elements.trouble}" if elements.bad else "no row is for this model."
    return replace(findings, costs=tuple(costs), trouble=trouble)


class _Samples:
    """Preprocessed elements by model, read only as far as they are needed."""

    def __init__(self, spec: SessionSpec, rows: Iterable[Any]) -> None:
        self._plan: Plan = spec.plan
        self._rows = islice(rows, _MOST_ROWS)
        self._operations = Operations(catching(spec, Exception), FanOut())
        self._found: dict[Any, list[Any]] = defaultdict(list)
        self.bad = 0
        self.trouble = ""

    def largest(self, name: Any) -> int:
        """The largest batch size of the named model."""
        batching = self._plan.batching_of(name)
        if self._plan.prebatched:
            return 1
        return _LARGEST if batching.sizes_are_weights else min(_LARGEST, batching.max_batch_size)

    def take(self, name: Any, count: int) -> list[Any]:
        """``count`` elements, repeated if there are fewer; empty if there are none."""
        found = self._found[name]
        while len(found) < count and (row := next(self._rows, _NO_ROW)) is not _NO_ROW:
            self._add(row)
        return (found * -(-count // len(found)))[:count] if found else []

    def _add(self, row: Any) -> None:
        element, outcome = self._operations.preprocess(row, None)
        if isinstance(outcome, Skipped):
            return
        try:
            if outcome is not None:
                raise outcome.error
            name = self._plan.handler.cohort(element[0]) if self._plan.routed else next(iter(self._plan.models))
        except Exception as error:
            self.bad += 1
            self.trouble = self.trouble or f"{as_type_name(error)}: {error}"
        else:
            self._found[name].append(element)


def measure(
    run: Callable[[list[Any]], None],
    give: Callable[[int], list[Any]],
    largest: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Cost]:
    """Times batches of 1, 8, 64, ... elements, up to the largest or to one that takes a second."""
    size = 1
    if batch := give(size):
        run(batch)
    while batch:
        seconds: list[float] = []
        while sum(seconds) < _LONG_SECS and (sum(seconds) < _ENOUGH_SECS or len(seconds) < _FEWEST_CALLS):
            started = clock()
            run(batch)
            seconds.append(clock() - started)
        cost = Cost(size, statistics.median(seconds), len(seconds))
        yield cost
        if size == largest or cost.seconds >= _LONG_SECS:
            return
        size = min(size * _STEP, largest)
        batch = give(size)

"""One machine's workers under a clock of their own: the policies are those of a run, only time and models are made up.

Queues, batch sizes, the cache of models and the admission by bytes are the runtime's. What a batch or a load takes
is what the plan says. The result is what each worker did with one bundle of rows after the other since it started.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from headrace.batching.size import size_controller
from headrace.core.errors import ConfigurationError, ModelMemoryError
from headrace.core.keyed import KeyedModelHandler, KeyModelMapping
from headrace.core.model_cache import POLL_SECS, ModelCache, ResidentModels, Slot
from headrace.models.admission import Admit, Evict, Held, MemoryBudget, Refuse, admit, format_bytes
from headrace.runtime.plan import ONLY, make_plan
from headrace.runtime.queues import queues_for
from headrace.testing.fakes import DoublingHandler
from headrace.testing.simulation_plan import GB, SimulatedModel, SimulatedRun

Waits = Generator[float, None, None]
"""A worker: it yields when it goes on."""


@dataclass
class SimulatedBundle:
    """What a worker did with a bundle's rows."""

    rows: int = 0
    seconds: float = 0.0
    spent: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by (phase, model)."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Loads, evictions, batches and rows by (what, model)."""


class SimulatedMachine:
    """A machine with its workers, from its start on.

    Args:
        plan: what is to be done.
        shares_models: whether the workers of the machine use one copy of each model.
        seed: of the order in which keys come.
    """

    def __init__(self, plan: SimulatedRun, *, shares_models: bool, seed: int = 0) -> None:
        self.plan, self.seed = plan, seed
        self.shared = _SharedModels(self) if shares_models else None
        machines = plan.machines
        self.limit = round(min(machines.memory_gb, 1e9) * GB)
        self.used = self.peak = 0
        self.waiting: dict[_SimulatedWorker, tuple[float, float]] = {}
        """Since when workers wait for memory, and when they last looked."""
        self.slowdown = max(1.0, machines.workers / (machines.cores or math.inf))
        self.now = 0.0
        self.grow(round(machines.memory_per_worker_gb * GB) * machines.workers)

    def run(self, parts: Iterator[int]) -> list[list[SimulatedBundle]]:
        """What each worker does until there are no more bundles, of so many rows each.

        Raises:
            ConfigurationError: the models do not fit into memory.
        """
        workers = [_SimulatedWorker(self, number) for number in range(self.plan.machines.workers)]
        steps = [worker.work(parts) for worker in workers]
        order = itertools.count()
        events = [(0.0, next(order), number) for number in range(len(workers))]
        while events:
            self.now, _, number = heapq.heappop(events)
            try:
                heapq.heappush(events, (next(steps[number]), next(order), number))
            except StopIteration:
                pass
            except ModelMemoryError as error:
                raise ConfigurationError(f"the plan does not fit: {error}") from error
        return [worker.done or workers[0].done for worker in workers]

    def grow(self, nbytes: int) -> None:
        """Takes memory for a model, or gives it back.

        Raises:
            ConfigurationError: there is less than that.
        """
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        if self.used > self.limit:
            raise ConfigurationError(
                f"the plan does not fit: models and workers of a machine take {format_bytes(self.used)} and more, and "
                f"machines.memory_gb gives {format_bytes(self.limit)}. Give it more, or fewer workers; placement = "
                '"machine" has them share one copy; route = "keyed" with max_models loads models in turn.'
            )


@dataclass
class _Shared:
    """A model of which the machine has one copy."""

    nbytes: int
    ready_at: float
    leases: int = 0
    used_at: float = 0.0


class _SharedModels(dict[str, _Shared]):
    """The machine's table of shared models, which are admitted by bytes."""

    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__()
        self._machine = machine

    def take(self, name: str, model: SimulatedModel, worker: _SimulatedWorker) -> float:
        """Leases a model; returns when it is ready."""
        machine, now = self._machine, self._machine.now
        while name not in self:
            loading = [one for one in self.values() if one.ready_at > now]
            ready = [(key, one) for key, one in self.items() if one.ready_at <= now]
            held = [Held(key, one.nbytes, one.leases, one.used_at) for key, one in ready]
            needs = [one.nbytes for one in loading]
            verdict = admit(model.nbytes, held, needs, machine.limit - machine.used + sum(needs), machine.limit)
            if isinstance(verdict, Admit):
                machine.grow(model.nbytes)
                self[name] = _Shared(model.nbytes, now + model.load_seconds)
                worker.bundle.counts["loads", name] += 1
            elif isinstance(verdict, Evict):
                for key in verdict.keys:
                    machine.grow(-self.pop(key).nbytes)
                    worker.bundle.counts["evictions", key] += 1
            elif not isinstance(verdict, Refuse):
                now = min(one.ready_at for one in loading)
            elif not worker.cache.drop_idle():
                raise ModelMemoryError(f"the model of {name!r}", verdict.reason)
        self[name].leases += 1
        return max(now, self[name].ready_at)


class _NoRoomYet(Exception):
    """Other workers hold the memory; the cache would wait for them in real time."""


class _OtherWorkers:
    """As of ``models.admission.Neighbours``: the other workers of the machine."""

    def __init__(self, worker: _SimulatedWorker) -> None:
        self._worker = worker
        self._since: float | None = None

    def ask(self) -> None:
        machine = self._worker.machine
        self._since = machine.now if self._since is None else self._since
        machine.waiting[self._worker] = self._since, machine.now

    def settle(self) -> None:
        self._since = None
        self._worker.machine.waiting.pop(self._worker, None)

    def asked(self) -> tuple[float, float] | None:
        waiting = self._worker.machine.waiting
        return min((times for worker, times in waiting.items() if worker is not self._worker), default=None)


class _WorkerMemory(MemoryBudget):
    """A worker's room for models. Memory is looked at only for keyed models that workers do not share."""

    def __init__(self, worker: _SimulatedWorker) -> None:
        machine = worker.machine
        figures = (lambda: machine.limit - machine.used, lambda: machine.limit, lambda: worker.held)
        super().__init__(*figures, now=lambda: machine.now, neighbours=_OtherWorkers(worker))
        self._worker = worker
        self._checks = machine.plan.route == "keyed" and machine.shared is None

    def make(
        self, name: Any, at_least: int | None, held: Mapping[Any, int], loading: Sequence[Any]
    ) -> Sequence[Any] | None:
        evicted = super().make(name, at_least, held, loading) if self._checks else ()
        if evicted is None:
            raise _NoRoomYet
        return evicted

    def dropped(self, names: Sequence[Any]) -> None:
        worker, shared = self._worker, self._worker.machine.shared
        for name in names:
            if shared is not None:
                shared[name].leases, shared[name].used_at = shared[name].leases - 1, worker.machine.now
            else:
                worker.grow(-worker.machine.plan.models[name].nbytes)
                worker.bundle.counts["evictions", name] += 1


class _SimulatedWorker:
    """A worker process: what an ``InferenceSession`` and its bundles are made of, without the threads."""

    def __init__(self, machine: SimulatedMachine, number: int) -> None:
        self.machine = machine
        self.held = 0
        """Bytes of its own models."""
        self.done: list[SimulatedBundle] = []
        self.bundle = SimulatedBundle()
        """At which it is."""
        self.cache = ModelCache(machine.plan.max_models, _WorkerMemory(self))
        self._rng = random.Random(f"{machine.seed} {number}")
        self._steps = [*_transforms(machine.plan)]

    def work(self, parts: Iterator[int]) -> Waits:
        """Takes bundle after bundle."""
        machine, plan = self.machine, self.machine.plan
        yield plan.machines.start_seconds
        for rows in parts:
            began, self.bundle = machine.now, SimulatedBundle(rows)
            yield self._spend("rows", "", rows * plan.seconds_per_row * machine.slowdown)
            for step in self._steps:
                for name, batch in step.batches(rows, self._rng):
                    yield from self._run(step, name, batch)
            self.bundle.seconds = machine.now - began
            self.done.append(self.bundle)
        self.bundle = SimulatedBundle()  # its process ends
        while self.cache.drop_idle():
            pass

    def grow(self, nbytes: int) -> None:
        """Takes memory for a model of its own, or gives it back."""
        self.held += nbytes
        self.machine.grow(nbytes)

    def _spend(self, phase: str, name: str, seconds: float) -> float:
        """Counts time; returns when it is over."""
        self.bundle.spent[phase, name] += seconds
        return self.machine.now + seconds

    def _run(self, step: _Transform, name: Any, batch: Any) -> Waits:
        label = step.label(name)
        model = self.machine.plan.models[label]
        ready_at: list[float] = []
        load = partial(self._load, step, label, model)
        while (slot := self._slot(label, lambda: ready_at.append(load()), model)) is None:
            yield self._spend("loading", label, POLL_SECS)
        if ready_at:
            yield self._spend("loading", label, ready_at[0] - self.machine.now)
        seconds = model.batch_seconds(batch.total) * self.machine.slowdown
        yield self._spend("model", label, seconds)
        slot.release()
        step.sizes[name].observe(batch.total, seconds)
        self.bundle.counts["batches", label] += 1
        self.bundle.counts["rows", label] += batch.total

    def _slot(self, label: str, load: Callable[[], None], model: SimulatedModel) -> Slot | None:
        """The model's place; None: other workers have yet to make room for it."""
        try:
            return self.cache.use(label, load, lambda: model.nbytes)
        except _NoRoomYet:
            return None

    def _load(self, step: _Transform, label: str, model: SimulatedModel) -> float:
        """Loads a model; returns when it is there."""
        if self.cache.is_short:
            step.resident.limit_to(len(self.cache))
        if self.machine.shared is not None:
            return self.machine.shared.take(label, model, self)
        self.grow(model.nbytes)
        self.bundle.counts["loads", label] += 1
        return self.machine.now + model.load_seconds


class _Transform:
    def __init__(self, run: SimulatedRun, names: Sequence[str], *, routed: bool) -> None:
        self._names = names
        handlers = [
            DoublingHandler(min_batch_size=one.min_batch_size, max_batch_size=one.max_batch_size)
            for one in map(run.models.__getitem__, names)
        ]
        mappings = [KeyModelMapping([name], one) for name, one in zip(names, handlers, strict=True)]
        handler: Any = KeyedModelHandler(mappings, run.max_models) if routed else handlers[0]
        self._plan = make_plan(handler)
        self.sizes = {name: size_controller(self._plan.batching_of(name)) for name in self._plan.models}
        self.resident = ResidentModels(self._plan.model_limit)
        self._row = SimpleNamespace(nbytes=run.bytes_per_row)
        self._weights = [run.shares[name] for name in names]

    def label(self, name: Any) -> str:
        """The model's name in the plan."""
        return self._names[0] if name is ONLY else str(name)

    def batches(self, rows: int, rng: random.Random) -> Iterator[tuple[Any, Any]]:
        """The batches of a bundle, as its queues give them."""
        queues = queues_for(self._plan, self.sizes, self.resident)
        elements: Sequence[Any] = [self._row] * rows
        if self._plan.routed:
            pairs = [(name, self._row) for name in self._names]
            elements = rng.choices(pairs, self._weights, k=round(rows * sum(self._weights)))  # others ask endpoints
        for element in elements:
            yield from queues.add(element, None)
        yield from queues.flush()


def _transforms(run: SimulatedRun) -> Iterator[_Transform]:
    """One for all keyed models, or one for each model."""
    names = [name for name in run.models if run.shares[name]]
    if run.route == "keyed" and names:
        yield _Transform(run, names, routed=True)
    else:
        yield from (_Transform(run, [name], routed=False) for name in names)

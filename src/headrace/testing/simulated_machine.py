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
from typing import Any

from headrace.batching.size import size_controller
from headrace.core.errors import ConfigurationError, ModelMemoryError
from headrace.core.keyed import KeyedModelHandler, KeyModelMapping
from headrace.core.model_cache import ModelCache, ResidentModels
from headrace.models.admission import Admit, Evict, Held, MemoryBudget, Refuse, admit, format_bytes
from headrace.runtime.plan import ONLY, make_plan
from headrace.runtime.queues import queues_for
from headrace.testing.fakes import DoublingHandler
from headrace.testing.simulation_plan import GB, SimulatedModel, SimulatedRun

_LINGER_SECS = 60.0
"""For how long a machine keeps a model that no worker of it uses."""

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


class Row:
    """Stands for every row."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


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
        self.used = self.peak = round(machines.memory_per_worker_gb * GB) * machines.workers
        self.slowdown = max(1.0, machines.workers / (machines.cores or math.inf))
        self.now = 0.0

    def run(self, parts: Iterator[int]) -> list[list[SimulatedBundle]]:
        """What each worker does until there are no more bundles, of so many rows each.

        Raises:
            ConfigurationError: the models do not fit into memory.
        """
        workers = [_Worker(self, number) for number in range(self.plan.machines.workers)]
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


class _SharedModels:
    """The machine's table of shared models: one copy for all workers, admitted by bytes."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._models: dict[str, _Shared] = {}

    def take(self, name: str, model: SimulatedModel, worker: _Worker) -> float:
        """Leases a model; returns when it is ready."""
        machine = self._machine
        now = machine.now
        self._drop([key for key, one in self._models.items() if one.is_over(now)])
        while name not in self._models:
            loading = [one for one in self._models.values() if one.ready_at > now]
            held = [
                Held(key, one.model.nbytes, one.leases, one.used_at)
                for key, one in self._models.items()
                if one.ready_at <= now
            ]
            free = machine.limit - machine.used + sum(one.model.nbytes for one in loading)
            verdict = admit(model.nbytes, held, [one.model.nbytes for one in loading], free, machine.limit)
            if isinstance(verdict, Admit):
                machine.grow(model.nbytes)
                self._models[name] = _Shared(model, now + model.load_seconds)
                worker.count("loads", name)
            elif isinstance(verdict, Evict):
                self._drop(verdict.keys, worker)
            elif isinstance(verdict, Refuse):
                if not worker.drop_idle():
                    raise ModelMemoryError(f"the model of {name!r}", verdict.reason)
            else:
                now = min(one.ready_at for one in loading)
        self._models[name].leases += 1
        return max(now, self._models[name].ready_at)

    def give_back(self, name: str) -> None:
        """Ends a lease."""
        one = self._models[name]
        one.leases, one.used_at = one.leases - 1, self._machine.now

    def _drop(self, names: Sequence[str], worker: _Worker | None = None) -> None:
        for name in names:
            self._machine.grow(-self._models.pop(name).model.nbytes)
            if worker is not None:
                worker.count("evictions", name)


@dataclass
class _Shared:
    model: SimulatedModel
    ready_at: float
    leases: int = 0
    used_at: float = 0.0

    def is_over(self, now: float) -> bool:
        return not self.leases and max(self.used_at, self.ready_at) + _LINGER_SECS <= now


class _Room(MemoryBudget):
    """A worker's room for models; tells the worker what it drops.

    Args:
        checks: whether memory is looked at, as it is for keyed models that workers do not share.
    """

    def __init__(self, worker: _Worker, *, checks: bool) -> None:
        machine = worker.machine
        super().__init__(lambda: machine.limit - machine.used, lambda: machine.limit, lambda: worker.held)
        self._worker, self._checks = worker, checks

    def make(
        self, name: Any, at_least: int | None, held: Mapping[Any, int], loading: Sequence[Any]
    ) -> Sequence[Any] | None:
        return super().make(name, at_least, held, loading) if self._checks else ()

    def dropped(self, names: Sequence[Any]) -> None:
        for name in names:
            self._worker.evicted(name)


class _Worker:
    """A worker process: what an ``InferenceSession`` and its bundles are made of, without the threads."""

    def __init__(self, machine: SimulatedMachine, number: int) -> None:
        self.machine, self.plan = machine, machine.plan
        self.held = 0
        """Bytes of its own models."""
        self.done: list[SimulatedBundle] = []
        self._bundle = SimulatedBundle()
        self._rng = random.Random(f"{machine.seed} {number}")
        keyed = self.plan.route == "keyed"
        room = _Room(self, checks=keyed and machine.shared is None)
        self._cache = ModelCache(self.plan.max_models, room)
        self._steps = [*_transforms(self.plan)]

    def work(self, parts: Iterator[int]) -> Waits:
        """Takes bundle after bundle."""
        yield self.machine.plan.machines.start_seconds
        for rows in parts:
            began, self._bundle = self.machine.now, SimulatedBundle(rows)
            beside = rows * self.plan.seconds_per_row * self.machine.slowdown
            self._bundle.spent["rows", ""] += beside
            yield self.machine.now + beside
            for step in self._steps:
                for name, batch in step.batches(rows, self._rng):
                    yield from self._run(step, name, batch)
            self._bundle.seconds = self.machine.now - began
            self.done.append(self._bundle)

    def count(self, what: str, name: str, number: int = 1) -> None:
        """Counts in the bundle at hand."""
        self._bundle.counts[what, name] += number

    def drop_idle(self) -> bool:
        """Drops the model that has been idle longest, if there is one."""
        return self._cache.drop_idle()

    def evicted(self, name: str) -> None:
        """A model has left the worker's cache."""
        if self.machine.shared is not None:
            self.machine.shared.give_back(name)
            return
        nbytes = self.plan.models[name].nbytes
        self.held -= nbytes
        self.machine.grow(-nbytes)
        self.count("evictions", name)

    def _run(self, step: _Transform, name: Any, batch: Any) -> Waits:
        label = step.label(name)
        model = self.plan.models[label]
        ready_at: list[float] = []
        load = partial(self._load, step, label, model)
        slot = self._cache.use(label, lambda: ready_at.append(load()), lambda: model.nbytes)
        if ready_at:
            self._bundle.spent["loading", label] += ready_at[0] - self.machine.now
            yield ready_at[0]
        seconds = model.batch_seconds(batch.total) * self.machine.slowdown
        yield self.machine.now + seconds
        slot.release()
        step.sizes[name].observe(step.size_of(batch), seconds)
        self._bundle.spent["model", label] += seconds
        self.count("batches", label)
        self.count("rows", label, batch.total)

    def _load(self, step: _Transform, label: str, model: SimulatedModel) -> float:
        """Loads a model; returns when it is there."""
        if self._cache.is_short:
            step.resident.limit_to(len(self._cache))
        if self.machine.shared is not None:
            return self.machine.shared.take(label, model, self)
        self.held += model.nbytes
        self.machine.grow(model.nbytes)
        self.count("loads", label)
        return self.machine.now + model.load_seconds


class _Transform:
    """A transform in a worker: its batch sizes and its queues."""

    def __init__(self, run: SimulatedRun, names: Sequence[str], *, routed: bool) -> None:
        self._names = names
        handlers = {name: _handler(run.models[name]) for name in names}
        mappings = [KeyModelMapping([name], one) for name, one in handlers.items()]
        handler: Any = KeyedModelHandler(mappings, run.max_models) if routed else handlers[names[0]]
        self._plan = make_plan(handler)
        self.sizes = {name: size_controller(self._plan.batching_of(name)) for name in self._plan.models}
        self.resident = ResidentModels(self._plan.model_limit)
        self.size_of: Callable[[Any], float] = lambda batch: batch.total
        self._row = Row(run.bytes_per_row)
        shares = run.shares
        self._weights = [shares[name] for name in names]
        self._share = sum(self._weights)
        """Of the rows; the others go to endpoints."""

    def label(self, name: Any) -> str:
        """The model's name in the plan."""
        return self._names[0] if name is ONLY else str(name)

    def batches(self, rows: int, rng: random.Random) -> Iterator[tuple[Any, Any]]:
        """The batches of a bundle, as its queues give them."""
        queues = queues_for(self._plan, self.sizes, self.resident)
        elements: Sequence[Any] = [self._row] * rows
        if self._plan.routed:
            pairs = {name: (name, self._row) for name in self._names}
            rows = round(rows * self._share)
            elements = [pairs[name] for name in rng.choices(self._names, self._weights, k=rows)]
        for element in elements:
            yield from queues.add(element, None)
        yield from queues.flush()


def _transforms(run: SimulatedRun) -> Iterator[_Transform]:
    """One for all keyed models, or one for each model."""
    make = partial(_Transform, run, routed=run.route == "keyed")
    if run.route == "keyed" and run.models:
        yield make([*run.models])
    else:
        yield from (make([name]) for name in run.models)


def _handler(model: SimulatedModel) -> DoublingHandler:
    return DoublingHandler(min_batch_size=model.min_batch_size, max_batch_size=model.max_batch_size)

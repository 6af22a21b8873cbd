"""What a run will take, found by running it under a clock of its own, with the policies of real runs.

::

    simulation_plan.py      SimulatedRun: what is to be done, and with what
    simulated_machine.py    what the workers of one machine do since its start: the real queues, sizes and caches
    simulated_endpoint.py   what all workers together get out of an endpoint: the real limits
    simulation.py           the run: workers take bundles, machines are preempted

Machines are alike, so one of them is simulated for all; ``grouped=False`` simulates each. Once a worker has done so
many rows that its batch sizes have settled, it does again what it did in the second half of them.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.core.transferable import html_table
from headrace.runtime.placement import Choice
from headrace.testing.simulated_endpoint import EndpointShare
from headrace.testing.simulated_machine import SimulatedBundle, SimulatedMachine
from headrace.testing.simulation_plan import GB, SimulatedRun, parse_plan

_BUNDLES = 16
"""How many bundles each of several machines' workers takes, unless the plan says how large they are."""
_MOST_ROWS = 2_000_000
"""How many rows, times the models that they go through, the workers of a machine do one by one."""
_FEWEST_BUNDLES = 8
"""But at least so many each."""
_MOST_BUNDLES, _MOST_PARTS = 10**7, 5000
"""How many bundles all workers take, and how many of these one does row by row."""
_MOST_MACHINES = 16
"""How many machines ask an endpoint, which has as large a part of its quota: more behave alike."""
_COUNTED = ("loads", "evictions", "batches")
_HOUR = 3600.0
_ONCE, _AGAIN = -1, -2
"""In place of a worker: a machine is preempted."""
_MOST_PREEMPTIONS = 100
_WAITS = 0.01
"""The share of the time that workers wait for an endpoint which holds them back."""


@dataclass(frozen=True)
class Forecast:
    """What a run will take. Everything counts all machines and workers."""

    rows: int
    seconds: float
    machines: int
    workers: int
    placement: str
    """Where models live: in each process, or one copy for the machine's."""
    shares: Mapping[str, float]
    """Of the workers' time, by phase; they add up to 1."""
    model_shares: Mapping[str, float]
    """Of the time in models, by model."""
    loads: Mapping[str, int]
    evictions: Mapping[str, int]
    batches: Mapping[str, int]
    batch_rows: Mapping[str, float]
    """Rows of a batch, on average."""
    memory_bytes: int
    """Of one machine, at most."""
    preempted: int
    """How often a machine was."""
    requests: Mapping[str, int]
    """Answered by each endpoint."""
    refused: Mapping[str, int]
    """And refused."""
    cost: float | None
    """Of machines and endpoints; None: the plan has no prices."""

    def _repr_html_(self) -> str:
        return html_table("forecast", [(name.replace("_", " "), f"{value}") for name, value in vars(self).items()])

    @property
    def rows_per_second(self) -> float:
        """The throughput."""
        return self.rows / self.seconds

    @property
    def binds(self) -> str:
        """The phase that took most of the workers' time."""
        phase = max(self.shares, key=lambda one: self.shares[one])
        models = self.model_shares if phase == "model" else {}
        most = max(models, key=lambda one: models[one], default="")
        within = f", {models[most]:.0%} of it in {most}" if len(models) > 1 else ""
        return f"{phase} {self.shares[phase]:.0%}{within}"


def simulate(plan: Mapping[str, Any], *, grouped: bool = True) -> Forecast:
    """Predicts what a run will take.

    Args:
        plan: what ``tomllib`` reads from the plan's file.
        grouped: whether one machine is simulated for all, which are alike; else each has keys in an order of its own.

    Raises:
        ConfigurationError: the plan is wrong, or does not fit into memory; the message names the key.
    """
    return _Simulation(parse_plan(plan), grouped=grouped).forecast()


class _Simulation:
    def __init__(self, plan: SimulatedRun, *, grouped: bool) -> None:
        self._plan = plan
        self._rng = random.Random(7)
        self._shares_models = _shares_models(plan)
        self._memory = 0
        self._histories: list[list[SimulatedBundle]] = []
        """What each worker does since the start of its machine, of one machine or of all."""
        for seed in range(1 if grouped else plan.machines.count):
            machine = SimulatedMachine(plan, shares_models=self._shares_models, seed=seed)
            self._histories += machine.run(_parts(plan))
            self._memory = max(self._memory, machine.peak)
        bundles = [bundle.rows for history in self._histories for bundle in history]
        if plan.rows * len(bundles) > _MOST_BUNDLES * sum(bundles):
            raise ConfigurationError(
                f"rows: workers would take more than {_MOST_BUNDLES:,} bundles, of {max(bundles):,} rows, too "
                "many to be simulated; give fewer rows, or rows_per_bundle a larger number."
            )
        machines = min(plan.machines.count, _MOST_MACHINES) if grouped else plan.machines.count
        self._endpoints = [EndpointShare(plan, name, machines) for name in plan.endpoints if plan.shares[name]]
        self._left = self._unfinished = plan.rows
        """Rows that nobody has taken, and that nobody has finished."""
        self._events: list[tuple[float, int, int]] = []
        """When a worker has started or is done with its bundle, and which start that was; or when a machine goes."""
        self._taken: dict[int, tuple[float, int, str, float]] = {}
        """Since when workers are at a bundle, of how many rows; for what, and how long, they wait at its end."""
        self._idle: set[int] = set()
        self._ages = [0] * plan.workers
        """How many bundles a worker has done since its machine started."""
        self._starts = [0] * plan.machines.count
        self._done: dict[tuple[int, int], float] = defaultdict(float)
        """How often each bundle of the histories was done, by history and age."""
        self._spent: dict[str, float] = defaultdict(float)
        """Seconds of workers by phase."""
        self.preempted = 0

    def forecast(self) -> Forecast:
        self._start()
        while self._unfinished:
            now, number, start = heapq.heappop(self._events)
            if number < 0:
                self._preempt(now, start)
                if number == _AGAIN:
                    self._preempt_later(now, start)
            elif start == self._starts[self._machine_of(number)]:
                self._finish(now, number)
        return self._found(now)

    def _machine_of(self, worker: int) -> int:
        return worker // self._plan.machines.workers

    def _local(self, worker: int) -> SimulatedBundle:
        history, place = self._bundle(worker)
        return self._histories[history][place]

    def _bundle(self, worker: int) -> tuple[int, int]:
        """Which bundle of which history a worker does next: after the last one, those of the second half again."""
        history, age = worker % len(self._histories), self._ages[worker]
        length = len(self._histories[history])
        half = length // 2
        return history, age if age < length else half + (age - half) % (length - half)

    def _start(self) -> None:
        plan, preemptions = self._plan, self._plan.preemptions
        for worker in range(plan.workers):
            heapq.heappush(self._events, (plan.machines.start_seconds, worker, 0))
        self._spent["starting"] += plan.machines.start_seconds * plan.workers
        for number, hour in enumerate(preemptions.at_hours):
            heapq.heappush(self._events, (hour * _HOUR, _ONCE, number % plan.machines.count))
        for machine in range(plan.machines.count if preemptions.per_hour else 0):
            self._preempt_later(0.0, machine)

    def _preempt_later(self, now: float, machine: int) -> None:
        wait = self._rng.expovariate(self._plan.preemptions.per_hour) * _HOUR
        heapq.heappush(self._events, (now + wait, _AGAIN, machine))

    def _preempt(self, now: float, machine: int) -> None:
        """A machine goes; another one comes in its place, and workers that are idle take its bundles."""
        self.preempted += 1
        if self.preempted > _MOST_PREEMPTIONS * (len(self._done) + self._plan.machines.count):
            raise ConfigurationError(
                "machines are preempted before they are done with a bundle: give rows_per_bundle a smaller number, or "
                "preemptions.per_hour."
            )
        self._starts[machine] += 1
        each, restart = self._plan.machines.workers, self._plan.preemptions.restart_seconds
        for worker in range(machine * each, machine * each + each):
            if worker in self._taken:
                began, rows, *_ = self._taken.pop(worker)
                self._left += rows
                self._spent["preempted"] += now - began
            self._idle.discard(worker)
            self._ages[worker] = 0
            self._spent["preempted"] += restart
            heapq.heappush(self._events, (now + restart, worker, self._starts[machine]))
        while self._left and self._idle:
            self._take(now, self._idle.pop())

    def _take(self, now: float, worker: int) -> None:
        if not self._left:
            self._idle.add(worker)
            return
        bundle = self._local(worker)
        rows = min(bundle.rows, self._left)
        self._left -= rows
        local, waits = bundle.seconds * rows / bundle.rows, [(0.0, "")]
        for endpoint in self._endpoints:
            answered = endpoint.answered(now - self._plan.machines.start_seconds, rows)
            waits.append((answered - local, endpoint.phase))
        waited, phase = max(waits)
        self._taken[worker] = now, rows, phase, waited
        heapq.heappush(self._events, (now + local + waited, worker, self._starts[self._machine_of(worker)]))

    def _finish(self, now: float, worker: int) -> None:
        if worker in self._taken:
            _, rows, phase, waited = self._taken.pop(worker)
            self._done[self._bundle(worker)] += rows / self._local(worker).rows
            self._ages[worker] += 1
            self._unfinished -= rows
            self._spent[phase] += waited
        self._take(now, worker)

    def _found(self, seconds: float) -> Forecast:
        plan = self._plan
        if not seconds:
            raise ConfigurationError("nothing in the plan takes time: give batch_seconds, or another of its seconds.")
        in_models: dict[str, float] = defaultdict(float)
        counts: dict[str, dict[str, float]] = {what: defaultdict(float) for what in (*_COUNTED, "rows")}
        for (history, age), number in self._done.items():
            bundle = self._histories[history][age]
            for (what, model), count in bundle.counts.items():
                counts[what][model] += count * number
            for (phase, model), spent in bundle.spent.items():
                self._spent[phase] += spent * number
                in_models[model] += spent * number * (phase == "model")
        whole = max(seconds * plan.workers, sum(self._spent.values()))
        self._spent["idle"] = whole - sum(self._spent.values())
        waited = {endpoint.name: self._spent[endpoint.phase] > _WAITS * whole for endpoint in self._endpoints}
        requests = {one.name: round(plan.rows * one.share) for one in self._endpoints}
        return Forecast(
            rows=plan.rows,
            seconds=seconds,
            machines=plan.machines.count,
            workers=plan.workers,
            placement="machine" if self._shares_models else "process",
            shares={phase: spent / whole for phase, spent in _largest_first(self._spent)},
            model_shares={name: spent / sum(in_models.values()) for name, spent in _largest_first(in_models)},
            **{what: {name: round(one) for name, one in counts[what].items()} for what in _COUNTED},
            batch_rows={name: counts["rows"][name] / number for name, number in counts["batches"].items()},
            memory_bytes=self._memory,
            preempted=self.preempted,
            requests=requests,
            refused={one.name: one.refused(requests[one.name], waited=waited[one.name]) for one in self._endpoints},
            cost=self._cost(seconds, requests),
        )

    def _cost(self, seconds: float, requests: Mapping[str, int]) -> float | None:
        machines, endpoints = self._plan.machines, self._plan.endpoints
        per_row = {name: one.price_per_1000_rows / 1000 for name, one in endpoints.items()}
        if not machines.price_per_hour and not any(per_row.values()):
            return None
        paid = sum(requests[name] * price for name, price in per_row.items())
        return paid + machines.count * machines.price_per_hour * seconds / _HOUR


def _parts(plan: SimulatedRun) -> Iterator[int]:
    """How many rows the bundles have that the workers of a machine take, one after the other."""
    from headrace.jobs.splits import part_bytes  # noqa: PLC0415 - handlers' tests need no numpy

    workers, is_pipeline = plan.machines.workers, plan.machines.count > 1
    most = _MOST_ROWS // (max(1, len(plan.models)) if plan.route == "all" else 1)
    each = plan.rows_per_bundle or (math.ceil(plan.rows / (plan.workers * _BUNDLES)) if is_pipeline else most)
    longest = max(1, min(each, most // (workers * _FEWEST_BUNDLES)))
    cuts = not plan.rows_per_bundle and not is_pipeline and workers > 1
    left, done = math.ceil(1.25 * plan.rows / plan.machines.count) if is_pipeline else plan.rows, 0
    size = plan.bytes_per_row
    for _ in range(_MOST_PARTS * workers):
        if left <= 0 or done >= most:
            return
        rows = part_bytes(left * size, plan.rows * size, workers) // size if cuts else longest
        rows = max(1, min(rows, longest, left))
        left, done = left - rows, done + rows
        yield rows


def _largest_first(spent: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((name, seconds) for name, seconds in spent.items() if seconds > 0), key=lambda one: -one[1])


def _shares_models(plan: SimulatedRun) -> bool:
    if plan.placement != "auto":
        return plan.placement == "machine"
    machines = plan.machines
    nbytes = sum(model.nbytes for model in plan.models.values())
    free = min(machines.memory_gb, 1e9) - machines.memory_per_worker_gb * machines.workers
    return Choice(nbytes, machines.workers, round(free * GB)).placement == "machine"

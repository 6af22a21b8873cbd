"""What happens in one run, drawn at random: where the model lives, how elements are batched, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

import _minefield as minefield

from headrace import BatchingConfig
from headrace.core.result import Stage

APART = 10_000
"""Between the first elements of two threads."""
_SIZES = (1, 2, 3, 5, 8, 16)


@dataclass(frozen=True)
class Fault:
    """What an element does, and in which operation."""

    name: str
    stage: Stage = Stage.INFERENCE
    index: int = 0
    """Which function of the stage."""


@dataclass(frozen=True)
class Schedule:
    """All that is drawn before it begins. An element is a number; of several rows, where elements are columnar."""

    placement: str
    """``isolated``; ``mapped`` or ``copies`` of the machine's; with ``isolated`` after it."""
    timeout: float | None
    batching: BatchingConfig
    threads: list[list[int]]
    """The sizes of each thread's bundles, in elements or rows."""
    keys: int = 0
    """How many models keys decide on; 0: there are no keys, 1: one model for all of them."""
    preprocessing: int = 0
    postprocessing: int = 0
    faults: dict[int, Fault] = field(default_factory=dict)
    crowd: int | None = None
    """Larger batches hang, ..."""
    room: int | None = None
    """... or want memory."""
    deeds: list[str] = field(default_factory=list)
    """Whom somebody from outside kills: ``hosts``, ``fork_servers`` or ``managers``, one deed after the other."""

    @property
    def is_isolated(self) -> bool:
        """Whether all that an element goes through, goes on in a host."""
        return "isolated" in self.placement

    def key(self, element: int) -> str:
        return f"key {element * 7 % 5 % max(1, self.keys)}"

    def faults_of(self, stage: Stage, index: int = 0) -> dict[int, str]:
        """The names of the faults in one operation, by element."""
        return {n: fault.name for n, fault in self.faults.items() if (fault.stage, fault.index) == (stage, index)}

    def neighbours(self, element: int) -> set[int]:
        """Those that a batch may have in common with it, if elements are not gathered from several bundles."""
        thread, place = divmod(element, APART)
        start = 0
        for size in self.threads[thread]:
            if start <= place < start + size:
                return set(range(thread * APART + start, thread * APART + start + size))
            start += size
        raise LookupError(element)


def draw(randomness) -> Schedule:
    """Any one; with few enough faults that the circuit breaker stays closed and the search does not give up."""
    placement = randomness.choice(
        ["isolated", "isolated", "mapped", "mapped isolated", "copies", "copies isolated", "copies isolated"]
    )
    columnar = randomness.random() < 0.2
    is_isolated = "isolated" in placement
    timeout = minefield.TIMEOUT if is_isolated and randomness.random() < 0.7 else None
    threads = [
        [randomness.randint(1, 30) for _ in range(randomness.randint(1, 4))] for _ in range(_threads(randomness))
    ]
    counts = [0, 0] if columnar else [randomness.choice([0, 0, 1, 2]) for _ in range(2)]
    schedule = Schedule(
        placement,
        timeout,
        _batching(randomness, columnar),
        threads,
        keys=0 if columnar else randomness.choice([0, 0, 0, 1, 2]),
        preprocessing=counts[0],
        postprocessing=counts[1],
        crowd=randomness.choice([1, 2, 4, 6]) if timeout and randomness.random() < 0.2 else None,
        room=randomness.choice([1, 2, 4, 6]) if randomness.random() < 0.15 else None,
        deeds=[randomness.choice(_victims(placement)) for _ in range(randomness.choice([0, 0, 1, 1, 2]))],
    )
    schedule.faults.update(_faults(schedule, randomness))
    return schedule


def _threads(randomness) -> int:
    return randomness.choice([1, 1, 2, 3])


def _victims(placement: str) -> list[str]:
    if placement == "isolated":
        return ["hosts", "hosts", "fork_servers"]
    return ["hosts", "hosts", "fork_servers", "managers"]


def _batching(randomness, columnar: bool) -> BatchingConfig:
    largest = randomness.choice(_SIZES)
    is_fixed = randomness.random() < 0.5
    options = {"overlap": randomness.random() < 0.5, "columnar": columnar}
    if not columnar and randomness.random() < 0.2:
        options["length_fn"] = _length
    return BatchingConfig(largest if is_fixed else randomness.choice([1, 1, largest]), largest, **options)


def _length(value) -> int:
    return 1 + minefield.number(value) % 5


def _faults(schedule: Schedule, randomness) -> dict[int, Fault]:
    """Those that fail are never side by side, so that there is a good element between any two."""
    kinds = [*minefield.RAISING] * 2 + [minefield.SKIPPED] * (not schedule.batching.columnar)
    if schedule.placement != "mapped":
        kinds += [*minefield.LETHAL, minefield.LOSE]
    places = [n * APART + at for n, sizes in enumerate(schedule.threads) for at in range(0, sum(sizes), 2)]
    names = [randomness.choice(kinds) for _ in range(randomness.choice([0, 1, 2, 4]))]
    if schedule.timeout and randomness.random() < 0.4:
        names += [randomness.choice([*minefield.ENDLESS])] * randomness.choice([1, 1, 2])
    if randomness.random() < 0.1:
        names.append(minefield.MISCOUNT)
    randomness.shuffle(names)
    at = sorted(randomness.sample(places, min(len(names), len(places))))
    faults = {place: _fault(schedule, name, randomness) for place, name in zip(at, names, strict=False)}
    return faults | _dawdlers(schedule, faults, randomness)


def _fault(schedule: Schedule, name: str, randomness) -> Fault:
    stages = [Stage.INFERENCE] * 3
    if name != minefield.MISCOUNT and (schedule.is_isolated or name in (*minefield.RAISING, minefield.SKIPPED)):
        stages += [Stage.PREPROCESSING] * schedule.preprocessing + [Stage.POSTPROCESSING] * schedule.postprocessing
    stage = randomness.choice(stages)
    counts = {Stage.PREPROCESSING: schedule.preprocessing, Stage.POSTPROCESSING: schedule.postprocessing}
    return Fault(name, stage, randomness.randrange(counts.get(stage, 1)))


def _dawdlers(schedule: Schedule, faults, randomness) -> dict[int, Fault]:
    """Neighbours that together come near the time limit, or exceed it."""
    if not schedule.timeout or randomness.random() > 0.15:
        return {}
    start = randomness.randrange(sum(schedule.threads[0]))
    stop = min(start + randomness.randint(1, 4), sum(schedule.threads[0]))
    return {place: Fault(minefield.DAWDLE) for place in range(start, stop) if place not in faults}

"""How a run went over time: rows, batches, latencies and what the processes were at, in a table of bounded size."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.core.events import (
    BatchCompleted,
    CacheUsed,
    ElementFailed,
    Event,
    RequestsThrottled,
    UsageReported,
    WorkSampled,
)
from headrace.metrics.totals import added

_MOST_BINS = 240
_FIRST_BIN_SECS = 0.5
_EXACT_SIZES = 32
_MOST_REQUESTS = 512
_RECENT = 10
"""Samples of one process: about five seconds."""
_OF_USAGE = ("requests", "input_tokens", "output_tokens", "cost")
_MOST_PLACES, _KEPT_PLACES = 10, 1000
_STEP = math.log(1.05)
"""Latencies are counted in steps of 5 %."""
_OF_ALL = ("quota", "gpu_busy", "gpu_memory")
_SUMS = ("rows", "batches", "failed", "throttled_seconds", "tokens", "cost", "cpu_seconds")


class CpuOfHosts:
    """What hosts have computed: each second once, though several processes may have a host together."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def since_last(self, event: WorkSampled) -> float:
        """The CPU seconds of an event's hosts since an event had them last."""
        seconds = {host: max(secs, self._known.get(host, 0.0)) for host, (secs, _) in event.hosts.items()}
        spent = sum(secs - self._known.get(host, secs) for host, secs in seconds.items())
        self._known.update(seconds)
        return spent


class Timeline:
    """An Observer. Thread-safe.

    Args:
        clock: seconds.
        began: when the first bin begins, on that clock; None: now.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, began: float | None = None) -> None:
        self._clock = clock
        self._began = clock() if began is None else began
        self._bin_secs = _FIRST_BIN_SECS
        self._sums: dict[str, list[float]] = {name: [] for name in _SUMS}
        self._gauges: dict[str, list[float]] = {}
        """For each gauge the most of each bin, of all processes together."""
        self._gauges_of: dict[int, Mapping[str, float]] = {}
        self._hosts_of: dict[int, Mapping[int, tuple[float, int]]] = {}
        self._cpu_of_hosts = CpuOfHosts()
        self._sizes: dict[int, list[float]] = {}
        """For each size of a batch: batches, rows, seconds."""
        self._latencies: Counter[int] = Counter()
        self._longest = 0.0
        self._phases: Counter[str] = Counter()  # of seconds
        self._sampled = 0.0
        self._working: set[int] = set()
        """Processes that have been in any phase: one that only hands out work, or starts, is not waited for."""
        self._recent: deque[WorkSampled] = deque(maxlen=_RECENT)
        self._padding = [0.0, 0.0]
        self._slowest = _Most(_seconds_of_each, lambda *both: max(both, key=_seconds_of_each))
        self._dearest = _Most(lambda used: (used.cost or 0, used.input_tokens + used.output_tokens), added)
        self._requests: list[list[float]] = []
        """Of a random sample of them: tokens of the prompt and of the answer, and cost."""
        self._reports = 0
        self._random = random.Random(0)  # noqa: S311 - keeps no secret
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        """Adds one event, as of now."""
        with self._lock:
            if isinstance(event, BatchCompleted):
                self._batch(event)
            elif isinstance(event, WorkSampled):
                self._sample(event)
            elif isinstance(event, CacheUsed):
                self._add("rows", event.hits)
            elif isinstance(event, ElementFailed):
                self._add("failed", 1)
            elif isinstance(event, RequestsThrottled):
                self._add("throttled_seconds", event.seconds)
            elif isinstance(event, UsageReported):
                self._dearest.add(event)
                self._request(event)

    def recent(self) -> dict[str, float]:
        """Of the last few seconds, for each phase the share of the time in which any thread was in it."""
        with self._lock:
            seconds = sum(event.seconds for event in self._recent)
            busy: Counter[str] = Counter()
            for event in self._recent:
                busy.update(event.phases)
        return {name: min(1.0, spent / seconds) for name, spent in busy.items()} if seconds else {}

    def figures(self) -> dict[str, Any]:
        """Plain values: seconds, bytes, and counts; ``timeline`` has a value for each ``bin_seconds``."""
        with self._lock:
            self._bin()
            return {
                "wall": {
                    "sampled_seconds": round(self._sampled, 3),
                    "busy_seconds": {name: round(seconds, 3) for name, seconds in self._phases.most_common()},
                },
                "timeline": {
                    "bin_seconds": self._bin_secs,
                    **{name: [round(one, 4) for one in column] for name, column in (self._sums | self._gauges).items()},
                },
                "batch_sizes": [
                    {"size": size, "batches": int(batches), "rows": int(rows), "seconds": round(seconds, 6)}
                    for size, (batches, rows, seconds) in sorted(self._sizes.items())
                ],
                "latency": self._quantiles(),
                "slowest": [
                    {"file": file, "row": row, "rows": one.examples, "seconds": round(one.seconds, 6)}
                    for (file, row), one in self._slowest.found()
                ],
                "dearest": [
                    {"file": file, "row": row, **{name: getattr(one, name) for name in _OF_USAGE}}
                    for (file, row), one in self._dearest.found()
                ],
                "padding": {"useful": self._padding[0], "padded": self._padding[1]},
                "requests": list(self._requests),
            }

    def _batch(self, event: BatchCompleted) -> None:
        self._add("rows", event.examples)
        self._add("batches", 1)
        of_size = self._sizes.setdefault(_bucket(event.examples), [0.0, 0.0, 0.0])
        for place, amount in enumerate((1, event.examples, event.seconds)):
            of_size[place] += amount
        self._latencies[round(math.log(max(event.seconds, 1e-7)) / _STEP)] += 1
        self._longest = max(self._longest, event.seconds)
        self._slowest.add(event)
        if event.padded:
            self._padding[0] += event.useful
            self._padding[1] += event.padded

    def _request(self, event: UsageReported) -> None:
        self._add("tokens", event.input_tokens + event.output_tokens)
        self._add("cost", event.cost or 0.0)
        self._reports += 1
        one = [event.input_tokens, event.output_tokens, event.cost or 0.0]
        if len(self._requests) < _MOST_REQUESTS:
            self._requests.append(one)
        elif (place := self._random.randrange(self._reports)) < _MOST_REQUESTS:
            self._requests[place] = one

    def _sample(self, event: WorkSampled) -> None:
        self._phases.update(event.phases)
        if event.phases:
            self._working.add(event.process)
        if event.process in self._working:
            self._sampled += event.seconds
            self._recent.append(event)
        last = self._bin()
        bins = min(last, round(event.seconds / self._bin_secs)) + 1
        self._gauges_of[event.process] = event.gauges
        now = {name: _together(name, self._gauges_of.values()) for name in event.gauges}
        cpu_seconds = event.cpu_seconds + self._of_hosts(event, now)
        for name in now.keys() - self._gauges.keys():
            self._gauges[name] = [0.0] * (last + 1)
        for place in range(last + 1 - bins, last + 1):
            self._sums["cpu_seconds"][place] += cpu_seconds / bins
            for name, value in now.items():
                self._gauges[name][place] = max(self._gauges[name][place], value)

    def _of_hosts(self, event: WorkSampled, gauges: dict[str, float]) -> float:
        """What hosts have computed since somebody saw them; adds their memory."""
        self._hosts_of[event.process] = event.hosts
        together = {host: resident for hosts in self._hosts_of.values() for host, (_, resident) in hosts.items()}
        if together:
            gauges["memory"] = gauges.get("memory", 0.0) + sum(together.values())
        return self._cpu_of_hosts.since_last(event)

    def _add(self, name: str, amount: float) -> None:
        place = self._bin()  # first: it may replace the lists
        self._sums[name][place] += amount

    def _bin(self) -> int:
        """The place of now; all lists reach there."""
        place = int((self._clock() - self._began) / self._bin_secs)
        while place >= _MOST_BINS:
            self._bin_secs *= 2
            place //= 2
            for name, values in self._sums.items():
                self._sums[name] = [sum(values[start : start + 2]) for start in range(0, len(values), 2)]
            for name, values in self._gauges.items():
                self._gauges[name] = [max(values[start : start + 2]) for start in range(0, len(values), 2)]
        for column in (*self._sums.values(), *self._gauges.values()):
            column.extend([0.0] * (place + 1 - len(column)))
        return place

    def _quantiles(self) -> dict[str, float] | None:
        """Of the seconds of a batch, or a request."""
        if not (count := self._latencies.total()):
            return None
        found: dict[str, float] = {}
        seen = 0
        wanted = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        for step, batches in sorted(self._latencies.items()):
            seen += batches
            for name, share in wanted.items():
                if name not in found and seen >= share * count:
                    found[name] = round(min(math.exp(step * _STEP), self._longest), 6)
        return {**found, "longest": round(self._longest, 6)}


class _Most:
    """The events of known places that have the most of something.

    Args:
        amount: of what.
        together: makes one of two events of the same place.
    """

    def __init__(self, amount: Callable[[Any], Any], together: Callable[[Any, Any], Any]) -> None:
        self._amount, self._together = amount, together
        self._of: dict[tuple[str, int], Any] = {}

    def add(self, event: BatchCompleted | UsageReported) -> None:
        if event.where is None:
            return
        before = self._of.get(event.where)
        self._of[event.where] = event if before is None else self._together(before, event)
        if len(self._of) > _KEPT_PLACES:
            self._of = dict(self.found())

    def found(self) -> list[tuple[tuple[str, int], Any]]:
        """Ten places with their events, the most first."""
        return sorted(self._of.items(), key=lambda item: self._amount(item[1]), reverse=True)[:_MOST_PLACES]


def _seconds_of_each(batch: BatchCompleted) -> float:
    return batch.seconds / max(1, batch.examples)


def _bucket(size: int) -> int:
    """A size, rounded to a step of the square root of two if it is large."""
    return size if size <= _EXACT_SIZES else round(2 ** (round(2 * math.log2(size)) / 2))


def _together(name: str, gauges: Iterable[Mapping[str, float]]) -> float:
    """A gauge of all processes: they share a quota, and the machine's GPUs."""
    values = [one.get(name, 0.0) for one in gauges]
    return max(values) if name in _OF_ALL else sum(values)

"""From the figures of a pilot's report to what the whole run will take: seconds, tokens and money, with intervals.

A pilot is a short run over a random sample. After its warm-up it goes at a steady rate, at which the rest of the rows
will, too; what it took until then is what the start takes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from operator import mul
from statistics import fmean, stdev
from typing import Any, NamedTuple

from headrace.metrics.verdict import shares, what_binds

Figures = Mapping[str, Any]

_DRIFT = 0.05
"""How much, relatively, the speed of a machine differs between two runs, whatever one of them shows."""
_GROUPS = 10
_FEWEST_BINS = 4
_CHANGED = 3.0
"""By how many standard errors two rates differ that are not the same."""
_RESAMPLES = 500
_TAILS = 0.9875, 0.0125
"""Of the bootstrap: with 0.975 the interval of a hundred answers of lognormal length holds what comes in 93 % only."""
_OF_A_PART = 2.0
"""By which factor whole lots of rows that are sorted may go faster or slower than a part of the first one."""
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t for 95 %, for one degree of freedom and more."""
_QUOTA = 0.05
"""The share of a pilot's time for which a quota held it back that says that it binds."""


class Estimate(NamedTuple):
    """A figure, and an interval that holds what comes in about 95 % of all runs."""

    middle: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Of so many."""
        return Estimate(*(factor * value for value in self))


class Steady(NamedTuple):
    """The rate at which rows come once all is warm."""

    rate: Estimate
    """Rows a second."""
    until: float
    """When the pilot still went at it, in seconds since its command began."""
    rows: float
    """How many rows were done by then."""


def forecast(figures: Figures, rows: int, stopped: float = math.inf) -> dict[str, Any]:
    """What a run over so many rows will take, as plain values; without rows in the pilot no seconds, but all else.

    Args:
        figures: of the report of a pilot.
        rows: of the whole run.
        stopped: when the pilot read no more rows, in seconds since its command began.
    """
    line, phases = figures["timeline"], figures["phases"] or {}
    seen = [sum(both) for both in zip(line["rows"], line["failed"], strict=True)]
    done = figures["rows"] if figures["rows"] is not None else round(sum(seen))
    found: dict[str, Any] = {
        "rows": rows,
        **_of("seconds", None),
        "rows_per_second": None,
        "start_seconds": None,
        "load_seconds": phases.get("loading"),
        "batch_sizes": figures["batch_sizes"],
        "memory_bytes": max(line.get("memory", ()), default=0),
        **_usage(figures, done, rows),
        "dead_letters": figures["failures"] / done if figures["failures"] and done else 0.0,
        "binds": _binds(figures),
        "pilot_rows": done,
        "pilot_money": figures["cost"],
    }
    if done and sum(seen):
        scale = done / sum(seen)
        is_at_once = figures["keeps_one_worker"]  # fewer and fewer requests, once no more rows are read
        seen = evened([scale * one for one in seen], figures["sorted_rows"])
        steady = steady_rate(seen, line["bin_seconds"], stopped if is_at_once else math.inf)
        if done < figures["sorted_rows"]:  # smaller batches, of more padding
            rate = steady.rate.middle
            steady = steady._replace(rate=Estimate(rate, rate / _OF_A_PART, rate * _OF_A_PART))
        finish = phases.get("writing", 0.0) / done * rows
        starts = (factor * steady.until for factor in (1, 1 + _DRIFT, 1 - _DRIFT))
        rates = zip(starts, steady.rate, strict=True)
        seconds = [max(0.0, start + (rows - steady.rows) / rate + finish) for start, rate in rates]
        found |= _of("seconds", Estimate(seconds[0], min(seconds), max(seconds)))
        found |= {"rows_per_second": steady.rate.middle}
        found |= {"start_seconds": max(0.0, steady.until - steady.rows / steady.rate.middle)}
    return found


def evened(rows: Sequence[float], together: int) -> list[float]:
    """Rows over time where so many are sorted ``together``, long and slow ones first: each such lot spread evenly.

    Without what comes behind the last whole lot: of few rows the batches are worse.
    """
    if not together or round(sum(rows)) < together:
        return list(rows)
    found: list[float] = []
    done, lots = 0.0, 1
    for place, value in enumerate(rows):
        done += value
        if not done:
            found.append(0.0)
        elif round(done) >= lots * together:
            size = place + 1 - len(found)
            found += [sum(rows[len(found) : place + 1]) / size] * size
            lots = int(round(done) / together) + 1
    return found


def steady_rate(rows: Sequence[float], width: float, stopped: float = math.inf) -> Steady:
    """The rate of a pilot's last stretch of even speed.

    A start that is slower, while batches grow, or faster, while the bucket of a quota is full, does not count.

    Args:
        rows: that came in each ``width`` seconds; some did.
        width: in seconds.
        stopped: when no more rows were read: what came after that were the last ones that waited.
    """
    working = [place for place, value in enumerate(rows) if value]
    first, last = working[0], working[-1]
    in_time = [place for place in working if (place + 1) * width <= stopped]
    if in_time == working:
        in_time.pop()  # which is not full
    if in_time and (in_time[-1] - first) * 2 >= last - first:
        last = in_time[-1]
    total = sum(rows[: last + 1])
    until = (last + 1) * width
    some = _spread(rows[first + 1 : last + 1])  # the first one began somewhere within
    if not any(some):
        rate = total / ((last + 1 - first) * width)
        return Steady(Estimate(rate, rate / 2, rate * 2), until, total)
    while (cut := _change(some)) is not None:
        some = some[cut:]
    mean = fmean(some)
    halves = fmean(some[: (len(some) + 1) // 2]), fmean(some[len(some) // 2 :])
    margin = max(math.hypot(_standard_error(some), _DRIFT * mean), abs(halves[0] - halves[1]))
    return Steady(Estimate(mean, max(mean / 10, mean - margin), mean + margin).times(1 / width), until, total)


def _spread(rows: Sequence[float]) -> list[float]:
    """Each batch's rows over all the time since the one before it."""
    found: list[float] = []
    empty = 0
    for value in rows:
        empty += 1
        if value:
            found += [value / empty] * empty
            empty = 0
    return found


def _change(values: Sequence[float]) -> int | None:
    """Where a rate changes for a quarter of the time at least; None: nowhere."""
    best, found = math.inf, None
    for cut in range(_FEWEST_BINS, len(values) - max(_FEWEST_BINS, len(values) // 4) + 1):
        before, after = values[:cut], values[cut:]
        means = fmean(before), fmean(after)
        spread = sum((value - means[0]) ** 2 for value in before) + sum((value - means[1]) ** 2 for value in after)
        error = math.sqrt(spread / (len(values) - 2) * (1 / len(before) + 1 / len(after)))
        if spread < best and abs(means[0] - means[1]) > max(_CHANGED * error, _DRIFT * means[1]):
            best, found = spread, cut
    return found


def _standard_error(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean, by the means of stretches: neighbours are alike."""
    groups = min(_GROUPS, len(values) // 2)
    if groups < 2:
        return 0.5 * fmean(values)
    size = len(values) // groups
    means = [fmean(values[start : start + size]) for start in range(0, groups * size, size)]
    return _T95[groups - 2] * stdev(means) / math.sqrt(groups)


def mean_interval(values: Sequence[float], *, whole: float = math.inf) -> tuple[float, float]:
    """By which factors the mean of many more values like these may differ from theirs: 95 %, by the bootstrap-t.

    It takes into account that a few values, such as long answers, are much larger than most.

    Args:
        values: a random sample, none negative.
        whole: how many times as many the others are, whose mean is asked for.
    """
    count, mean = len(values), fmean(values)
    if count < 2 or not mean:
        return (0.0, 10.0) if mean else (1.0, 1.0)
    error = _error_of_mean(values)
    if not error:
        return 1.0, 1.0
    drawn, found = random.Random(0), []  # noqa: S311 - keeps no secret
    for _ in range(_RESAMPLES):
        again = drawn.choices(values, k=count)
        found.append((fmean(again) - mean) / max(_error_of_mean(again), error / 10))
    found.sort()
    more = math.sqrt(1 + 1 / whole)
    low, high = (mean - found[round(share * (_RESAMPLES - 1))] * error * more for share in _TAILS)
    return max(0.0, low / mean), high / mean


def _error_of_mean(values: Sequence[float]) -> float:
    squares: float = sum(map(mul, values, values)) - sum(values) ** 2 / len(values)
    return math.sqrt(max(0.0, squares) / (len(values) - 1) / len(values))


def _usage(figures: Figures, done: int, rows: int) -> dict[str, Any]:
    """Tokens and money, as known of the requests of the pilot and a sample of them."""
    used, sample = figures["usage"], figures["requests"]
    if not used or not done:
        return {**_of("tokens_in", None), **_of("tokens_out", None), **_of("money", None)}
    totals = [sum(one[name] for one in used.values()) for name in ("input_tokens", "output_tokens")]
    found: dict[str, Any] = {}
    requests = sum(one["requests"] for one in used.values())
    for place, (name, total) in enumerate(
        zip(("tokens_in", "tokens_out", "money"), (*totals, figures["cost"]), strict=True)
    ):
        if total is None:
            found |= _of(name, None)
            continue
        low, high = mean_interval([one[place] for one in sample], whole=rows / done)
        narrower = math.sqrt(len(sample) / max(len(sample), requests))  # all requests are known, not only the sample
        interval = Estimate(1.0, 1 - (1 - low) * narrower, 1 + (high - 1) * narrower)
        found |= _of(name, interval.times(total / done * rows))
    return found


def _binds(figures: Figures) -> str:
    throttled, seconds = sum(figures["timeline"]["throttled_seconds"]), figures["wall"]["sampled_seconds"]
    if seconds and throttled / seconds >= _QUOTA:
        return QUOTA
    return "; ".join(what_binds(shares(figures))) or "no phase took half of the time"


QUOTA = "the endpoint's quota"
"""What binds, if more machines would not help."""


def machines(found: Figures, deadline: float) -> int | None:
    """How many machines like this one do it in so many seconds; None: none, or nobody knows."""
    if found["seconds"] is None or found["start_seconds"] >= deadline:
        return None
    if found["seconds"] <= deadline:
        return 1
    if found["binds"] == QUOTA:
        return None
    start: float = found["start_seconds"]
    return math.ceil((float(found["seconds"]) - start) / (deadline - start))


def _of(name: str, value: Estimate | None) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), value or (None, None, None), strict=True))

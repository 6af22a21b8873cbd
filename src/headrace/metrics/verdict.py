"""What held a run back, in a sentence, and what would have made it faster: rules over the figures of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.core.answer import counted
from headrace.core.phases import Phase

_BINDS = 0.5
"""The share of the time that a phase has to take to be what holds the run back."""
_BOUND = {"model": "model-bound", "reading": "bound by reading", "writing": "bound by writing"}
_WORTH = 0.05
"""The least gain, as a share of the run's time, that is worth an advice."""
_MOST_ADVICE = 3
_FEWEST_BATCHES = 3

Figures = Mapping[str, Any]


class Advice(NamedTuple):
    """Something to do about it."""

    text: str
    option: str
    """To paste into the command; empty if there is none."""
    gain_seconds: float
    basis: str
    """``measured`` in this run, or ``estimated`` from it."""


def verdict(figures: Figures) -> str:
    """One sentence: what the time went to, how good the batches were, and what failed."""
    found = shares(figures)
    bound = _starting(figures) or what_binds(found) or (["no phase took half of the time"] if found else [])
    parts = [*bound, "" if figures["usage"] else _batches(figures), _failures(figures)]
    sentence = "; ".join(part for part in parts if part) or "What held it back is not known"
    return f"{sentence[:1].upper()}{sentence[1:]}."


def what_binds(shares: Mapping[str, float]) -> list[str]:
    """What holds a run back, given each phase's share of the time: none, or one text, if a phase takes half of it.

    Who waits for a batch waits for what reads.
    """
    name = max(shares.keys() - {Phase.BATCH.value}, key=lambda one: shares[one], default="")
    if not name or shares[name] < _BINDS:
        return []
    return [f"{_BOUND.get(name, name)} {shares[name]:.0%}"]


def shares(figures: Figures) -> dict[str, float]:
    """Of the whole time, for each phase the share in which any thread was in it; empty if the run was not sampled."""
    wall = figures["wall"]
    seconds = wall["sampled_seconds"]
    return {name: min(1.0, busy / seconds) for name, busy in wall["busy_seconds"].items()} if seconds else {}


def advice(figures: Figures) -> list[Advice]:
    """At most three, the one with the greatest gain first."""
    found = [*_larger_batches(figures), *_workers(figures), *_quota(figures), *_reading(figures)]
    seconds = figures["seconds"] or figures["wall"]["sampled_seconds"]
    worthwhile = [one for one in found if one.gain_seconds > _WORTH * seconds]
    return sorted(worthwhile, key=lambda one: -one.gain_seconds)[:_MOST_ADVICE]


def best_size(sizes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The batch size with the most rows a second, of those that were tried a few times; None: there is none."""
    tried = [one for one in sizes if one["batches"] >= _FEWEST_BATCHES and one["seconds"] > 0]
    return max(tried, key=_rate, default=None)


def _rate(size: Mapping[str, Any]) -> float:
    return float(size["rows"] / size["seconds"])


def _starting(figures: Figures) -> list[str]:
    phases = figures["phases"] or {}
    whole = sum(phases.values())
    share = (phases["imports"] + phases["loading"]) / whole if whole else 0.0
    return [f"start and loading took {share:.0%}"] if share >= _BINDS else []


def _batches(figures: Figures) -> str:
    sizes = figures["batch_sizes"]
    best = best_size(sizes)
    rows, seconds = (sum(one[what] for one in sizes) for what in ("rows", "seconds"))
    if best is None or not seconds or len(sizes) == 1:  # endpoints' batches are of one
        return ""
    batches = sum(one["batches"] for one in sizes)
    return f"batches of {rows / batches:,.0f} on average were {min(1.0, rows / seconds / _rate(best)):.0%} of the best"


def _failures(figures: Figures) -> str:
    failures = figures["failures"] or 0
    if not failures:
        return "no dead letters" if figures["failures"] == 0 else ""
    most = max((one["count"] for one in figures["causes"]), default=0)
    letters = counted(failures, "dead letter")
    return f"{letters}, {most:,} of one cause" if 1 < most < failures else letters


def _larger_batches(figures: Figures) -> Iterator[Advice]:
    sizes = figures["batch_sizes"]
    best = best_size(sizes)
    if best is None or figures["usage"]:
        return
    rows, seconds = (sum(one[what] for one in sizes) for what in ("rows", "seconds"))
    gain = (seconds - rows / _rate(best)) / (figures["workers"] or 1)
    text = f"Batches of {best['size']:,} took the least time for a row"
    yield Advice(text, f"--min-batch-size {best['size']} --max-batch-size {best['size']}", gain, "measured")


def _workers(figures: Figures) -> Iterator[Advice]:
    cores, wall = figures["cores"], figures["wall"]["sampled_seconds"]
    busy = sum(figures["timeline"]["cpu_seconds"])
    phases = figures["phases"] or {}
    if not wall or cores < 2 or figures["usage"] or figures["workers"] != 1 or figures["keeps_one_worker"]:
        return
    used = busy / wall
    workers = int(cores / max(1.0, used))
    if workers > 1:
        gain = phases.get("rows", 0.0) * (1 - 1 / workers) - phases.get("imports", 0.0) - phases.get("loading", 0.0)
        text = f"The run kept {used:.1f} of {cores} cores busy"
        yield Advice(text, f"--workers {workers}", gain, "estimated")


def _quota(figures: Figures) -> Iterator[Advice]:
    throttled = sum(figures["timeline"]["throttled_seconds"])
    if throttled:
        yield Advice("The endpoint's quota held requests back: ask for a higher one", "", float(throttled), "estimated")


def _reading(figures: Figures) -> Iterator[Advice]:
    share = shares(figures).get("reading", 0.0)
    if share >= _BINDS and any(name in figures["formats"] for name in ("csv", "jsonl")):
        gain = figures["wall"]["sampled_seconds"] * share / 2
        yield Advice("Reading text took most of the time: Parquet is read several times faster", "", gain, "estimated")

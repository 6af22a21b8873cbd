"""The summary at the end of a run: rows, tokens and money, and where the seconds went."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from headrace.cli.console import say
from headrace.core.events import UsageReported
from headrace.metrics.totals import Totals, added

if TYPE_CHECKING:
    from headrace.jobs.job import Inputs, Report

PROCESS_START = time.monotonic() - time.process_time()
"""When this process started, on the clock of ``time.monotonic``: about as long ago as it has computed until now."""

Line = tuple[str, str]
"""A name and a figure."""

_FAILED = "dead letters"
"""The line behind which the causes stand."""
_QUOTED = 3
_MOST_MODELS = 5
_LEAST_RATE = 0.01


class Seconds(NamedTuple):
    """What a run's time went to; the phases follow one another."""

    imports: float = 0.0
    """From the start of the process until the model is asked for: Python, imports, looking at the input."""
    loading: float = 0.0
    """Loading the model."""
    rows: float = 0.0
    """Reading, predicting and encoding rows."""
    writing: float = 0.0
    """Joining the parts into files, and moving those into place."""

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def phases(started: float, begun: float, loading: float, writing: float) -> Seconds:
    """What the time went to since the command ``started`` and its run had ``begun``, on ``time.monotonic``'s clock.

    A model that loads while rows are read, or in several processes, counts within the run.
    """
    running = time.monotonic() - begun - writing
    loading = min(loading, running)
    return Seconds(begun - started, loading, running - loading, writing)


def loading_seconds(totals: Totals, workers: int | None) -> float:
    """How long models were loaded: the workers, None for as many as turned out, load theirs side by side."""
    return totals.load_seconds / max(1, min(totals.loads, workers or totals.loads))


def summary(report: Report, totals: Totals, seconds: Seconds, *, verbose: bool = False) -> list[Line]:
    """The lines of the summary; ``verbose``: with what those want to know who look into how fast a run is."""
    working = seconds.rows + seconds.writing
    rate = rate_text((report.rows - report.earlier) / working) if working else ""
    return [
        ("rows", f"{report.rows:,}"),
        *([("  done before", f"{report.earlier:,}")] if report.earlier else []),
        ("predictions", f"{report.predictions:,}"),
        *([("  by the fallback", f"{totals.from_fallback:,}")] if totals.from_fallback else []),
        (_FAILED, f"{report.failed:,}"),
        *([("skipped", f"{report.skipped:,}")] if report.skipped else []),
        *usage_lines(totals),
        ("seconds", f"{seconds.total:.2f}{f' ({rate} rows/s without start and loading)' if rate else ''}"),
        *(_details(report, totals, seconds) if verbose else ()),
    ]


def inputs_lines(inputs: Inputs | None, are: str = "predicted") -> list[Line]:
    """What becomes of inputs that have an output each."""
    if inputs is None:
        return []
    lines = [("inputs", f"{inputs.predicted:,} {are}, {inputs.unchanged:,} unchanged")]
    if inputs.others:
        some = ", ".join([*inputs.others[:_QUOTED], *(["..."] if inputs.others[_QUOTED:] else [])])
        lines.append(
            ("other outputs", f"{len(inputs.others):,} of inputs that are gone or not named, which stay: {some}")
        )
    return lines


def show_run(
    report: Report, totals: Totals, seconds: Seconds, files: Mapping[str, str | None], *, verbose: bool
) -> None:
    """Prints the summary of a run that got to its end, why rows failed, and the files, by their names there."""
    lines = inputs_lines(report.inputs) + summary(report, totals, seconds, verbose=verbose)
    lines += [(name, path) for name, path in files.items() if path]
    show(Console(), lines, list(_causes(report.messages, report.failed)))


def show(console: Console, lines: Sequence[Line], causes: Sequence[str] = ()) -> None:
    """Prints lines in two columns; the causes behind the number of dead letters."""
    width = 2 + max(len(name) for name, _ in lines)
    for name, value in lines:
        for text in (f"{name:<{width}}{value}".rstrip(), *(causes if name == _FAILED else ())):
            say(console, text)


def rate_text(rate: float) -> str:
    """So many a second, in two digits below 10; empty if there are next to none."""
    if rate >= 10:
        return f"{rate:,.0f}"
    return f"{rate:.2g}" if rate >= _LEAST_RATE else ""


def tokens_used(totals: Totals) -> int:
    """Tokens of prompts and answers, of all models."""
    return sum(used.input_tokens + used.output_tokens for used in totals.usage.copy().values())


def cost_of(usage: Mapping[str, UsageReported]) -> float | None:
    """What all models cost together; None: nobody knows any price."""
    costs = [used.cost for used in usage.values() if used.cost is not None]
    return sum(costs) if costs else None


def usage_lines(totals: Totals) -> Iterator[Line]:
    """The lines of the summary about usage; none if there is none."""
    if totals.cached:
        yield "from the cache", f"{totals.cached:,}"
    if not totals.usage:
        return
    everything = functools.reduce(added, totals.usage.values())
    if _is_billed(everything):
        yield "billed requests", f"{everything.requests:,}"
    yield "tokens", _tokens(everything)
    if everything.cost is not None:
        yield "cost", f"{everything.cost:,.6g}"
    if len(totals.usage) > 1:
        for model, used in sorted(totals.usage.items())[:_MOST_MODELS]:
            requests = f"{used.requests:,} requests, " if _is_billed(used) else ""
            cost = "" if used.cost is None else f", cost {used.cost:,.6g}"
            yield f"  {model}", f"{requests}{_tokens(used)}{cost}"


def _causes(messages: Mapping[str, int], failed: int) -> Iterator[str]:
    quoted = list(messages.items())[:_QUOTED]
    for message, count in quoted:
        yield f"  {count:,} x {message}"
    more = failed - sum(count for _, count in quoted)
    if more > 0 and quoted:
        yield f"  and {more:,} more with other messages"


def _details(report: Report, totals: Totals, seconds: Seconds) -> Iterator[Line]:
    imports, loading, rows, writing = seconds
    yield (
        "  of these",
        f"{imports:.2f} start and imports, {loading:.2f} loading, {rows:.2f} rows, {writing:.2f} writing",
    )
    for (stage, error_type), count in sorted(report.dead_letters.items()):
        yield f"{stage} {error_type}", f"{count:,}"
    if totals.usage and rows:
        yield "tokens/s", rate_text(tokens_used(totals) / rows) or "0"
    yield "batches", f"{totals.batches:,}"
    yield "mean batch size", f"{totals.mean_batch_size:.1f}"
    yield "model load seconds", f"{totals.load_seconds:.2f}"
    if totals.model_bytes:
        yield "model bytes", f"{totals.model_bytes:,}"


def _tokens(used: UsageReported) -> str:
    return f"{used.input_tokens:,} in, {used.output_tokens:,} out"


def _is_billed(used: UsageReported) -> bool:
    """Whether the requests went to somebody who may bill them: not to an engine on this machine."""
    return used.seconds is None

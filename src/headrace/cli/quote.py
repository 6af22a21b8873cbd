"""What a run will take: ``headrace quote`` tries, ``headrace simulate`` reckons; and the quote that a run is given."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from rich.console import Console

from headrace.cli.console import ErrorConsole, Signals, report_error
from headrace.cli.display import show, time_text
from headrace.cli.option import argument, option, read_toml, report_option
from headrace.cli.options import RetryArgs, RunArgs
from headrace.cli.words import masked, plain, table_of, toml_of
from headrace.core.errors import ConfigurationError, HeadraceError

if TYPE_CHECKING:
    from headrace.testing.simulation import Forecast

_MOST_SECS = 60.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def duration(text: str) -> float:
    """Seconds, given as ``90``, ``30m``, ``6h`` or ``2d``.

    Raises:
        ValueError: it is none.
    """
    found = re.fullmatch(r"(\d*\.?\d+)\s*([smhd]?)", str(text).strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds:
        raise ValueError(f"{text!r} is no time; give seconds, or 30m, 6h, 2d.")
    return seconds


@dataclass(frozen=True, kw_only=True)
class QuoteArgs(RunArgs):
    """Say what headrace run would take with the same options: time, memory, tokens and money, with intervals.

    A pilot runs a random sample of the rows, of all lengths, and forecasts the rest from its steady rate. Its
    predictions are dropped; with --cache its answers are kept, so that nothing is paid twice.

    Exit codes: 0 quoted, 1 the pilot failed, 2 a wrong argument or input, 130 interrupted.
    """

    command: ClassVar[str] = "quote"
    alternatives: list[str] | None = report_option(
        "Quote this as well: options of headrace run in one word, in place of the others. Repeatable.",
        "'--workers 2'",
        name="--alternative",
    )
    pilot: float = report_option(
        "How long all pilots together may take.", "SECONDS", default=_MOST_SECS, min=1, max=_MOST_SECS
    )
    deadline: float | None = report_option(
        "How long the run may take, as 30m, 6h or 2d: says how many machines.", "TIME", parser=duration
    )
    config_out: str | None = report_option(
        "Write the recommended options into this new file, for run --config.", "FILE"
    )
    as_json: bool = report_option(
        "Print the quote as one JSON object, for run --quote.", name="--json/--no-json", default=False
    )


def run_quote(args: QuoteArgs) -> int:
    """Quotes and prints; returns the exit code.

    Raises:
        ConfigurationError: an option or an input is wrong.
    """
    errors = ErrorConsole(stderr=True)
    if args.config_out is not None:
        _refuse_config_out(args, args.config_out)
    try:
        with Signals(), errors.status("reading the input") as status:
            from headrace.cli.pilots import Pilots  # noqa: PLC0415 - importing pyarrow takes a while

            pilots = Pilots(args, args.alternatives or (), args.pilot, args.deadline)
            found, recommended = pilots.quote(status.update)
    except HeadraceError as error:
        if isinstance(error, ConfigurationError):
            raise
        report_error(errors, str(error))
        return 1
    if args.config_out is not None:
        _write_config(replace(recommended, output=args.output), args.config_out)
    if args.as_json:
        typer.echo(json.dumps(found))
    else:
        show(Console(), list(_lines(found, args)))
    return 0


def _refuse_config_out(args: QuoteArgs, path: str) -> None:
    if os.path.lexists(path):
        raise ConfigurationError(f"--config-out: {path} is there already, and would be lost; name a new file.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise ConfigurationError(f"--config-out: there is no folder {os.path.dirname(path)!r}.")
    toml_of(plain(args), path)


def _write_config(recommended: RunArgs, path: str) -> None:
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(toml_of(recommended, path))
    except OSError as error:
        raise ConfigurationError(f"--config-out: cannot write {path}: {error.strerror or error}.") from error


def _lines(found: Mapping[str, Any], args: QuoteArgs) -> Iterator[tuple[str, str]]:
    yield "rows", f"{found['rows']:,}{'' if found['rows_are_exact'] else ' (estimated)'}"
    yield "time", _interval(found, "seconds", time_text)
    yield "  start", f"{time_text(found['start_seconds'])}, then {found['rows_per_second']:,.4g} rows/s"
    if found["machines"] is not None:
        yield "machines", f"{found['machines']:,} like this one for {time_text(args.deadline or 0)}"
    elif args.deadline is not None:
        yield "machines", f"none is enough for {time_text(args.deadline)}: {found['binds']} binds"
    yield "memory", f"{found['memory_bytes'] / 1e6:,.0f} MB"
    for name, label in (("tokens_in", "tokens in"), ("tokens_out", "tokens out"), ("money", "money")):
        if found[name] is not None:
            yield label, _interval(found, name, _amount)
    if found["dead_letters"]:
        yield "dead letters", f"{found['dead_letters']:.2%} of the rows"
    yield "what binds", found["binds"]
    if found["pilot_money"]:
        kept = "its answers are in the cache" if args.cache else "--cache FILE would keep its answers for the run"
        yield "the pilot", f"cost {_amount(found['pilot_money'])}; {kept}"
    for one in found["alternatives"]:
        yield "alternative", f"{one['alternative']}: {_alternative(one)}"
    yield "recommended", found["recommended"] or "these options"
    if args.config_out is not None:
        has_secrets = any(masked(pair) != pair for pair in (*(args.handler_args or ()), args.url or ""))
        yield "written", f"{args.config_out}{', without secrets' if has_secrets else ''}"


def _alternative(one: Mapping[str, Any]) -> str:
    if "error" in one:
        return str(one["error"])
    money = "" if one["money"] is None else f", money {_interval(one, 'money', _amount)}"
    other = "" if one["predicts_the_same"] else "; its predictions may differ (headrace diff)"
    return f"{_interval(one, 'seconds', time_text)}{money}{other}"


def _interval(found: Mapping[str, Any], name: str, text: Callable[[float], str]) -> str:
    if found[name] is None:
        return f"up to {text(found[f'{name}_high'])}"
    return f"{text(found[name])} ({text(found[f'{name}_low'])} to {text(found[f'{name}_high'])})"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1e4 else f"{value:,.4g}"


def take_quote(args: RunArgs | RetryArgs, path: str) -> tuple[RunArgs | RetryArgs, dict[str, Any]]:
    """The options of a run, with the budget of the quote in a file; and that quote, of the alternative that is run.

    Raises:
        ConfigurationError: the file holds none.
    """
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        entries = [found, *found["alternatives"]]
        options = table_of(plain(args)) if isinstance(args, RunArgs) else {}
        same = [one for one in entries if one.get("options") == options]
        if not same and isinstance(args, RunArgs) and "options" in found:
            report_error(ErrorConsole(stderr=True), f"--quote: {path} is of a run with other options.", "warning")
        found |= same[0] if same else {}
        money, *tokens = (found[f"{name}_high"] for name in ("money", "tokens_in", "tokens_out"))
        if wrong := [value for value in (money, *tokens) if value is not None and not 0 <= value < math.inf]:
            raise ValueError(f"it has {wrong[0]} for an amount.")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"--quote: {path} is not what headrace quote --json prints: {error}") from error
    if args.budget is None and args.budget_tokens is None:
        if money:
            args = replace(args, budget=money)
        elif None not in tokens and sum(tokens):
            args = replace(args, budget_tokens=math.ceil(sum(tokens)))
    return args, found


@dataclass(frozen=True, kw_only=True)
class SimulateArgs:
    """Predict what a run will take: hours, loads, batches, memory, refused requests, money, and what holds it back.

    The plan says how many rows there are, what models take, and on which machines. The policies of real runs decide
    about batches, models in memory and requests, under a clock that waits for nothing.

    Exit codes: 0 predicted, 2 a wrong plan, or one that does not fit into memory.
    """

    plan: str = argument("PLAN", "A TOML file; docs/scaling.md has an example, and all keys.")
    as_json: bool = option("Print one JSON object.", name="--json", default=False)


def run_simulate(args: SimulateArgs) -> int:
    """Predicts and prints; returns the exit code.

    Raises:
        ConfigurationError: the plan is wrong.
    """
    from headrace.testing.simulation import simulate  # noqa: PLC0415 - only for this

    found = simulate(read_toml(args.plan))
    if args.as_json:
        derived = {"rows_per_second": found.rows_per_second, "binds": found.binds}
        typer.echo(json.dumps({**asdict(found), **derived}))
    else:
        for line in _forecast_lines(found):
            typer.echo(line)
    return 0


def _forecast_lines(found: Forecast) -> Iterator[str]:
    from headrace.models.admission import format_bytes  # noqa: PLC0415 - as above

    yield f"rows        {found.rows:,} in {time_text(found.seconds)}: {found.rows_per_second:,.0f} a second"
    yield f"machines    {found.machines:,} with {found.workers:,} workers; {found.preempted:,} times one was preempted"
    yield f"held by     {found.binds}"
    yield f"time        {', '.join(f'{phase} {share:.1%}' for phase, share in found.shares.items())}"
    yield f"memory      {format_bytes(found.memory_bytes)} of each machine at most, models by {found.placement}"
    if found.cost is not None:
        yield f"cost        {found.cost:,.2f}"
    endpoints = [[name, f"{count:,}", f"{found.refused[name]:,}"] for name, count in found.requests.items()]
    for rows in (_models(found), [["endpoint", "answers", "refused"], *endpoints]):
        if len(rows) > 1:
            width = max(len(row[0]) for row in rows)
            yield ""
            yield from (f"{row[0]:<{width}}" + "".join(f"{one:>14}" for one in row[1:]) for row in rows)


def _models(found: Forecast) -> list[list[Any]]:
    head = ["model", "time", "loads", "evictions", "batches", "rows a batch"]
    rows = []
    for name in found.batches:
        counts = [f"{one.get(name, 0):,}" for one in (found.loads, found.evictions, found.batches)]
        share, size = found.model_shares.get(name, 0), found.batch_rows.get(name, 0)
        rows.append([name, f"{share:.1%}", *counts, f"{size:,.1f}"])
    return [head, *rows]

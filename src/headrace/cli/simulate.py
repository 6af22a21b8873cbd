"""``headrace simulate``: what a run will take, before there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.display import time_text
from headrace.cli.option import argument, option, read_toml

if TYPE_CHECKING:
    from headrace.testing.simulation import Forecast


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
        for line in _lines(found):
            typer.echo(line)
    return 0


def _lines(found: Forecast) -> Iterator[str]:
    from headrace.models.admission import format_bytes  # noqa: PLC0415 - as above

    yield f"rows        {found.rows:,} in {time_text(found.seconds)}: {found.rows_per_second:,.0f} a second"
    yield f"machines    {found.machines:,} with {found.workers:,} workers; {found.preempted:,} times one was preempted"
    yield f"held by     {found.binds}"
    yield f"time        {', '.join(f'{phase} {share:.1%}' for phase, share in found.shares.items())}"
    yield f"memory      {format_bytes(found.memory_bytes)} of each machine at most, models by {found.placement}"
    if found.cost is not None:
        yield f"cost        {found.cost:,.2f}"
    for title, rows in (("model", _models(found)), ("endpoint", _endpoints(found))):
        if len(rows) > 1:
            width = max(len(title), *(len(row[0]) for row in rows))
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


def _endpoints(found: Forecast) -> list[list[Any]]:
    rows = [[name, f"{number:,}", f"{found.refused[name]:,}"] for name, number in found.requests.items()]
    return [["endpoint", "answers", "refused"], *rows]

"""What a run may spend, from the command line's words; and what it spent, for the progress and the summary."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.core.budget import Budget, Price
from headrace.core.errors import ConfigurationError
from headrace.core.events import UsageReported
from headrace.metrics.totals import Totals, added

if TYPE_CHECKING:
    from headrace.cli.options import RetryArgs, RunArgs

_MOST_MODELS = 5


def budget_of(args: RunArgs | RetryArgs) -> Budget | None:
    """The budget that a command line gives; None if it gives none.

    Raises:
        ConfigurationError: an option is wrong, or what the budget pays for would be lost when it is spent.
    """
    if args.budget is None and args.budget_tokens is None and not args.prices:
        return None
    if args.budget is not None and not args.prices:
        raise ConfigurationError("--budget needs --price MODEL=INPUT,OUTPUT: Headrace knows no prices.")
    budget = Budget(args.budget, dict(map(_priced, args.prices or ())), args.budget_tokens)
    has_limit = args.budget is not None or args.budget_tokens is not None
    if has_limit and not args.resume and args.cache is None:
        raise ConfigurationError(
            "--budget and --budget-tokens go with --resume or --cache: without these, what was paid for is lost when "
            "the budget is spent."
        )
    return budget


def _priced(pair: str) -> tuple[str, Price]:
    model, equals, given = pair.rpartition("=")
    amounts = given.strip("[] ").split(",")
    try:
        if not (model and equals and len(amounts) in (2, 3)):
            raise ValueError(pair)
        return model, Price(*map(float, amounts))
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(
            f"--price takes MODEL=INPUT,OUTPUT or MODEL=INPUT,OUTPUT,REQUEST: what a million tokens of prompts and of "
            f"answers cost, and a request; not {pair!r}."
        ) from None


def tokens_used(totals: Totals) -> int:
    """Tokens of prompts and answers, of all models."""
    return sum(used.input_tokens + used.output_tokens for used in totals.usage.copy().values())


def cost_of(usage: Mapping[str, UsageReported]) -> float | None:
    """What all models cost together; None: nobody knows any price."""
    costs = [used.cost for used in usage.values() if used.cost is not None]
    return sum(costs) if costs else None


def progress_figures(totals: Totals, tokens_a_second: float) -> list[tuple[str, int]]:
    """What the progress says of usage, and how soon it leaves each out if the line is too short; empty: no usage."""
    cost = cost_of(totals.usage.copy())
    return [
        *([(f"{totals.cached:,} from the cache", 5)] if totals.cached else []),
        *([(f"{tokens_a_second:,.0f} tokens/s", 5)] if totals.usage else []),
        *([] if cost is None else [(f"cost {cost:,.2f}" if cost >= 1 else f"cost {cost:.2g}", 2)]),
    ]


def summary_lines(totals: Totals) -> Iterator[tuple[str, str]]:
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


def usage_facts(totals: Totals) -> dict[str, Any]:
    """Usage for programs: of each model, and the cost of all; None where a price is not known."""
    usage = totals.usage.copy()
    models = {
        model: {
            "requests": used.requests,
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "cost": used.cost,
        }
        for model, used in usage.items()
    }
    return {"usage": models, "cost": cost_of(usage)}


def _tokens(used: UsageReported) -> str:
    return f"{used.input_tokens:,} in, {used.output_tokens:,} out"


def _is_billed(used: UsageReported) -> bool:
    """Whether the requests went to somebody who may bill them: not to an engine on this machine."""
    return used.seconds is None

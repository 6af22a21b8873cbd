"""What a run may spend, from the command line's words; and what it spent, for the progress and the summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

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


def progress_figures(totals: Totals, tokens_a_second: float) -> list[str]:
    """What the progress says of usage; nothing if there is none."""
    cost = cost_of(totals.usage.copy())
    return [
        *([f"{totals.cached:,} from the cache"] if totals.cached else []),
        *([f"{tokens_a_second:,.0f} tokens/s"] if totals.usage else []),
        *([] if cost is None else [f"cost {cost:.4g}"]),
    ]


def summary_lines(totals: Totals, seconds: float) -> Iterator[tuple[str, str]]:
    """The lines of the summary about usage; none if there is none."""
    if totals.cached:
        yield "from the cache", f"{totals.cached:,}"
    if not totals.usage:
        return
    first, *others = totals.usage.values()
    everything = first
    for used in others:
        everything = added(everything, used)
    yield from _lines("", everything)
    if others:
        for model, used in sorted(totals.usage.items())[:_MOST_MODELS]:
            yield from _lines(f"  {model} ", used)
    yield "tokens/s", f"{tokens_used(totals) / seconds if seconds else 0:,.0f}"


def _lines(prefix: str, used: UsageReported) -> Iterator[tuple[str, str]]:
    yield f"{prefix}billed requests", f"{used.requests:,}"
    yield f"{prefix}tokens", f"{used.input_tokens:,} in, {used.output_tokens:,} out"
    if used.cost is not None:
        yield f"{prefix}cost", f"{used.cost:,.6g}"

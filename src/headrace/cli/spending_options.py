"""The options about requests that are paid for.

Annotations are objects here, not texts: typer would look for their names in the module of the class that inherits them.
"""

from dataclasses import dataclass
from typing import Annotated

from headrace.cli.option import RUN, option


@dataclass(frozen=True, kw_only=True)
class SpendingArgs:
    """Options of every command that may send requests."""

    cache: Annotated[
        str | None,
        option(
            "--cache",
            RUN,
            "A file of predictions that were made before: rows that are in it are not predicted again.",
            "PATH",
        ),
    ] = None
    budget: Annotated[
        float | None,
        option(
            "--budget",
            RUN,
            "What requests may cost, at the prices of --price, on each machine. Then the run stops; with --resume, or "
            "--cache, the same command goes on.",
            "AMOUNT",
        ),
    ] = None
    budget_tokens: Annotated[
        int | None, option("--budget-tokens", RUN, "The same in tokens, of prompts and answers together.", "COUNT")
    ] = None
    prices: Annotated[
        list[str] | None,
        option(
            "--price",
            RUN,
            "What a million tokens of prompts, and of answers, cost of a model, and perhaps a request; * is every "
            "other model. Repeatable.",
            "MODEL=IN,OUT[,REQUEST]",
        ),
    ] = None

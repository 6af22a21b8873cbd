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
            "A file of earlier predictions: rows that are in it are not predicted again.",
            "PATH",
        ),
    ] = None
    budget: Annotated[
        float | None,
        option(
            "--budget",
            RUN,
            "Stops the run when requests on this machine have cost this much, at the prices of --price. The same "
            "command continues, with --resume or --cache.",
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
            "A model's price for a million input tokens, a million output tokens and, if it has one, a request; * is "
            "every other model. Repeatable.",
            "MODEL=IN,OUT[,REQUEST]",
        ),
    ] = None

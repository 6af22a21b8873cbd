"""What requests may cost: the user's prices, and a limit after which nothing more is requested."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from headrace.core.errors import ConfigurationError

OTHERS = "*"
"""In prices: every model that has none of its own."""


@dataclass(frozen=True)
class Price:
    """What a model costs, in any one currency."""

    input: float = 0.0
    """For a million tokens of prompts."""
    output: float = 0.0
    """For a million tokens of answers."""
    request: float = 0.0
    """For each request."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if not _is_amount(getattr(self, one.name)):
                raise ConfigurationError(
                    f"Price: {one.name} must be a number of at least 0, not {getattr(self, one.name)!r:.80}."
                )


@dataclass(frozen=True)
class Budget:
    """What a run may spend on each machine, by all its worker processes; after that it stops, with a BudgetError.

    Counts what handlers report (``headrace.report_usage``), whatever became of the requests. Requests that are in
    flight when it is spent are finished, and may exceed it.
    """

    limit: float | None = None
    """In the currency of the prices; None: cost is counted, and not limited."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By the model's name, as its handler reports it; ``"*"``: every other one."""
    max_tokens: int | None = None
    """Tokens of prompts and answers together; None: no limit."""

    def __post_init__(self) -> None:
        if not isinstance(self.prices, Mapping) or not all(isinstance(one, Price) for one in self.prices.values()):
            raise ConfigurationError(
                f"prices map names of models to prices, such as {{'model-x': Price(input=0.15, output=0.60)}}, not "
                f"{self.prices!r:.80}."
            )
        if self.limit is not None and not (_is_amount(self.limit) and self.limit > 0):
            raise ConfigurationError(f"the budget's limit must be a positive number, not {self.limit!r:.80}.")
        if self.limit is not None and not self.prices:
            raise ConfigurationError("a budget with a limit needs prices: Headrace knows none.")
        tokens = self.max_tokens
        if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
            raise ConfigurationError(f"max_tokens must be an int of at least 1, not {tokens!r:.80}.")

    def price_of(self, model: str) -> Price | None:
        """The price of a model; None: it has none."""
        return self.prices.get(model, self.prices.get(OTHERS))

    @property
    def has_limit(self) -> bool:
        """Whether it ends a run at all."""
        return self.limit is not None or self.max_tokens is not None


class Spent(NamedTuple):
    """What was used of a budget."""

    requests: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(*map(sum, zip(self, other, strict=True)))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf

"""Adds up what this process's requests of one transform cost, and says when the budget is spent."""

from __future__ import annotations

import threading
from dataclasses import replace

from headrace.core.budget import Budget
from headrace.core.errors import BudgetError
from headrace.core.events import UsageReported
from headrace.runtime.spec import SessionSpec

_MILLION = 1e6


class UsageMeter:
    """What was used of each model, at the user's prices. Thread-safe.

    Args:
        budget: the prices, and the limits.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._requests = 0
        self._tokens = 0
        self._cost = 0.0
        self._stop: str | None = None

    def priced(self, used: UsageReported) -> UsageReported:
        """Counts what was used; returns it with its cost, if the model has a price."""
        price = self._budget.price_of(used.model)
        cost = None
        if price is not None:
            tokens = used.input_tokens * price.input + used.output_tokens * price.output
            cost = tokens / _MILLION + used.requests * price.request
        with self._lock:
            self._requests += used.requests
            self._tokens += used.input_tokens + used.output_tokens
            self._cost += cost or 0.0
            self._stop = self._stop or self._reason(used.model, has_price=price is not None)
        return replace(used, cost=cost)

    def expect_reports(self, handler: str) -> None:
        """Stops if a request was answered, and none has ever been reported: the budget would never be spent."""
        with self._lock:
            if not self._requests and self._stop is None and self._has_limit:
                self._stop = (
                    f"the budget cannot be kept: {handler} does not report what its requests use. Call "
                    "headrace.report_usage(model, input_tokens=..., output_tokens=...) in it, or leave the limit out"
                )

    @property
    def error(self) -> BudgetError | None:
        """Why nothing more is to be requested; None: it may be."""
        return None if self._stop is None else BudgetError(f"{self._stop}.")

    @property
    def _has_limit(self) -> bool:
        return self._budget.limit is not None or self._budget.max_tokens is not None

    def _reason(self, model: str, *, has_price: bool) -> str | None:
        limit, most = self._budget.limit, self._budget.max_tokens
        if limit is not None and not has_price:
            return f"the budget cannot be kept: it has no price for {model!r}; add it to the prices"
        spent = f"{self._requests:,} requests with {self._tokens:,} tokens cost {self._cost:.6g}"
        if limit is not None and self._cost >= limit:
            return f"the budget of {limit:g} is spent: {spent}"
        if most is not None and self._tokens >= most:
            return f"the budget of {most:,} tokens is spent: {self._requests:,} requests took {self._tokens:,}"
        return None


_METERS: dict[str, UsageMeter] = {}
"""By the budget's name, for as long as the process lives: a bundle that is retried must not begin a new budget."""
_lock = threading.Lock()


def meter_of(spec: SessionSpec) -> UsageMeter | None:
    """The meter of the spec's budget in this process; None if there is no budget."""
    if spec.budget is None:
        return None
    budget, name = spec.budget
    with _lock:
        return _METERS.setdefault(name, UsageMeter(budget))

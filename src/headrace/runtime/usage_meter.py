"""Adds up what this machine's requests of one transform cost, and says when the budget is spent."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headrace.core.config import Budget, Spent
from headrace.core.errors import BudgetError, ConfigurationError
from headrace.core.events import UsageReported
from headrace.hosts.system import why_no_hosts
from headrace.runtime.spec import BudgetSpec, SessionSpec

if TYPE_CHECKING:
    from headrace.machine.shared_file import BudgetFile

_MILLION = 1e6
_KEPT = 64
"""How many budgets a process remembers that nobody may need any more."""

ValueT = TypeVar("ValueT")

_ALONE = "Each worker process of this machine may spend the whole budget: %s"

_LOGGER = logging.getLogger(__name__)


class UsageMeter:
    """What was used of each model, at the user's prices. Thread-safe.

    Args:
        file: in which the machine's processes count together; None: this one counts for itself.
    """

    def __init__(self, budget: Budget, file: BudgetFile | None = None) -> None:
        self._budget = budget
        self.max_cost_per_row = budget.max_cost_per_row
        """What the requests for an element may cost; None: it has no limit."""
        self._file = file
        self._lock = threading.Lock()
        self._own = Spent()
        """By this process since it began."""
        self.awaits_reports = budget.has_limit
        """Whether no request has reported what it used, without which the limit could not be kept."""
        self.may_be_over = budget.has_limit
        """Whether there may be an ``error``."""
        self._stop: str | None = None
        self._deadline = math.inf
        self._counts = budget.has_limit or bool(budget.prices)
        self._end_use = None if file is None else weakref.finalize(self, file.leave)

    def priced(self, used: UsageReported) -> UsageReported:
        """Counts what was used; returns it with its cost, if the model has a price."""
        if not self._counts:
            return used
        price = self._budget.price_of(used.model)
        cost = None
        if price is not None:
            tokens = used.input_tokens * price.input + used.output_tokens * price.output
            if price.cached is not None:
                tokens += used.cached_tokens * (price.cached - price.input)
            cost = tokens / _MILLION + used.requests * price.request
        spent = Spent(used.requests, used.input_tokens + used.output_tokens, cost or 0.0)
        with self._lock:
            self.awaits_reports = False
            self._own = self._own.plus(spent)
            self._with_file(lambda file: file.add(spent))
            self._stop = self._stop or self._reason(used.model, has_price=price is not None)
        return replace(used, cost=cost)

    def expect_reports(self, handler: str) -> None:
        """Stops if a request was answered, and none has ever been reported: the budget would never be spent."""
        with self._lock:
            if self.awaits_reports and self._stop is None:
                self._stop = (
                    f"the budget cannot be kept: {handler} does not report what its requests use. Call "
                    "headrace.report_usage(model, input_tokens=..., output_tokens=...) in it, or leave the limit out"
                )

    def stop(self, seconds: float) -> None:
        """Lets nothing more be requested; what is in flight has so many seconds to be answered."""
        self._deadline = time.monotonic() + seconds
        self._stop, self.may_be_over = self._stop or "interrupted", True

    @property
    def is_late(self) -> bool:
        """Whether what is in flight is not waited for any longer."""
        return time.monotonic() > self._deadline

    @property
    def error(self) -> BudgetError | None:
        """Why nothing more is to be requested; None: it may be."""
        if self._stop is None and self._file is not None:
            with self._lock:
                if self._stop is None and self._with_file(lambda file: file.is_spent):
                    self._stop = self._spent_reason()
        return None if self._stop is None else BudgetError(f"{self._stop}.")

    def close(self) -> None:
        """Leaves the machine's other processes; what is counted from now on is this one's own."""
        with self._lock:
            self._file = None
            if self._end_use is not None:
                self._end_use()

    def disown(self) -> None:
        """Counts for itself, and leaves the file as it is: this is a forked child, and the file its parent's."""
        self._file = None
        if self._end_use is not None:
            self._end_use.detach()

    def _reason(self, model: str, *, has_price: bool) -> str | None:
        if self._budget.needs_prices and not has_price:
            return f"the budget cannot be kept: it has no price for {model!r}; add it to the prices"
        reason = self._spent_reason()
        if reason is not None:
            self._with_file(lambda file: file.mark_spent())
        return reason

    def _spent_reason(self) -> str | None:
        limit, most = self._budget.limit, self._budget.max_tokens
        requests, tokens, cost = self._with_file(lambda file: file.total()) or self._own
        if limit is not None and cost >= limit:
            return (
                f"the budget of {limit:g} is spent: {requests:,.0f} requests with {tokens:,.0f} tokens cost {cost:.6g}"
            )
        if most is not None and tokens >= most:
            return f"the budget of {most:,} tokens is spent: {requests:,.0f} requests took {tokens:,.0f}"
        return None

    def _with_file(self, use: Callable[[BudgetFile], ValueT]) -> ValueT | None:
        """What ``use`` returns; None if this process counts for itself, perhaps from now on."""
        if self._file is None:
            return None
        try:
            return use(self._file)
        except OSError as error:
            self._file = None
            _LOGGER.warning(_ALONE, error)
            return None


_meters: dict[str, UsageMeter] = {}
"""The latest, by the budget's name: they outlive their sessions, since a bundle may be retried."""
_lock = threading.Lock()


def meter_of(spec: SessionSpec) -> UsageMeter | None:
    """The meter of the spec's budget in this process; None if there is no budget."""
    if spec.budget is None:
        return None
    budget, name = spec.budget
    with _lock:
        if name not in _meters:
            _meters[name] = UsageMeter(budget, _file_of(budget, name))
            while len(_meters) > _KEPT:
                del _meters[next(iter(_meters))]
        return _meters[name]


def stoppable(spec: SessionSpec) -> SessionSpec:
    """The spec, for which ``stop_requests`` has an effect if its models send requests."""
    needs_one = spec.sends_requests and spec.budget is None
    return replace(spec, budget=BudgetSpec(Budget(), spec.origin)) if needs_one else spec


def stop_requests(spec: SessionSpec, seconds: float) -> None:
    """Ends a ``stoppable`` spec's bundles in this process as a spent budget does, within so many seconds."""
    with _lock:
        meter = None if spec.budget is None else _meters.get(spec.budget.name)
    if meter is not None:
        meter.stop(seconds)


def end_budget(spec: SessionSpec) -> None:
    """Forgets what was spent of the spec's budget in this process: nobody will ask for it again."""
    with _lock:
        meter = None if spec.budget is None else _meters.pop(spec.budget.name, None)
        if meter is not None:
            meter.close()


def _file_of(budget: Budget, name: str) -> BudgetFile | None:
    if not budget.has_limit or why_no_hosts() is not None:
        return None
    from headrace.machine.shared_file import open_budget_file  # noqa: PLC0415 - the system has what this module needs

    try:
        return open_budget_file(name)
    except (OSError, ConfigurationError) as error:
        _LOGGER.warning(_ALONE, error)
        return None


def _forget() -> None:
    """In a forked child, which has none of its parent's locks."""
    global _lock  # noqa: PLW0603 - another thread of the parent's may have it
    _lock = threading.Lock()
    for meter in _meters.values():
        meter.disown()
    _meters.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget)

"""How a handler reports what its requests used: tokens, by model."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import index

from headrace.core.errors import ConfigurationError
from headrace.core.events import UsageReported

UsageSink = Callable[[UsageReported], None]
"""Receives reports on the thread that the handler runs on; must neither block nor raise."""

_sink: contextvars.ContextVar[UsageSink | None] = contextvars.ContextVar("headrace_usage_sink", default=None)
_is_paid: contextvars.ContextVar[bool] = contextvars.ContextVar("headrace_usage_is_paid", default=False)


def report_usage(model: str, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
    """Counts what one request used; a handler calls it in ``request`` or ``run_inference``, plain or ``async``.

    Call it once for each request that the provider bills, whatever comes of it: before an error about the answer is
    raised, too. What a run has used is shown in its metrics and in the summary of ``headrace run``. Outside a request
    it does nothing.

    Args:
        model: the name by which the user knows the model.
        input_tokens: tokens of the prompt.
        output_tokens: tokens of the answer, including hidden ones.

    Raises:
        ConfigurationError: the model is not named, or a number of tokens is negative or not an integer.
    """
    report_used(_used(model, input_tokens, output_tokens))


def report_generation(
    model: str, *, input_tokens: int, output_tokens: int, seconds: float, first_token_secs: float | None = None
) -> None:
    """As ``report_usage``, for a language model's engine in this process, which knows how long a request took, too.

    Args:
        model: the name by which the user knows the model.
        input_tokens: tokens of the prompt.
        output_tokens: tokens of the answer.
        seconds: from when the engine got the request to its last token.
        first_token_secs: from when the engine got it to its first token; None: not known.

    Raises:
        ConfigurationError: as ``report_usage``; or a time is no number of seconds.
    """
    used = _used(model, input_tokens, output_tokens)
    times = {"seconds": seconds} | ({} if first_token_secs is None else {"first_token_secs": first_token_secs})
    for name, given in times.items():
        if not isinstance(given, int | float) or not 0 <= given < math.inf:
            raise ConfigurationError(f"report_generation: {name} must be a number of at least 0, not {given!r:.80}.")
    report_used(replace(used, seconds=seconds, first_token_secs=first_token_secs))


def _used(model: str, input_tokens: int, output_tokens: int) -> UsageReported:
    if not isinstance(model, str) or not model:
        raise ConfigurationError(f"report_usage needs the model's name, not {model!r:.80}.")
    return UsageReported(model, _tokens("input_tokens", input_tokens), _tokens("output_tokens", output_tokens))


def report_used(used: UsageReported) -> None:
    """Hands on a report, such as one that comes from another process."""
    sink = _sink.get()
    if sink is not None:
        sink(replace(used, requests=0, input_tokens=0, output_tokens=0) if _is_paid.get() else used)


def _tokens(name: str, given: int) -> int:
    try:
        tokens = index(given)
    except TypeError:
        tokens = -1
    if tokens < 0:
        raise ConfigurationError(f"report_usage: {name} must be an int of at least 0, not {given!r:.80}.")
    return tokens


@contextmanager
def usage_to(sink: UsageSink) -> Iterator[None]:
    """A context within which reports go to ``sink``."""
    token = _sink.set(sink)
    try:
        yield
    finally:
        _sink.reset(token)


def context_reporting_to(sink: UsageSink) -> contextvars.Context:
    """A copy of the current context variables, for a task or a thread whose reports are to go to ``sink``."""
    context = contextvars.copy_context()
    context.run(_sink.set, sink)
    return context


def usage_was_paid_before(is_paid: bool) -> None:
    """From now on, reports in the current context are of answers that an earlier request paid for: they count nothing.

    Args:
        is_paid: False: of answers that cost something, as always.
    """
    _is_paid.set(is_paid)


def usage_goes_to_also(sink: UsageSink) -> None:
    """From now on, reports in the current context go to ``sink`` as well."""
    before = _sink.get()

    def both(used: UsageReported) -> None:
        sink(used)
        if before is not None:
            before(used)

    _sink.set(both)

"""What the error of a request says about its endpoint, whether to send it again, and what the log says of it."""

from __future__ import annotations

import logging
import math
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.core.answer import Skip
from headrace.core.errors import (
    ConfigurationError,
    EndpointError,
    PredictionCountError,
    as_type_name,
    attribute,
    causes,
)
from headrace.core.events import UsageReported
from headrace.core.remote import ElementFailure, ElementRetry
from headrace.core.request_context import Allowance, allowances, lower_case, seconds_from_now
from headrace.failures.outages import Verdict
from headrace.failures.retry import is_lost, statuses_of

_LOGGER = logging.getLogger(__name__)

_FOR_ALL = {401, 403, 404, "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND"}
"""A wrong key, URL or model: no request will succeed."""
_PASSING = {408, 409, 425, 429}
"""Those of the statuses 400 to 499 that may pass."""
_FINAL = {
    *({*range(400, 500)} - _PASSING),
    *("INVALID_ARGUMENT", "UNIMPLEMENTED", "OUT_OF_RANGE", "FAILED_PRECONDITION", "ALREADY_EXISTS"),
    *_FOR_ALL,
}
_VERDICTS = {
    Verdict.REFUSED: {429, "RESOURCE_EXHAUSTED"},
    Verdict.UNAVAILABLE: {503, 529, "UNAVAILABLE"},  # 529 is what some endpoints answer while they are overloaded
    Verdict.FAILED: {*range(500, 600), "ABORTED", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN"},
    Verdict.NOTHING: _FOR_ALL,
    Verdict.DECLINED: _FINAL | _PASSING,
}
"""By the status of an error: the first that has it."""
_NOT_CONNECTED = (ConnectionRefusedError, socket.gaierror)
_UNTRUSTED = {"CERTIFICATE_VERIFY_FAILED", "RECORD_LAYER_FAILURE", "WRONG_VERSION_NUMBER"}
"""Reasons of errors of TLS: a certificate that is not trusted; a server that speaks no TLS."""
_NEVER_SECS = 1e9
"""A longer delay is as good as this one."""
_WORTH_SAYING_SECS = 10.0


class Judgement(NamedTuple):
    """What to do about a request that failed."""

    verdict: Verdict
    """What the error says about the endpoint."""
    retries: bool
    """Whether to send the request again."""
    delay_secs: float
    """How long the endpoint asked to wait; 0: it did not."""

    def while_down(self) -> Judgement:
        """The same while the endpoint is down: a failure is not the request's own."""
        return self._replace(verdict=Verdict.UNAVAILABLE) if self.verdict is Verdict.FAILED else self

    def within(self, longest_secs: float) -> Judgement:
        """The same, unless the endpoint asks to wait for longer: then the request is given up."""
        return self if self.delay_secs <= longest_secs else self._replace(retries=False, delay_secs=0.0)

    @property
    def waits(self) -> bool:
        """Whether the request has to wait for the endpoint, which spends no retry."""
        return self.retries and self.verdict in (Verdict.REFUSED, Verdict.UNAVAILABLE)


def judge(error: BaseException, retry_filter: Callable[[Exception], bool]) -> Judgement:
    """Judges the error of a request. A failure that is not to be retried says nothing about the endpoint."""
    retries = isinstance(error, Exception) and not is_final(error) and _asked(retry_filter, error)
    verdict = verdict_of(error)
    verdict = Verdict.NOTHING if verdict is Verdict.FAILED and not retries else verdict
    return Judgement(verdict, retries, retry_after(error))


def judge_element(answer: ElementRetry) -> Judgement:
    """Judges the answer for an element that is to be requested again."""
    verdict = verdict_of(answer.error)
    given = answer.delay_secs
    delay = retry_after(answer.error) if given is None else max(0.0, min(given, _NEVER_SECS))
    return Judgement(verdict, True, delay)


def _asked(retry_filter: Callable[[Exception], bool], error: Exception) -> bool:
    try:
        return bool(retry_filter(error))
    except Exception:
        return False  # the request's own error is the one to report


def verdict_of(error: BaseException) -> Verdict:
    """What the error says about the endpoint: by its status, or else by what led to it.

    LiteLLM gives errors of connections a status, 500 or 408: these say less than that a connection was lost.
    """
    statuses = statuses_of(error)
    found = next((verdict for verdict, of_verdict in _VERDICTS.items() if statuses & of_verdict), Verdict.NOTHING)
    if found in (Verdict.REFUSED, Verdict.UNAVAILABLE) or statuses & _FINAL:
        return found
    if is_unreachable(error):
        return Verdict.UNAVAILABLE
    return Verdict.FAILED if any(map(is_lost, causes(error, suppressed=True))) else found


def is_unreachable(error: BaseException) -> bool:
    """Whether there is no such host, or nothing that listens."""
    return any(isinstance(link, _NOT_CONNECTED) for link in causes(error, suppressed=True))


def is_final(error: BaseException) -> bool:
    """Whether the same request would fail again: the endpoint says so, the handler is at fault, or it cannot be sent.

    A UnicodeEncodeError is of a text with half of a surrogate pair, which no encoding has.
    """
    of_no_try = PredictionCountError | ConfigurationError | EndpointError | UnicodeEncodeError
    return isinstance(error, of_no_try) or _is_untrusted(error) or bool(statuses_of(error) & _FINAL)


def concerns_all(error: BaseException) -> bool:
    """Whether no other request would succeed either: a wrong key, URL or model, or a certificate not to be trusted."""
    return bool(statuses_of(error) & _FOR_ALL) or _is_untrusted(error)


def _is_untrusted(error: BaseException) -> bool:
    links = [link for link in causes(error, suppressed=True) if isinstance(link, ssl.SSLError)]
    return any(attribute(link, "reason") in _UNTRUSTED for link in links)  # aiohttp's has none, but its cause has


def retry_after(error: BaseException) -> float:
    """How long the endpoint asked to wait, in seconds, from the headers of its answer; 0: it did not.

    Without Retry-After, that is until there is something left of a rate limit that is used up.
    """
    used_up = 0.0
    for headers in headers_of(error):
        for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
            if name in headers:
                return min(unit * (seconds_from_now(headers[name]) or 0.0), _NEVER_SECS)
        used_up = max((one.wait(1) for one in allowances(headers)), default=used_up)
    own = attribute(error, "retry_after")
    return float(min(own, _NEVER_SECS)) if isinstance(own, int | float) and 0 < own < math.inf else used_up


def headers_of(error: BaseException) -> Iterator[dict[str, str]]:
    """The headers of the answer that an error holds, by their names in lower case."""
    for headers in (attribute(attribute(error, "response"), "headers"), attribute(error, "headers")):
        with suppress(Exception):  # whatever a client has under that name
            yield lower_case(headers or {})


class EndpointRecord:
    """What an endpoint has said in the life of this process: whether all requests to it are in vain."""

    def __init__(self) -> None:
        self.has_answered = False
        """Whether it has ever done the work of a request."""
        self._refused: set[object] = set()
        """Requests in a row that were refused as all may be: at most two."""

    def error_of_all(
        self, error: BaseException, key: Callable[[], object], name: str, *, waited_secs: float | None, is_caught: bool
    ) -> EndpointError | None:
        """Says that no request would succeed, unless one has; None: others may, or nobody knows yet.

        Two different requests that are refused in a row show that all are: ``key`` returns what tells this one from
        others, which may take time; one is enough if its error is not caught, so that there would be no other. That
        nobody is there shows when one has waited for as long as it may, in seconds.
        """
        if self.has_answered:
            return None
        found, said = None, f"{as_type_name(error)}: {error}"
        if concerns_all(error):
            if len(self._refused) < 2:
                self._refused.add(key())
            if len(self._refused) == 2 or not is_caught or _is_untrusted(error):
                found = EndpointError(name, said)
        elif verdict_of(error) is Verdict.DECLINED:
            self._refused.clear()
        elif waited_secs is not None and is_unreachable(error):
            cure = "Check the URL, or wait for longer with RetryConfig(timeout_secs=...)."
            found = EndpointError(f"{name}: nobody has answered for {waited_secs:g} s: {said}. {cure}")
        if found is not None:
            found.__cause__ = error
        return found


class EndpointLog:
    """Warns of each outage once, of each long wait once, and once of tokens that are not reported."""

    def __init__(self, caller: str) -> None:
        self._caller = caller
        self._has_missed_tokens = False
        self._waits_until = -math.inf
        self.named_until = -math.inf
        """Until when the endpoint asked to wait as its outage began."""
        self.last_error: BaseException | None = None
        """That of the request that was over last; None: it was answered."""
        self.is_down = False
        """Whether the last word was that the endpoint is down."""
        self.asks_too_much = False
        """Whether what it refused last would have had to wait for longer than requests do."""

    def note(self, *, is_down: bool) -> None:
        """Takes down whether the endpoint is down."""
        if is_down and not self.is_down:
            error = self.last_error
            why = "" if error is None else f" ({as_type_name(error)}: {error})"
            _LOGGER.warning("%s: the endpoint is down%s. Requests wait until it answers.", self._caller, why)
        elif self.is_down and not is_down:
            _LOGGER.warning("%s: the endpoint answers again.", self._caller)
        self.is_down = is_down

    def note_delay(self, now: float, secs: float, longest_secs: float, error: BaseException) -> None:
        """Takes down how long the endpoint asks to wait, and how long requests do at most."""
        self.asks_too_much = secs > longest_secs
        if secs < _WORTH_SAYING_SECS or now < self._waits_until:
            return
        self._waits_until = now + min(secs, longest_secs)
        what = "such requests wait"
        if secs > longest_secs:
            what = f"such requests are given up: RetryConfig(max_retry_after_secs={longest_secs:g}) is less"
        said = f"{as_type_name(error)}: {error}"
        _LOGGER.warning("%s: the endpoint asks to wait for %.0f s (%s); %s.", self._caller, secs, said, what)

    def miss_tokens(self, predictions: Iterable[Any]) -> None:
        """An answer of which no tokens were reported, although they are limited; one without predictions has none."""
        if self._has_missed_tokens or all(isinstance(one, Skip | ElementFailure) for one in predictions):
            return
        self._has_missed_tokens = True
        _LOGGER.warning(
            "%s does not report what requests use, so tokens_per_minute has no effect: call headrace.report_usage in "
            "it.",
            self._caller,
        )


@dataclass(eq=False)
class RequestReport:
    """What a handler has reported during one request."""

    tokens: int = 0
    used: list[UsageReported] = field(default_factory=list)
    allowances: list[Allowance] = field(default_factory=list)

    def add_headers_of(self, error: BaseException) -> None:
        """Adds the headers of the answer that the error holds."""
        for headers in headers_of(error):
            self.allowances += allowances(headers)

    def note_usage(self, used: UsageReported) -> None:
        """Takes a report of usage."""
        self.tokens += used.input_tokens + used.output_tokens
        self.used.append(used)

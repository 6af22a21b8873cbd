"""The contract of a handler whose model is behind a remote endpoint, and what it may answer for single elements."""

from __future__ import annotations

import inspect
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from headrace.core.clock import backoff
from headrace.core.errors import ConfigurationError, RateLimitExceeded
from headrace.core.event_loop import result_of
from headrace.core.handler import ExampleT, ModelHandler, ModelT, PredictionT

HOW_TO_SEND = {
    *("namespace", "num_retries", "throttle_delay_secs", "retry_filter", "window_ms", "bucket_ms", "overload_ratio"),
    *("rate_limiter", "requests_per_minute", "tokens_per_minute", "max_concurrent"),
}
"""Attributes of remote handlers that say nothing about where requests go."""


@dataclass(frozen=True)
class ElementFailure:
    """Stands in the place of a prediction: this example failed for good, and the others did not."""

    error: BaseException
    """What its dead letter is to say; raised where failures are."""

    def __post_init__(self) -> None:
        _refuse_no_error(self, self.error)


@dataclass(frozen=True)
class ElementRetry:
    """Stands in the place of a prediction: this example failed for now, and is to be requested again."""

    error: BaseException
    """What its dead letter is to say if no retry succeeds."""
    delay_secs: float | None = None
    """How long the endpoint asked to wait, in seconds; None: it did not say."""

    def __post_init__(self) -> None:
        _refuse_no_error(self, self.error)
        secs = self.delay_secs
        if secs is not None and (not isinstance(secs, int | float) or secs != secs):  # noqa: PLR0124 - not a number
            raise ConfigurationError(f"ElementRetry: delay_secs must be a number of seconds, not {secs!r:.80}.")


def _refuse_no_error(answer: ElementFailure | ElementRetry, error: Any) -> None:
    if not isinstance(error, BaseException):
        name = type(answer).__qualname__
        raise ConfigurationError(f"{name} needs an exception, not {error!r:.80}; write {name}(ValueError('...')).")


def pause_before_retry(failed: int, first: float = 1.0, longest: float = 20.0) -> float:
    """Seconds to wait after the ``failed``-th failure: a random part of the back-off."""
    return random.random() * backoff(failed, first, longest)  # noqa: S311 - jitter keeps no secret


def always_retry(_: Exception) -> bool:
    """The default ``retry_filter``: retries after every exception."""
    return True


class RemoteModelHandler(ABC, ModelHandler[ExampleT, PredictionT, ModelT]):
    """Calls a model at a remote endpoint; a subclass implements ``create_client`` and ``request``.

    ``RunInference`` and ``predict`` keep many requests in flight, as many and as fast as the endpoint's answers show
    it can take (see ``docs/remote.md``). A request that the endpoint refuses for now (HTTP 429), or cannot take at
    all (503, connection refused), is repeated when it has recovered, for up to ``RetryConfig.timeout_secs``, or three
    times that after 429; that spends no retries. Other failures spend one each, unless several requests fail in a row
    (500, lost connections): then the endpoint is down. A status that repeating does not change (400, 401, 404, ...) is
    not retried.

    Either method may be ``async def``. ``request`` then runs in an event loop, else on threads, several at a time: the
    client and the handler must be safe for that.

    Args:
        namespace: of the throttling metric and the log.
        num_retries: how often to retry a request that failed by itself.
        throttle_delay_secs: not used; how long to wait follows from the endpoint's answers.
        retry_filter: whether to retry a request that raised this exception.
        window_ms: not used, like ``bucket_ms`` and ``overload_ratio``, for the same reason.
        bucket_ms: not used.
        overload_ratio: not used.
        rate_limiter: an object with ``allow(hits_added)``, called before each request, on several threads at a time. If
            it returns False, the request fails with RateLimitExceeded, and is retried as after other failures.
        requests_per_minute: no more leave from all processes of a machine, spread evenly; None: no such limit.
        tokens_per_minute: as many as the handler reports with ``headrace.report_usage``, from all processes of a
            machine; None: no such limit.
        options: those of ``headrace.ModelHandler``, such as ``max_batch_size`` and ``env_vars``.
    """

    max_concurrent: int | None = None
    """How many requests may be in flight, for handlers that know; None: found out from the endpoint's answers."""
    gen_ai: ClassVar[tuple[str, str]] = ("", "")
    """What a generative model is asked, and whose API it has, for traces and metrics: ``("chat", "openai")``.

    In the words of OpenTelemetry's ``gen_ai.operation.name`` and ``gen_ai.provider.name``.
    """

    def __init__(
        self,
        namespace: str = "",
        num_retries: int = 5,
        throttle_delay_secs: int = 5,
        retry_filter: Callable[[Exception], bool] = always_retry,
        *,
        window_ms: int = 1000,
        bucket_ms: int = 1000,
        overload_ratio: float = 2,
        rate_limiter: Any = None,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if self.model_copies() > 1:
            raise ConfigurationError(
                f"{type(self).__qualname__} has its model behind an endpoint: leave out model_copies."
            )
        if not isinstance(num_retries, int) or num_retries < 0:
            raise ConfigurationError(f"num_retries must be an int, at least 0, not {num_retries!r}.")
        if not callable(retry_filter):
            raise ConfigurationError(f"retry_filter must be a function of an exception, not {retry_filter!r}.")
        if rate_limiter is not None and not callable(getattr(rate_limiter, "allow", None)):
            raise ConfigurationError(f"rate_limiter must have a method allow(hits_added), unlike {rate_limiter!r}.")
        self.namespace = namespace
        self.num_retries = num_retries
        self.throttle_delay_secs = throttle_delay_secs
        self.retry_filter = retry_filter
        self.window_ms = window_ms
        self.bucket_ms = bucket_ms
        self.overload_ratio = overload_ratio
        self.rate_limiter = rate_limiter
        self.requests_per_minute = _checked_rate("requests_per_minute", requests_per_minute)
        self.tokens_per_minute = _checked_rate("tokens_per_minute", tokens_per_minute)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method, instead in (("load_model", "create_client"), ("run_inference", "request")):
            if getattr(cls, method) is not getattr(RemoteModelHandler, method):
                raise TypeError(f"Cannot override RemoteModelHandler.{method}, implement {instead} instead.")

    def quota_name(self) -> str | None:
        """Names the quota that requests count against: handlers with the same name share one limit on a machine.

        None, the default: those of the same class with the same attributes, such as a URL and a model, share one.
        """
        return None

    @abstractmethod
    def create_client(self) -> ModelT | Awaitable[ModelT]:
        """Makes the client that sends requests; may be ``async def``, and then runs where requests do."""

    @abstractmethod
    def request(
        self, batch: Sequence[ExampleT], model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionT] | Awaitable[Iterable[PredictionT]]:
        """Sends one request for a batch; may be ``async def``.

        Args:
            batch: at least one example.
            model: the client.
            inference_args: extra arguments, given to ``RunInference``.

        Returns:
            One prediction for each example, in order; in its place ``ElementFailure``, ``ElementRetry`` or ``SKIP``.

        Raises:
            Exception: the request failed. Headrace reads the status and the Retry-After header from the exceptions of
                the usual HTTP and gRPC clients.
        """

    def load_model(self) -> ModelT:
        """Returns the client, or an awaitable of it."""
        return self.create_client()  # type: ignore[return-value]

    def run_inference(
        self, batch: Sequence[ExampleT], model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionT]:
        """Sends one request and waits for the answer; retries as Beam does. The transforms do not call it.

        Raises:
            RateLimitExceeded: the rate limiter refused the request, and its retries.
            Exception: whatever ``request`` raises, after ``num_retries`` retries; the error of an element's answer.
        """
        for failed in count(1):
            try:
                self.ask_rate_limiter(len(batch))
                answer: Any = self.request(batch, model, inference_args)
                if inspect.isawaitable(answer):
                    answer = result_of(answer)
                predictions = list(answer)
                failure = _first_error(predictions, ElementFailure)
                if failure is None:
                    if (retry := _first_error(predictions, ElementRetry)) is not None:
                        raise retry
                    return predictions
            except Exception as error:
                if failed > self.num_retries or not self.retry_filter(error):
                    raise
                time.sleep(pause_before_retry(failed))  # the back-off; here nothing else waits on this thread
            else:
                raise failure
        raise AssertionError("this is a bug in Headrace, please report it")

    def ask_rate_limiter(self, hits: int) -> None:
        """Waits until the rate limiter, if there is one, admits this many examples; raises RateLimitExceeded."""
        if self.rate_limiter is not None and not self.rate_limiter.allow(hits_added=hits):
            raise RateLimitExceeded("the rate limiter refused a request.")


def _checked_rate(name: str, given: float | None) -> float | None:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if given is not None and not (is_number and 0 < given < math.inf):
        raise ConfigurationError(f"{name} must be a positive number, or None for no limit, not {given!r}.")
    return given


def _first_error(predictions: list[Any], kind: type[ElementFailure | ElementRetry]) -> BaseException | None:
    return next((one.error for one in predictions if isinstance(one, kind)), None)

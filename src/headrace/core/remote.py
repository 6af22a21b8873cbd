"""The contract of a handler whose model is behind a remote endpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.core.errors import UnsupportedError
from headrace.core.handler import ExampleT, ModelHandler, ModelT, PredictionT


def always_retry(_: Exception) -> bool:
    """The default ``retry_filter``: retries after every exception."""
    return True


class RemoteModelHandler(ABC, ModelHandler[ExampleT, PredictionT, ModelT]):
    """Calls a model at a remote endpoint; a subclass implements ``create_client`` and ``request``.

    This version defines only the contract, so that handlers can be imported and constructed; ``RunInference`` and
    ``predict`` refuse to run them. A handler derived from ``apache_beam.ml.inference.base.RemoteModelHandler`` runs,
    with Beam's own retries and throttling.

    Args:
        namespace: of the metrics and the log.
        num_retries: how often to retry a request.
        throttle_delay_secs: how long a throttled client waits, in seconds.
        retry_filter: whether to retry a request that raised this exception.
        window_ms: length of the throttling history, in milliseconds.
        bucket_ms: granularity of the history, in milliseconds.
        overload_ratio: how many requests may be sent for each that succeeds
            (K in https://sre.google/sre-book/handling-overload/).
        rate_limiter: an object with ``allow(hits_added)``, called before each request.
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
    ) -> None:
        super().__init__()
        self.namespace = namespace
        self.num_retries = num_retries
        self.throttle_delay_secs = throttle_delay_secs
        self.retry_filter = retry_filter
        self.window_ms = window_ms
        self.bucket_ms = bucket_ms
        self.overload_ratio = overload_ratio
        self.rate_limiter = rate_limiter

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method, instead in (("load_model", "create_client"), ("run_inference", "request")):
            if getattr(cls, method) is not getattr(RemoteModelHandler, method):
                raise TypeError(f"Cannot override RemoteModelHandler.{method}, implement {instead} instead.")

    @abstractmethod
    def create_client(self) -> ModelT:
        """Makes the client that sends requests."""

    @abstractmethod
    def request(
        self, batch: Sequence[ExampleT], model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionT]:
        """Sends one request for a batch and returns its predictions, in order; raises if it fails."""

    def load_model(self) -> ModelT:
        """Returns the client."""
        return self.create_client()

    def run_inference(
        self, batch: Sequence[ExampleT], model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionT]:
        """Raises UnsupportedError: this version does not send requests with back-off."""
        raise UnsupportedError(
            "Remote inference",
            "derive the handler from apache_beam.ml.inference.base.RemoteModelHandler (Beam 2.65 or newer) to run it "
            "with Beam's retries",
        )

"""Asks models on endpoints of Vertex AI; names and arguments as ``apache_beam.ml.inference``'s handler."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.conversion import to_results
from headrace.core.errors import ConfigurationError, EndpointAnswerError, extra_required
from headrace.core.remote import RemoteModelHandler
from headrace.core.request_context import report_usage
from headrace.core.result import PredictionResult
from headrace.handlers.text_endpoints import count_of

with extra_required("vertex"):
    import google.cloud.aiplatform as aiplatform  # noqa: PLR0402 - the other form does not name the package
    from google.api_core.exceptions import GoogleAPICallError, ServerError, TooManyRequests
    from google.auth.exceptions import TransportError

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

__all__ = ["VertexAIModelHandlerJSON"]

_TIMEOUT_SECS = 120.0
"""The most that Google's client takes without another package."""
_STATUS = re.compile(r"Status code:\s*(\d{3})")
"""Where Google's client has the status of a dedicated endpoint's answer: in the text of a ValueError."""


def _retry_on_appropriate_gcp_error(exception: Exception) -> bool:
    """Whether the same request may succeed later: after a 429, a fault of the service or a lost connection."""
    if isinstance(exception, GoogleAPICallError):
        return isinstance(exception, TooManyRequests | ServerError)
    if isinstance(exception, EndpointAnswerError):
        return exception.status_code is not None and (exception.status_code == 429 or exception.status_code >= 500)
    return isinstance(exception, OSError | TransportError)


class VertexAIModelHandlerJSON(RemoteModelHandler[Any, PredictionResult, Any]):
    """Asks a model on an endpoint of Vertex AI: an example is what its JSON takes, a prediction what its JSON says.

    Requests run on threads, several at a time.

    Args:
        endpoint_id: the endpoint's number.
        project: in Google Cloud.
        location: its region.
        experiment: label of the requests.
        network: full name of the Compute Engine network of a private endpoint.
        private: whether the endpoint is private; needs a ``network``.
        invoke_route: a route of the model's own, such as "/predict/v1", for dedicated endpoints. The request is
            ``{"instances": [...], "parameters": inference_args}``; the answer may be ``{"predictions": [...]}``, a list
            with a prediction for each example, or anything else, which is then each example's prediction.
        api_endpoint: host of the service in place of the region's.
        api_transport: "grpc", or "rest"; None: Google's client decides.
        credentials: a function that returns Google credentials, called where the endpoint is asked; None: the default
            credentials.
        timeout_secs: the longest that one request may take, in seconds; private endpoints have a limit of their own.
        options: those of ``headrace.RemoteModelHandler`` and ``headrace.ModelHandler``, but for ``namespace`` and
            ``retry_filter``.

    ``inference_args`` are the request's ``parameters``. The constructor asks the endpoint, as Beam's does, whether it
    has a model.

    Raises:
        ConfigurationError: a private endpoint without a network, or the endpoint cannot be asked, or has no model.
    """

    model_parameter = "endpoint_id"

    def __init__(  # noqa: PLR0917 - Beam's
        self,
        endpoint_id: str,
        project: str,
        location: str,
        experiment: str | None = None,
        network: str | None = None,
        private: bool = False,
        invoke_route: str | None = None,
        *,
        api_endpoint: str | None = None,
        api_transport: str | None = None,
        credentials: Callable[[], Credentials] | None = None,
        timeout_secs: float = _TIMEOUT_SECS,
        **options: Any,
    ) -> None:
        super().__init__("VertexAIModelHandlerJSON", retry_filter=_retry_on_appropriate_gcp_error, **options)
        if private and network is None:
            raise ConfigurationError("a private endpoint needs network=, the full name of its VPC network.")
        if not 0 < timeout_secs <= _TIMEOUT_SECS:
            said = f"timeout_secs must be over 0 and at most {_TIMEOUT_SECS:g}, not {timeout_secs!r}."
            raise ConfigurationError(said)
        self.endpoint_name = endpoint_id
        self.project = project
        self.location = location
        self.is_private = private
        self._invoke_route = invoke_route
        self._timeout_secs = timeout_secs
        self._credentials = credentials
        place = {"project": project, "location": location, "experiment": experiment, "network": network}
        self._settings = {**place, "api_endpoint": api_endpoint, "api_transport": api_transport}
        self.create_client()

    def create_client(self) -> Any:
        """Finds the ``aiplatform.Endpoint``; ConfigurationError if it cannot be asked, or has no model."""
        settings = {name: value for name, value in self._settings.items() if value is not None}
        if self._credentials is not None:
            settings["credentials"] = self._credentials()
        aiplatform.init(**settings)  # in each worker: it is global
        return self._retrieve_endpoint(self.endpoint_name, self.location, self.is_private)

    def _retrieve_endpoint(self, endpoint_id: str, location: str, is_private: bool) -> Any:
        kind = aiplatform.PrivateEndpoint if is_private else aiplatform.Endpoint
        try:
            endpoint = kind(endpoint_name=endpoint_id, location=location)
            models = endpoint.list_models()
        except Exception as error:
            raise ConfigurationError(f"endpoint {endpoint_id} cannot be asked for its models: {error}") from error
        if not models:
            raise ConfigurationError(f"endpoint {endpoint_id} has no model deployed to it.")
        return endpoint

    def request(
        self, batch: Sequence[Any], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Sends one request for a batch; raises EndpointAnswerError, and what Google's client raises."""
        try:
            if self._invoke_route:
                return self._invoke(batch, model, inference_args)
            limit = {} if self.is_private else {"timeout": self._timeout_secs}
            answer = model.predict(instances=list(batch), parameters=inference_args, **limit)
        except ValueError as error:
            found = _STATUS.search(str(error))
            if found is None:
                raise
            raise EndpointAnswerError(str(error), int(found[1])) from error
        if answer.predictions is None:
            raise EndpointAnswerError(f"endpoint {self.endpoint_name} answered without predictions.")
        return to_results(batch, answer.predictions, answer.deployed_model_id)

    def _invoke(
        self, batch: Sequence[Any], model: Any, inference_args: dict[str, Any] | None
    ) -> Iterable[PredictionResult]:
        body: dict[str, Any] = {"instances": list(batch)}
        if inference_args:
            body["parameters"] = inference_args
        response = model.invoke(
            request_path=self._invoke_route,
            body=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            timeout=self._timeout_secs,
        )
        status = getattr(response, "status_code", 200)
        if status >= 400:  # the client raises nothing: the error would be taken for a prediction
            text = f"endpoint {self.endpoint_name} answered with status {status}: {response.text[:500]}"
            raise EndpointAnswerError(text, status, response.headers)
        return self._parse_invoke_response(batch, response.content if hasattr(response, "content") else bytes(response))

    def _parse_invoke_response(self, batch: Sequence[Any], response: bytes) -> Iterable[PredictionResult]:
        """The predictions in an answer; what is not a list of them is each example's prediction, as with Beam."""
        try:
            answer: Any = json.loads(response)
        except (ValueError, RecursionError):
            return [PredictionResult(example, response) for example in batch]
        if isinstance(answer, dict):
            self._report(answer)
            if "predictions" in answer:
                return to_results(batch, answer["predictions"], answer.get("deployedModelId"))
        elif isinstance(answer, list) and (len(batch) > 1 or len(answer) == 1):
            return to_results(batch, answer)
        return [PredictionResult(example, answer) for example in batch]

    def _report(self, answer: Mapping[str, Any]) -> None:
        """Reports tokens, where the answer has them as OpenAI's and vLLM's do."""
        usage = answer.get("usage")
        if isinstance(usage, dict):
            read, written = (count_of(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
            name = str(answer.get("model") or self.endpoint_name)
            report_usage(name, input_tokens=read, output_tokens=written)

"""Asks models behind the KServe protocol, version 2, as Triton, MLServer and KServe itself serve them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from headrace.core.conversion import to_numbers
from headrace.core.errors import ConfigurationError, EndpointAnswerError, extra_required
from headrace.core.remote import ElementFailure, RemoteModelHandler
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey, KeySource
from headrace.handlers.cards import CARDS
from headrace.handlers.client_errors import outcomes_of, settled

with extra_required("kserve"):
    import numpy

    from headrace.handlers.kserve_client import KServeClient, ModelPlace
    from headrace.handlers.kserve_tensors import ModelInputs, NamedTensor, results_of

__all__ = ["KServeModelHandler"]

_NO_MODEL = 404
_UNFIT = (400, 404, 405, 501)
"""Statuses of a metadata request that mean the model is missing, or the server does not speak the protocol."""
_SCHEMES = {"http": ("", "http", "https"), "grpc": ("", "grpc", "grpcs", "http", "https")}
_SECURE = ("https", "grpcs")


class KServeModelHandler(RemoteModelHandler[Any, PredictionResult, KServeClient]):
    """Asks a model on a server of the KServe protocol: Triton, MLServer, KServe.

    An example is an array (or a tensor, a number, a text), or for several inputs a dict of arrays by name, without the
    batch dimension. Examples of equal shapes go together in one request. The prediction is the example's part of the
    model's output, an array, or a dict of those if the model has several outputs.

    Examples are converted to the datatypes that the model's metadata name, as long as that changes no value beyond
    rounding. An example that does not fit is a dead letter that says so; the others are not affected.

    Args:
        url: of the server, such as "http://localhost:8000", "localhost:8001", "https://models.example.com/triton".
        model_name: as the server knows it.
        model_version: None: the server decides.
        protocol: "http", or "grpc", where Triton and MLServer have another port.
        input_name: name of the input for examples that are no dicts; None: the model's only input.
        outputs: names of the outputs wanted; None: all.
        batched: whether the model's arrays begin with a batch dimension. If not, each example is a request.
        text_outputs: whether outputs of datatype BYTES are text, in UTF-8; if not, they stay bytes.
        binary: over HTTP, whether to send arrays as they are in memory rather than as JSON; None: if the server says
            that it takes them.
        api_key: sent as bearer token; a function that returns it, called in the worker, keeps it out of the pickle of
            the pipeline. None: the environment variable KSERVE_API_KEY, if set.
        headers: further headers of each request; over gRPC, its metadata.
        timeout_secs: the longest that one request may take, in seconds.
        columns_are_inputs: for files, whether each column is an input of its name; if not, all columns together are an
            array of numbers.
        options: those of ``headrace.RemoteModelHandler`` and ``headrace.ModelHandler``.

    ``inference_args`` are the request's ``parameters``.

    Raises:
        ConfigurationError: an unfit URL, protocol or time limit.
    """

    card = CARDS["kserve_inference.KServeModelHandler"]
    model_parameter = "model_name"

    def __init__(
        self,
        url: str,
        model_name: str,
        model_version: str | int | None = None,
        protocol: Literal["http", "grpc"] = "http",
        *,
        input_name: str | None = None,
        outputs: Sequence[str] | None = None,
        batched: bool = True,
        text_outputs: bool = True,
        binary: bool | None = None,
        api_key: KeySource = None,
        headers: Mapping[str, str] | None = None,
        timeout_secs: float = 60.0,
        columns_are_inputs: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**{"namespace": "KServeModelHandler", **options})
        if not isinstance(model_name, str) or not model_name:
            raise ConfigurationError(f"model_name must name a model of the server, not {model_name!r}.")
        if not timeout_secs > 0:
            raise ConfigurationError(f"timeout_secs must be positive, not {timeout_secs!r}.")
        if isinstance(outputs, str):
            raise ConfigurationError(f"outputs must be a list of names: [{outputs!r}].")
        self._server, self._secure = _server_of(url, protocol)
        self._protocol = protocol
        self._model_name = model_name
        self._model_version = "" if model_version is None else str(model_version)
        self._input_name = input_name
        self._outputs = list(outputs or ())
        self._batched = batched
        self._text_outputs = text_outputs
        self._binary = binary
        self._api_key = ApiKey(api_key, "KSERVE_API_KEY", "KServeModelHandler")
        self._headers = dict(headers or {})
        self._timeout_secs = timeout_secs
        self._columns_are_inputs = columns_are_inputs

    def create_client(self) -> KServeClient:
        """Makes a client; it connects with the first request."""
        place = ModelPlace(
            self._server,
            self._secure,
            self._protocol == "grpc",
            self._model_name,
            self._model_version,
            self._current_headers,
            self._timeout_secs,
            self._binary,
        )
        return KServeClient(place)

    def _current_headers(self) -> dict[str, str]:
        key = self._api_key.value()
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        return {**headers, **self._headers}

    async def request(
        self, batch: Sequence[Any], model: KServeClient, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """Sends a request for the examples of each shape.

        Raises:
            EndpointAnswerError: the server answered with an error; 404 if it has no such model.
            PredictionCountError: an output has not one row for each example.
            Exception: the server cannot be reached.
        """
        try:
            inputs = await self._inputs_of(model)
        except Exception as error:
            self._api_key.mask_error(error)
            raise
        outcomes: list[Any] = [None] * len(batch)
        tensors: dict[int, list[NamedTensor]] = {}
        for place, example in enumerate(batch):
            try:
                tensors[place] = inputs.tensors_of(example)
            except (TypeError, ValueError) as error:
                outcomes[place] = ElementFailure(error)

        async def results(places: Sequence[int]) -> list[Any]:
            try:
                joined = inputs.joined([tensors[place] for place in places])
                outputs = await model.infer(joined, self._outputs, inference_args or {})
                return self._results([batch[place] for place in places], outputs)
            except Exception as error:
                self._api_key.mask_error(error)
                raise

        groups = _alike(tensors, inputs.most)
        answers = outcomes_of(await settled(groups, results))
        for places, answer in zip(groups, answers, strict=True):
            for number, place in enumerate(places):
                outcomes[place] = answer[number] if isinstance(answer, list) else answer
        return outcomes

    def _results(self, examples: Sequence[Any], outputs: Mapping[str, Any]) -> list[Any]:
        """The predictions for the examples of one request."""
        model_id = f"{self._model_name}/{self._model_version}" if self._model_version else self._model_name
        return results_of(examples, outputs, self._batched, self._text_outputs, model_id)

    async def _inputs_of(self, model: KServeClient) -> ModelInputs:
        """The model's inputs, asked for once."""
        if model.known is None:
            try:
                specs = await model.inputs()
            except EndpointAnswerError as error:
                if error.status_code not in _UNFIT:
                    raise
                raise EndpointAnswerError(
                    f"no model {self._model_name!r}: {error}", _NO_MODEL, error.headers
                ) from error
            model.known = ModelInputs(specs, self._batched, self._input_name)
        return model.known

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Refuses what cannot be a parameter of a request.

        Raises:
            ConfigurationError: a value is no number, text or boolean.
        """
        for name, value in (inference_args or {}).items():
            if not isinstance(value, bool | int | float | str):
                raise ConfigurationError(
                    f"inference_args are the request's parameters: {name!r} must be a number, a text or a boolean, not "
                    f"{value!r:.80}."
                )

    def example_from_row(self, row: Mapping[str, Any]) -> Any:
        """An array of the row's numbers; with ``columns_are_inputs`` a dict of its columns.

        Raises:
            ValueError: a value is not a finite number; names the column and the value.
        """
        return dict(row) if self._columns_are_inputs else numpy.array(to_numbers(row))


def _alike(tensors: Mapping[int, list[NamedTensor]], most: int | None) -> list[list[int]]:
    """Places of examples that go together in a request: of equal names, datatypes and shapes."""
    groups: dict[Any, list[int]] = {}
    for place, named in tensors.items():
        groups.setdefault(tuple((name, datatype, array.shape) for name, datatype, array in named), []).append(place)
    return [
        places[start : start + (most or len(places))]
        for places in groups.values()
        for start in range(0, len(places), most or len(places))
    ]


def _server_of(url: Any, protocol: Any) -> tuple[str, bool]:
    """Host, port and path as Triton's clients take them, and whether to use TLS.

    Raises:
        ConfigurationError: the protocol is unknown, or the URL none of it.
    """
    if protocol not in _SCHEMES:
        raise ConfigurationError(f"protocol must be 'http' or 'grpc', not {protocol!r}.")
    text = url if isinstance(url, str) else ""
    parts = urlsplit(text if "://" in text else f"//{text}")
    path = parts.path.rstrip("/").removesuffix("/v2")
    if not parts.hostname or parts.scheme not in _SCHEMES[protocol] or (path and protocol == "grpc"):
        example = "http://localhost:8000" if protocol == "http" else "localhost:8001"
        raise ConfigurationError(f"url must be that of the server, such as {example!r}, not {url!r}.")
    return f"{parts.netloc}{path}", parts.scheme in _SECURE

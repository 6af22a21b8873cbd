"""Asks a server of the KServe protocol, version 2, over HTTP or gRPC, with Triton's asynchronous clients."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from headrace.core.errors import ConfigurationError, EndpointAnswerError, PredictionCountError, extra_required
from headrace.core.request_context import report_rate_limit
from headrace.handlers.prompts import InvalidAnswerError

with extra_required("kserve"):
    import numpy
    from tritonclient.grpc import aio as over_grpc
    from tritonclient.http import aio as over_http
    from tritonclient.utils import InferenceServerException, triton_to_np_dtype

    from headrace.handlers.array_batches import Array

AnswerT = TypeVar("AnswerT")

_CONNECTIONS = 1_000
"""As many as requests may be in flight."""
_LARGE = 2**20
"""Bytes of a request's body."""
_BINARY = "binary_tensor_data"
"""The protocol's extension for tensors that follow the JSON as they are in memory."""
_JSON = {"content-type": "application/json"}
"""MLServer wants to know, and Triton's client does not say so."""
_LONGEST_MESSAGE = 2**31 - 1
_CHANNEL = [
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", _LONGEST_MESSAGE),
    ("grpc.max_receive_message_length", _LONGEST_MESSAGE),
    # By default gRPC waits for up to two minutes before it connects again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_SCHEMES = {"http": ("", "http", "https"), "grpc": ("", "grpc", "grpcs", "http", "https")}
_SECURE = ("https", "grpcs")
_STATUSES = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP's statuses for codes of gRPC."""
_NO_MODEL = 404
_UNFIT = (400, 404, 405, 501)
"""Statuses of a metadata request that mean the model is missing, or the server does not speak the protocol."""
_UNREADABLE = (InferenceServerException, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What Triton's clients raise about an answer that does not follow the protocol."""


class TensorSpec(NamedTuple):
    """What a model's metadata say of an input."""

    name: str
    datatype: str
    """Of the protocol, such as "FP32"."""
    shape: tuple[int, ...]
    """With the batch dimension, if there is one; -1: any length."""

    def __str__(self) -> str:
        return f"{self.name} ({self.datatype} {list(self.shape)})"


class NamedTensor(NamedTuple):
    """A tensor as it is sent."""

    name: str
    datatype: str
    array: Array


@dataclass(eq=False)
class KServeClient:
    """Asks for one model's predictions; connects when it is first used, to the running event loop.

    Args:
        url: of the server.
        protocol: ``"http"`` or ``"grpc"``.
        model_name: as the server knows it.
        model_version: empty: the server decides.
        headers: returns those of the next request.
        timeout_secs: the longest that one request may take.
        binary: over HTTP, whether the server takes tensors as they are in memory; None: if it says so.
    """

    url: str
    protocol: str
    model_name: str
    model_version: str
    headers: Callable[[], dict[str, str]]
    timeout_secs: float
    binary: bool | None

    def __post_init__(self) -> None:
        self._server, self._is_secure = server_of(self.url, self.protocol)
        self._over_grpc = self.protocol == "grpc"
        self._inputs: tuple[TensorSpec, ...] | None = None
        self._triton: Any = None
        self._loop: Any = None

    async def known_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that the model's metadata name, asked for once; empty: they name none."""
        if self._inputs is None:
            triton = self._connected()
            if self.binary is None and not self._over_grpc:
                self.binary = await _takes_binary(triton, self.headers())
            as_dict = {"as_json": True} if self._over_grpc else {}
            asked = triton.get_model_metadata(self.model_name, self.model_version, **self._options(), **as_dict)
            try:
                self._inputs = await _answered(asked, _inputs_in)
            except EndpointAnswerError as error:
                if error.status_code not in _UNFIT:
                    raise
                said = f"no model {self.model_name!r}: {error}"
                raise EndpointAnswerError(said, _NO_MODEL, error.headers) from error
        return self._inputs

    async def infer(
        self, tensors: Sequence[NamedTensor], outputs: Sequence[str], parameters: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Sends a request; returns the ``outputs`` wanted by name, or all.

        Raises:
            EndpointAnswerError: the server answered with an error.
            InvalidAnswerError: the answer cannot be read.
            PredictionCountError: an output is there twice, or one of those wanted is missing.
        """
        api = over_grpc if self._over_grpc else over_http
        as_bytes = {} if self._over_grpc else {"binary_data": bool(self.binary)}
        inputs = [
            api.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array, **as_bytes)
            for name, datatype, array in tensors
        ]
        asked = self._connected().infer(
            self.model_name,
            inputs,
            self.model_version,
            outputs=[api.InferRequestedOutput(name, **as_bytes) for name in outputs] or None,
            parameters=parameters or None,
            **self._options(),
        )
        found = await _answered(asked, _outputs_over_grpc if self._over_grpc else _outputs_over_http)
        return _by_name(found, outputs)

    def _options(self) -> dict[str, Any]:
        headers = self.headers()
        if self._over_grpc:
            return {"headers": headers, "client_timeout": self.timeout_secs}
        return {"headers": headers if self.binary else {**_JSON, **headers}}

    def _connected(self) -> Any:
        """Triton's client, for the running loop."""
        if self._triton is None:
            self._loop = asyncio.get_running_loop()
            options: dict[str, Any] = {"ssl": self._is_secure}
            if self._over_grpc:
                self._triton = over_grpc.InferenceServerClient(self._server, channel_args=_CHANNEL, **options)
            else:
                options |= {"conn_limit": _CONNECTIONS, "conn_timeout": self.timeout_secs}
                options["ssl_context"] = ssl.create_default_context() if self._is_secure else None
                self._triton = _HttpWithHeaders(self._server, **options)
        return self._triton

    async def aclose(self) -> None:
        """Closes the connections."""
        triton, self._triton = self._triton, None
        if triton is not None:
            await triton.close()

    def __del__(self) -> None:
        """Closes the connections if nobody else did: Beam's transform, for example, closes no model."""
        if self._triton is not None and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._triton.close(), self._loop)


class _HttpWithHeaders(over_http.InferenceServerClient):  # type: ignore[misc]
    """Raises errors that have the headers of the answer: its own drop them, and Retry-After with them."""

    async def _post(self, request_uri: str, request_body: Any, headers: Any, query_params: Any) -> Any:
        if len(request_body) > _LARGE:  # as a file, it does not block the event loop
            request_body = io.BytesIO(request_body)
        return await _accepted(await super()._post(request_uri, request_body, headers, query_params))

    async def _get(self, *args: Any, **kwargs: Any) -> Any:
        return await _accepted(await super()._get(*args, **kwargs))


async def _accepted(response: Any) -> Any:
    if response.status == 200:
        report_rate_limit(response.headers)
        return response
    text = await response.text(errors="replace")
    raise EndpointAnswerError(
        f"status {response.status}: {text[:500] or response.reason}", response.status, response.headers
    )


async def _answered(asked: Awaitable[Any], read: Callable[[Any], AnswerT]) -> AnswerT:
    """What ``read`` finds in an answer; the refusal of a server over gRPC gets HTTP's status."""
    try:
        return read(await asked)
    except OSError:  # of a connection; aiohttp's about certificates are ValueErrors, too
        raise
    except _UNREADABLE as error:
        if isinstance(error, InferenceServerException) and error.status() is not None:  # else the client raised it
            code = str(error.status()).rpartition(".")[2]
            raise EndpointAnswerError(f"{code}: {error.message()}", _STATUSES.get(code)) from error
        raise InvalidAnswerError(f"the answer cannot be read: {error!s:.200}") from None


async def _takes_binary(triton: Any, headers: dict[str, str]) -> bool:
    asked = triton.get_server_metadata(headers=headers)
    try:
        return await _answered(asked, lambda found: _BINARY in (found.get("extensions") or ()))
    except (EndpointAnswerError, InvalidAnswerError):
        return False  # a gateway may not let this through; JSON works everywhere


def _inputs_in(metadata: Any) -> tuple[TensorSpec, ...]:
    found = metadata.get("inputs") or ()
    return tuple(TensorSpec(one["name"], one["datatype"], (*map(int, one.get("shape", ())),)) for one in found)


def _outputs_over_http(result: Any) -> list[tuple[str, Array]]:
    found = []
    for one in result.get_response()["outputs"]:
        name, data = one["name"], one.get("data", [])
        if not isinstance(name, str) or not isinstance(data, list):  # numpy makes a number of null
            raise TypeError(f"an output is named {name!r:.80}, and its data are {data!r:.80}")
        found.append((name, result.as_numpy(name)))
    return found


def _outputs_over_grpc(result: Any) -> list[tuple[str, Array]]:
    """The outputs in an answer: as they are in memory or, which Triton's client does not read, as numbers."""
    answer, found = result.get_response(), []
    for one in answer.outputs:
        if answer.raw_output_contents:
            array = result.as_numpy(one.name)
        else:
            values = [value for _, field in one.contents.ListFields() for value in field]  # of one field at most
            array = numpy.array(values, dtype=triton_to_np_dtype(one.datatype)).reshape(tuple(one.shape))
        found.append((one.name, array))
    return found


def _by_name(found: Sequence[tuple[str, Array]], wanted: Sequence[str]) -> dict[str, Array]:
    """The outputs in an answer, or those of them that are wanted."""
    outputs = dict(found)
    names = ", ".join(repr(name) for name, _ in found) or "none"
    if len(outputs) < len(found):
        raise PredictionCountError(f"the model answered with one output twice: {names}.")
    try:
        return {name: outputs[name] for name in wanted or outputs}
    except KeyError as missing:
        raise PredictionCountError(f"the model answered without the output {missing}; it has {names}.") from None


def server_of(url: Any, protocol: Any) -> tuple[str, bool]:
    """Host, port and path as Triton's clients take them, and whether to use TLS; ConfigurationError for another URL."""
    if protocol not in _SCHEMES:
        raise ConfigurationError(f"protocol must be 'http' or 'grpc', not {protocol!r}.")
    text = url if isinstance(url, str) else ""
    parts = urlsplit(text if "://" in text else f"//{text}")
    path = parts.path.rstrip("/").removesuffix("/v2")
    if not parts.hostname or parts.scheme not in _SCHEMES[protocol] or (path and protocol == "grpc"):
        example = "http://localhost:8000" if protocol == "http" else "localhost:8001"
        raise ConfigurationError(f"url must be that of the server, such as {example!r}, not {url!r}.")
    return f"{parts.netloc}{path}", parts.scheme in _SECURE

"""Asks models behind the KServe protocol, version 2, as Triton, MLServer and KServe itself serve them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from headrace.core.conversion import places_by, to_numbers, to_results
from headrace.core.errors import ConfigurationError, PredictionCountError, extra_required
from headrace.core.remote import ElementFailure, RemoteModelHandler
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey, KeySource
from headrace.handlers.text_endpoints import outcomes_of, settled

with extra_required("kserve"):
    import numpy
    from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

    from headrace.handlers.array_batches import Array, fitted
    from headrace.handlers.kserve_client import KServeClient, NamedTensor, TensorSpec, server_of

__all__ = ["KServeModelHandler"]

_TEXT = "BYTES"
_UNNAMED = "input-0"
"""The name of a tensor if neither the handler nor the model's metadata name one."""

_TO_TEXT = numpy.frompyfunc(lambda item: item.decode() if isinstance(item, bytes) else item, 1, 1)
_TO_BYTES = numpy.frompyfunc(lambda item: item.encode() if isinstance(item, str) else item, 1, 1)

_Request = tuple[Sequence[int], list["NamedTensor"]]
"""Places of examples, and their tensors."""


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
        server_of(url, protocol)
        self._url, self._protocol = url, protocol
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
        model = self._url, self._protocol, self._model_name, self._model_version
        return KServeClient(*model, self._current_headers, self._timeout_secs, self._binary)

    def _current_headers(self) -> dict[str, str]:
        key = self._api_key.value()
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        return {**headers, **self._headers}

    async def request(
        self, batch: Sequence[Any], model: KServeClient, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """Sends a request for the examples of each shape."""
        outcomes: list[Any] = [None] * len(batch)

        async def results(request: _Request) -> list[Any]:
            places, tensors = request
            outputs = await model.infer(tensors, self._outputs, inference_args or {})
            return self._results([batch[place] for place in places], outputs)

        try:
            requests = self._requests(batch, await model.known_inputs(), outcomes)
        except Exception as error:
            self._api_key.mask_error(error)
            raise
        found = await settled(requests, results)
        for one in found:
            if isinstance(one, Exception):
                self._api_key.mask_error(one)
        for (places, _), answer in zip(requests, outcomes_of(found), strict=True):
            for number, place in enumerate(places):
                outcomes[place] = answer[number] if isinstance(answer, list) else answer
        return outcomes

    def _requests(self, batch: Sequence[Any], inputs: Sequence[TensorSpec], outcomes: list[Any]) -> list[_Request]:
        """Examples that become tensors of one shape, together; those that do not fit get their outcome."""
        tensors: dict[int, list[NamedTensor]] = {}
        for place, example in enumerate(batch):
            try:
                tensors[place] = self._tensors_of(example, inputs)
            except (TypeError, ValueError) as error:
                outcomes[place] = ElementFailure(error)
        fit = list(tensors)
        requests: list[_Request] = []
        fixed = [spec.shape[0] for spec in inputs if spec.shape and spec.shape[0] > 0]
        most = min(fixed, default=len(batch)) if self._batched else 1
        kinds = (tuple((name, datatype, one.shape) for name, datatype, one in named) for named in tensors.values())
        for numbers in places_by(kinds).values():
            for start in range(0, len(numbers), most):
                places = [fit[number] for number in numbers[start : start + most]]
                requests.append((places, _together([tensors[place] for place in places])))
        return requests

    def _tensors_of(self, example: Any, inputs: Sequence[TensorSpec]) -> list[NamedTensor]:
        """An example as tensors, in the order of their names; raises if the model takes others."""
        named, said = example, ", ".join(map(str, inputs))
        if not isinstance(example, Mapping):
            if self._input_name is None and len(inputs) > 1:
                raise ValueError(f"the model takes {said}; an example must be a dict with these names.")
            named = {self._input_name or (inputs[0].name if inputs else _UNNAMED): example}
        specs = {spec.name: spec for spec in inputs}
        if inputs and named.keys() != specs.keys():
            raise ValueError(f"the model takes {said}; the example has {', '.join(map(str, named)) or 'none'}.")
        return [_tensor(name, _as_array(named[name]), specs.get(name), self._batched) for name in sorted(named)]

    def _results(self, examples: Sequence[Any], outputs: Mapping[str, Array]) -> list[Any]:
        """Each example's part of the only output of a request, or a dict of its parts."""
        if not outputs:
            raise PredictionCountError("the model answered without outputs.")
        count = len(examples)
        rows = {name: _rows(name, array, count) if self._batched else [array] for name, array in outputs.items()}
        model_id = f"{self._model_name}/{self._model_version}" if self._model_version else self._model_name
        results = to_results(examples, rows if len(rows) > 1 else next(iter(rows.values())), model_id)
        are_texts = any(array.dtype.kind == "O" for array in outputs.values())
        return list(map(self._decoded, results)) if are_texts else results

    def _decoded(self, result: PredictionResult) -> PredictionResult | ElementFailure:
        """With all bytes as text, or all text as bytes: servers that answer in JSON send text."""
        convert, found = _TO_TEXT if self._text_outputs else _TO_BYTES, result.inference
        try:
            if isinstance(found, dict):
                return result._replace(inference={name: _decoded(one, convert) for name, one in found.items()})
            return result._replace(inference=_decoded(found, convert))
        except UnicodeDecodeError as error:
            said = f"an output holds bytes that are no text: {error}; use text_outputs=False."
            return ElementFailure(ValueError(said))

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Raises ConfigurationError for what cannot be a parameter of a request."""
        for name, value in (inference_args or {}).items():
            if not isinstance(value, bool | int | float | str):
                raise ConfigurationError(
                    f"inference_args are the request's parameters: {name!r} must be a number, a text or a boolean, not "
                    f"{value!r:.80}."
                )

    def example_from_row(self, row: Mapping[str, Any]) -> Any:
        """An array of the row's numbers; with ``columns_are_inputs`` a dict of its columns."""
        return dict(row) if self._columns_are_inputs else numpy.array(to_numbers(row))


def _together(examples: Sequence[Sequence[NamedTensor]]) -> list[NamedTensor]:
    """The tensors of a request for several examples, which begin with the batch dimension, or for one."""
    if len(examples) == 1:
        return list(examples[0])
    inputs = zip(*examples, strict=True)
    return [one[0]._replace(array=numpy.concatenate([part.array for part in one])) for one in inputs]


def _tensor(name: str, array: Array, spec: TensorSpec | None, batched: bool) -> NamedTensor:
    """An example's array as the model takes it, alone in its batch; raises if it does not."""
    if spec is None:
        datatype = np_to_triton_dtype(array.dtype)
        if datatype is None:
            raise TypeError(f"input {name!r} is of {array.dtype}, which the protocol does not have.")
        return NamedTensor(name, datatype, array[None] if batched else array)
    shape = spec.shape[1:] if batched else spec.shape
    if array.ndim == 0 and shape in ((1,), (-1,)):  # a number, or a column of a file
        array = array[None]
    if len(shape) != array.ndim or any(0 <= most != length for most, length in zip(shape, array.shape, strict=True)):
        raise ValueError(f"input {name!r} takes an example of shape {list(shape)}, not {list(array.shape)}.")
    if (spec.datatype == _TEXT) != (array.dtype.kind == "O"):
        raise TypeError(f"input {name!r} is {spec.datatype}, not {array.dtype}.")
    dtype = numpy.dtype(triton_to_np_dtype(spec.datatype))
    rows = array[None] if batched else array
    if dtype.kind == "V":  # BF16, which numpy itself does not know
        return NamedTensor(name, spec.datatype, fitted(rows, numpy.float32).astype(dtype))
    return NamedTensor(name, spec.datatype, fitted(rows, dtype))


def _as_array(value: Any) -> Array:
    """A value as an array; texts become bytes."""
    if hasattr(value, "detach"):  # a PyTorch tensor, perhaps on a GPU
        value = value.detach().cpu()
    value = value.numpy() if hasattr(value, "numpy") else value
    array: Array = numpy.asarray(value)
    if array.dtype.kind not in "USO":
        return array
    items = numpy.asarray(value, dtype=object)  # numpy's own texts lose zeros at their end
    for item in items.flat:
        if not isinstance(item, str | bytes):
            raise TypeError(f"tensors hold numbers, texts or bytes, not {item!r:.80}.")
    return numpy.asarray(_TO_BYTES(items), dtype=object)


def _rows(name: str, array: Array, count: int) -> list[Any]:
    if array.shape[:1] != (count,):
        raise PredictionCountError(
            f"output {name!r} of the model has the shape {list(array.shape)} for {count} example(s): its first "
            "dimension must be theirs. If the model takes one example at a time, make the handler with batched=False."
        )
    return [array[place, ...] for place in range(count)] if array.dtype.kind == "O" else list(array)


def _decoded(found: Any, convert: Callable[[Any], Any]) -> Any:
    is_text = getattr(getattr(found, "dtype", None), "kind", "") == "O"
    return convert(found) if is_text else found

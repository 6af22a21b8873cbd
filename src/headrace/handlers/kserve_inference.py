"""Asks models behind the KServe protocol, version 2, as Triton, MLServer and KServe itself serve them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from headrace.core.conversion import places_by, to_numbers, to_results
from headrace.core.errors import ConfigurationError, EndpointAnswerError, PredictionCountError, extra_required
from headrace.core.remote import ElementFailure, RemoteModelHandler
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey, KeySource
from headrace.handlers.client_errors import outcomes_of, settled

with extra_required("kserve"):
    import numpy
    from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

    from headrace.handlers.array_batches import Array, fitted
    from headrace.handlers.kserve_client import KServeClient, NamedTensor, TensorSpec, server_of

__all__ = ["KServeModelHandler"]

_NO_MODEL = 404
_UNFIT = (400, 404, 405, 501)
"""Statuses of a metadata request that mean the model is missing, or the server does not speak the protocol."""
_TEXT = "BYTES"
_PLAIN = {bool: "b", int: "i", float: "f", str: "O"}
"""Kinds of numpy's arrays of Python's values."""
_UNNAMED = "input-0"
"""The name of a tensor if neither the handler nor the model's metadata name one."""


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
        self._server, self._secure = server_of(url, protocol)
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
        return KServeClient(
            self._server,
            self._secure,
            self._protocol == "grpc",
            self._model_name,
            self._model_version,
            self._current_headers,
            self._timeout_secs,
            self._binary,
        )

    def _current_headers(self) -> dict[str, str]:
        key = self._api_key.value()
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        return {**headers, **self._headers}

    async def request(
        self, batch: Sequence[Any], model: KServeClient, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """Sends a request for the examples of each shape."""
        try:
            inputs = await self._inputs_of(model)
        except Exception as error:
            self._api_key.mask_error(error)
            raise
        outcomes: list[Any] = [None] * len(batch)
        groups = self._groups(batch, inputs, outcomes)

        async def results(group: tuple[Sequence[int], list[NamedTensor]]) -> list[Any]:
            places, sent = group
            try:
                outputs = await model.infer(sent, self._outputs, inference_args or {})
                return self._results([batch[place] for place in places], outputs)
            except Exception as error:
                self._api_key.mask_error(error)
                raise

        answers = outcomes_of(await settled(groups, results))
        for (places, _), answer in zip(groups, answers, strict=True):
            for number, place in enumerate(places):
                outcomes[place] = answer[number] if isinstance(answer, list) else answer
        return outcomes

    def _groups(
        self, batch: Sequence[Any], inputs: Sequence[TensorSpec], outcomes: list[Any]
    ) -> list[tuple[Sequence[int], list[NamedTensor]]]:
        """Places of examples that share a request, and its tensors; those that fit in none get their outcome."""
        most = self._most(inputs)
        if self._batched and (whole := self._together(batch, inputs)) is not None:
            size = most or len(batch)
            parts = [range(start, min(start + size, len(batch))) for start in range(0, len(batch), size)]
            return [(part, [one._replace(array=one.array[part.start : part.stop]) for one in whole]) for part in parts]
        tensors: dict[int, list[NamedTensor]] = {}
        for place, example in enumerate(batch):
            try:
                tensors[place] = self._tensors_of(example, inputs)
            except (TypeError, ValueError) as error:
                outcomes[place] = ElementFailure(error)
        return [(places, self._joined([tensors[place] for place in places])) for places in _alike(tensors, most)]

    def _together(self, batch: Sequence[Any], inputs: Sequence[TensorSpec]) -> list[NamedTensor] | None:
        """The tensors of examples that are all alike, made at once; None: each has to be looked at."""
        first, columns = batch[0], [_column(batch)]
        if isinstance(first, Mapping):
            if not all(isinstance(one, Mapping) and one.keys() == first.keys() for one in batch):
                return None
            columns = [_column([one[name] for one in batch]) for name in first]
        if any(column is None for column in columns):
            return None
        rows = dict(zip(first, columns, strict=True)) if isinstance(first, Mapping) else columns[0]
        try:
            return self._tensors_of(rows, inputs, are_rows=True)
        except (TypeError, ValueError):  # of some of them
            return None

    async def _inputs_of(self, model: KServeClient) -> tuple[TensorSpec, ...]:
        """The model's inputs, asked for once."""
        if model.inputs is None:
            try:
                model.inputs = await model.ask_for_inputs()
            except EndpointAnswerError as error:
                if error.status_code not in _UNFIT:
                    raise
                said = f"no model {self._model_name!r}: {error}"
                raise EndpointAnswerError(said, _NO_MODEL, error.headers) from error
        return model.inputs

    def _most(self, inputs: Sequence[TensorSpec]) -> int | None:
        """How many examples a request may have; None: any number."""
        if not self._batched:
            return 1
        return min((spec.shape[0] for spec in inputs if spec.shape and spec.shape[0] > 0), default=None)

    def _tensors_of(self, example: Any, inputs: Sequence[TensorSpec], *, are_rows: bool = False) -> list[NamedTensor]:
        """The tensors of one example, without a batch dimension, in the order of their names; or of rows of several."""
        known, said = {spec.name: spec for spec in inputs}, ", ".join(map(str, inputs))
        if isinstance(example, Mapping):
            named = dict(example)
        elif self._input_name is None and len(inputs) > 1:
            raise ValueError(f"the model takes {said}; an example must be a dict with these names.")
        else:
            named = {self._input_name or next(iter(known), _UNNAMED): example}
        if known and named.keys() != known.keys():
            raise ValueError(f"the model takes {said}; the example has {', '.join(map(str, named)) or 'none'}.")
        return [
            _tensor(name, named[name], known.get(name), batched=self._batched, are_rows=are_rows)
            for name in sorted(named)
        ]

    def _joined(self, examples: Sequence[list[NamedTensor]]) -> list[NamedTensor]:
        """The tensors of a request for several examples of one kind."""
        if not self._batched:
            return examples[0]
        return [
            NamedTensor(parts[0].name, parts[0].datatype, numpy.stack([part.array for part in parts]))
            for parts in zip(*examples, strict=True)
        ]

    def _results(self, examples: Sequence[Any], outputs: Mapping[str, Array]) -> list[Any]:
        """Each example's part of the only output of a request, or a dict of its parts."""
        if not outputs:
            raise PredictionCountError("the model answered without outputs.")
        count = len(examples)
        rows = {name: _rows(name, array, count) if self._batched else [array] for name, array in outputs.items()}
        model_id = f"{self._model_name}/{self._model_version}" if self._model_version else self._model_name
        results = to_results(examples, rows if len(rows) > 1 else next(iter(rows.values())), model_id)
        return list(map(self._decoded, results))

    def _decoded(self, result: PredictionResult) -> PredictionResult | ElementFailure:
        """With all bytes as text, or all text as bytes: servers that answer in JSON send text."""
        convert = numpy.frompyfunc(_as_text if self._text_outputs else _as_bytes, 1, 1)
        try:
            return result._replace(inference=_decoded(result.inference, convert))
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


def _column(values: Sequence[Any]) -> Any:
    """Values of one type as the rows of an array, each as it would be alone; None if they are not alike."""
    kinds = set(map(type, values))
    if kinds == {numpy.ndarray}:
        return numpy.stack(values) if len({(one.dtype, one.shape) for one in values}) == 1 else None
    kind = _PLAIN.get(kinds.pop()) if len(kinds) == 1 else None
    column = numpy.array(values, object if kind == "O" else None) if kind else None
    return column if column is not None and column.dtype.kind == kind else None


def _tensor(name: str, value: Any, spec: TensorSpec | None, *, batched: bool, are_rows: bool) -> NamedTensor:
    array = _as_array(value)
    if spec is None:
        datatype = np_to_triton_dtype(array.dtype)
        if datatype is None:
            raise TypeError(f"input {name!r} is of {array.dtype}, which the protocol does not have.")
        return NamedTensor(name, datatype, array)
    shape = spec.shape[1:] if batched else spec.shape
    if array.ndim == are_rows and shape in ((1,), (-1,)):  # a number, or a column of a file
        array = array[..., None]
    found = array.shape[are_rows:]
    if len(shape) != len(found) or any(0 <= most != length for most, length in zip(shape, found, strict=True)):
        raise ValueError(f"input {name!r} takes an example of shape {list(shape)}, not {list(found)}.")
    if (spec.datatype == _TEXT) != (array.dtype.kind == "O"):
        raise TypeError(f"input {name!r} is {spec.datatype}, not {array.dtype}.")
    dtype = numpy.dtype(triton_to_np_dtype(spec.datatype))
    if dtype.kind == "V":  # BF16, which numpy itself does not know
        return NamedTensor(name, spec.datatype, fitted(array, numpy.float32).astype(dtype))
    return NamedTensor(name, spec.datatype, fitted(array, dtype))


def _as_array(value: Any) -> Array:
    """A value as an array; texts become bytes."""
    if hasattr(value, "detach"):  # a PyTorch tensor, perhaps on a GPU
        value = value.detach().cpu()
    value = value.numpy() if hasattr(value, "numpy") else value
    array: Array = numpy.asarray(value)
    if array.dtype.kind not in "USO":
        return array
    items = numpy.asarray(value, dtype=object)  # numpy's own texts lose zeros at their end
    return numpy.asarray(numpy.frompyfunc(_as_sent, 1, 1)(items), dtype=object)


def _as_sent(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if not isinstance(item, bytes):
        raise TypeError(f"tensors hold numbers, texts or bytes, not {item!r:.80}.")
    return item


def _rows(name: str, array: Array, count: int) -> list[Any]:
    if array.shape[:1] != (count,):
        raise PredictionCountError(
            f"output {name!r} of the model has the shape {list(array.shape)} for {count} example(s): its first "
            "dimension must be theirs. If the model takes one example at a time, make the handler with batched=False."
        )
    return [array[place, ...] for place in range(count)] if array.dtype.kind == "O" else list(array)


def _decoded(found: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(found, dict):
        return {name: _decoded(one, convert) for name, one in found.items()}
    is_text = getattr(getattr(found, "dtype", None), "kind", "") == "O"
    return convert(found) if is_text else found


def _as_text(item: Any) -> Any:
    return item.decode() if isinstance(item, bytes) else item


def _as_bytes(item: Any) -> Any:
    return item.encode() if isinstance(item, str) else item


def _alike(tensors: Mapping[int, list[NamedTensor]], most: int | None) -> list[list[int]]:
    """Places of examples that go together in a request: of equal names, datatypes and shapes."""
    places, size = list(tensors), most or len(tensors)
    kinds = [tuple((name, datatype, array.shape) for name, datatype, array in named) for named in tensors.values()]
    groups = [[places[one] for one in alike] for alike in places_by(kinds).values()]
    return [group[start : start + size] for group in groups for start in range(0, len(group), size)]

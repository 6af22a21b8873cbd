"""Examples as tensors of the KServe protocol, and its tensors as predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.core.conversion import to_results
from headrace.core.errors import PredictionCountError, extra_required
from headrace.core.remote import ElementFailure
from headrace.core.result import PredictionResult

with extra_required("kserve"):
    import numpy
    from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

    from headrace.handlers.array_batches import Array, fitted

__all__ = ["ModelInputs", "NamedTensor", "TensorSpec", "results_of"]

_TEXT = "BYTES"
_UNNAMED = "input-0"
"""The name of a tensor if neither the handler nor the model's metadata name one."""


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


class ModelInputs(NamedTuple):
    """The inputs of a model."""

    specs: tuple[TensorSpec, ...]
    """Empty: the model's metadata say nothing."""
    batched: bool
    """Whether shapes begin with a batch dimension."""
    input_name: str | None
    """The input's name when the example is a bare array; None: the only input's."""

    @property
    def most(self) -> int | None:
        """How many examples a request may have; None: any number."""
        if not self.batched:
            return 1
        fixed = [spec.shape[0] for spec in self.specs if spec.shape and spec.shape[0] > 0]
        return min(fixed, default=None)

    def tensors_of(self, example: Any) -> list[NamedTensor]:
        """The tensors of one example, without a batch dimension, in the order of their names.

        Raises:
            TypeError, ValueError: they are not those that the model takes; the message names them.
        """
        named = dict(example) if isinstance(example, Mapping) else {self._only_name(): example}
        known = {spec.name: spec for spec in self.specs}
        if known and named.keys() != known.keys():
            raise ValueError(f"the model takes {self._said()}; the example has {', '.join(map(str, named)) or 'none'}.")
        return [_tensor(name, named[name], known.get(name), self.batched) for name in sorted(named)]

    def joined(self, examples: Sequence[list[NamedTensor]]) -> list[NamedTensor]:
        """The tensors of a request for several examples of one kind."""
        if not self.batched:
            return examples[0]
        return [
            NamedTensor(parts[0].name, parts[0].datatype, numpy.stack([part.array for part in parts]))
            for parts in zip(*examples, strict=True)
        ]

    def _only_name(self) -> str:
        if self.input_name is not None:
            return self.input_name
        if len(self.specs) > 1:
            raise ValueError(f"the model takes {self._said()}; an example must be a dict with these names.")
        return self.specs[0].name if self.specs else _UNNAMED

    def _said(self) -> str:
        return ", ".join(map(str, self.specs))


def _tensor(name: str, value: Any, spec: TensorSpec | None, batched: bool) -> NamedTensor:
    array = _as_array(value)
    if spec is None:
        datatype = np_to_triton_dtype(array.dtype)
        if datatype is None:
            raise TypeError(f"input {name!r} is of {array.dtype}, which the protocol does not have.")
        return NamedTensor(name, datatype, array)
    shape = spec.shape[1:] if batched else spec.shape
    if array.ndim == 0 and shape in ((1,), (-1,)):  # a number, or a column of a file
        array = array.reshape(1)
    if len(shape) != array.ndim or any(0 <= most != length for most, length in zip(shape, array.shape, strict=True)):
        raise ValueError(f"input {name!r} takes an example of shape {list(shape)}, not {list(array.shape)}.")
    return NamedTensor(name, spec.datatype, _converted(array, spec))


def _as_array(value: Any) -> Array:
    """A value as an array; texts become bytes."""
    if hasattr(value, "detach"):  # a PyTorch tensor, perhaps on a GPU
        value = value.detach().cpu()
    array: Array = numpy.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind not in "USO":
        return array
    flat = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
    wrong = next((item for item in flat if not isinstance(item, bytes)), None)
    if wrong is not None:
        raise TypeError(f"tensors hold numbers, texts or bytes, not {wrong!r:.80}.")
    texts = numpy.empty(len(flat), dtype=object)
    texts[:] = flat
    return texts.reshape(array.shape)


def _converted(array: Array, spec: TensorSpec) -> Array:
    if (spec.datatype == _TEXT) != (array.dtype.kind == "O"):
        raise TypeError(f"input {spec.name!r} is {spec.datatype}, not {array.dtype}.")
    dtype = numpy.dtype(triton_to_np_dtype(spec.datatype))
    if dtype.kind == "V":  # BF16, which numpy itself does not know
        return fitted(array, numpy.float32).astype(dtype)
    return array if array.dtype == dtype else fitted(array, dtype)


def results_of(
    examples: Sequence[Any], outputs: Mapping[str, Array], batched: bool, text: bool, model_id: str
) -> list[PredictionResult | ElementFailure]:
    """The predictions in the outputs of a request: each example's part of the only output, or a dict of its parts.

    Args:
        examples: of the request.
        outputs: by name.
        batched: whether they begin with a batch dimension.
        text: whether to decode tensors of bytes.
        model_id: the model that answered.

    Raises:
        PredictionCountError: there are no outputs, or an output has not one row for each example.
    """
    if not outputs:
        raise PredictionCountError("the model answered without outputs.")
    rows = {name: _rows(name, array, len(examples)) if batched else [array] for name, array in outputs.items()}
    results = to_results(examples, rows if len(rows) > 1 else next(iter(rows.values())), model_id)
    has_bytes = any(array.dtype.kind == "O" for array in outputs.values())
    return [_decoded(one, text) for one in results] if has_bytes else list(results)


def _rows(name: str, array: Array, count: int) -> list[Any]:
    if array.shape[:1] != (count,):
        raise PredictionCountError(
            f"output {name!r} of the model has the shape {list(array.shape)} for {count} example(s): its first "
            "dimension must be theirs. If the model takes one example at a time, make the handler with batched=False."
        )
    return list(array)


def _decoded(result: PredictionResult, text: bool) -> PredictionResult | ElementFailure:
    found = result.inference
    try:
        if isinstance(found, dict):
            return result._replace(inference={name: _text_in(value, text) for name, value in found.items()})
        return result._replace(inference=_text_in(found, text))
    except UnicodeDecodeError as error:
        return ElementFailure(ValueError(f"an output holds bytes that are no text: {error}; use text_outputs=False."))


def _text_in(value: Any, text: bool) -> Any:
    """Bytes, or an array of them, as text, or text as bytes: servers that answer in JSON send texts."""
    if isinstance(value, bytes):
        return value.decode() if text else value
    if isinstance(value, str):
        return value if text else value.encode()
    if getattr(getattr(value, "dtype", None), "kind", "") != "O":
        return value
    changed = numpy.empty(value.size, dtype=object)
    changed[:] = [_text_in(item, text) for item in value.ravel()]
    return changed.reshape(value.shape)

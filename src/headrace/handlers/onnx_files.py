"""What an ONNX file says of its inputs, read without ONNX's packages; numbers of fields are those of onnx.proto."""

from __future__ import annotations

from headrace.core.errors import ConfigurationError
from headrace.core.model_files import KnownModel, ModelFile
from headrace.handlers.protocol_buffers import integers, messages, texts

__all__ = ["recognise"]

_GRAPH = 7
_INITIALIZER, _INPUT = (_GRAPH, 5), (_GRAPH, 11)
_NAME, _NAME_OF_TENSOR = 1, 8
_DIMENSIONS = (2, 1, 2, 1)
"""Of an input: its type, a tensor's, the shape, and each dimension in it."""


def recognise(model: ModelFile) -> KnownModel | None:
    """The handler of arrays; the names of several inputs that each take one number of a row are the columns.

    Raises:
        ConfigurationError: the file is no ONNX model.
    """
    if model.suffix != ".onnx":
        return None
    try:
        inputs = _inputs(memoryview(model.content))
    except ValueError as error:
        raise ConfigurationError(f"it cannot be read as ONNX: {error}.") from error
    if not inputs:
        raise ConfigurationError("it cannot be read as ONNX: it has no inputs.")
    what = f"an ONNX model with {len(inputs)} input{'s'[: len(inputs) != 1]}"
    if len(inputs) > 1:
        return KnownModel("onnx-numpy", what, {"columns_are_inputs": True}, columns=tuple(inputs))
    (shape,) = inputs.values()
    return KnownModel("onnx-numpy", what, width=shape[1] if len(shape) == 2 else None)


def _inputs(content: memoryview) -> dict[str, list[int | None]]:
    """The shapes of the inputs by name; None for a size that is open.

    Old versions of ONNX also list the weights among the inputs.
    """
    weights = {name for tensor in messages(content, *_INITIALIZER) for name in texts(tensor, _NAME_OF_TENSOR)}
    shapes = {texts(one, _NAME)[0]: _shape(one) for one in messages(content, *_INPUT)}
    return {name: shape for name, shape in shapes.items() if name not in weights}


def _shape(value: memoryview) -> list[int | None]:
    sizes = (integers(dimension, 1) for dimension in messages(value, *_DIMENSIONS))
    return [size[0] if size and size[0] > 0 else None for size in sizes]

"""What a SavedModel, or a file of Keras, says of its inputs, read without TensorFlow."""

from __future__ import annotations

from headrace.core.model_files import KnownModel, ModelFile
from headrace.handlers.protocol_buffers import integers, messages, texts

__all__ = ["recognise"]

_SAVED = "saved_model.pb"


def recognise(model: ModelFile) -> KnownModel | None:
    """The handler of arrays, for a SavedModel's folder or a file of Keras; several inputs are columns by name."""
    if _SAVED in model.members and model.is_folder:
        shapes = _shapes_of_signature(memoryview(model.read(_SAVED)))
        what = "a SavedModel of TensorFlow"
    elif model.suffix in (".keras", ".h5", ".hdf5"):
        layers = model.settings("config.json").get("config", {}).get("layers", ())
        inputs = [layer["config"] for layer in layers if layer["class_name"] == "InputLayer"]
        shapes = {one.get("name", ""): one["batch_shape"] for one in inputs}
        what = "a model of Keras"
    else:
        return None
    if len(shapes) > 1:
        named = {"columns_are_inputs": True}
        return KnownModel("tensorflow-numpy", f"{what} with {len(shapes)} inputs", named, columns=tuple(shapes))
    width = next((shape[1] for shape in shapes.values() if len(shape) == 2), None)
    return KnownModel("tensorflow-numpy", what, width=width)


def _shapes_of_signature(content: memoryview) -> dict[str, list[int | None]]:
    """The shapes of the inputs of a SavedModel's serving signature; the fields are those of saved_model.proto."""
    for signature in messages(content, 2, 5):
        if texts(signature, 1) == ["serving_default"]:
            return {texts(one, 1)[0]: _shape(one) for one in messages(signature, 2, 1)}
    return {}


def _shape(value: memoryview) -> list[int | None]:
    return [_size(integers(dimension, 1)) for dimension in messages(value, 2, 3, 2)]


def _size(sizes: list[int]) -> int | None:
    """The size of a dimension; None if it is open, which is -1 there."""
    return sizes[0] if sizes and 0 < sizes[0] < 1 << 63 else None

"""Embeds texts with sentence-transformers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.core.conversion import only_text, text_length, to_results
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.files import open_uri
from headrace.core.result import PredictionResult
from headrace.handlers.base import UriModelHandler

with extra_required("sentence-transformers"):
    import numpy
    import sentence_transformers
    import torch

    from headrace.handlers.torch_models import load_onto, owned, refuse_two_devices

__all__ = ["SentenceTransformerModelHandler"]

_CALIBRATED = ("int8", "uint8")
"""Precisions whose values depend on the range of each dimension; binary ones depend on the sign only."""


class SentenceTransformerModelHandler(UriModelHandler[str, Any]):
    """Embeds texts: an example's prediction is a 1-D numpy array of 32-bit floats.

    ``inference_args`` go to the model's ``encode``, for example ``normalize_embeddings=True`` or ``prompt_name``. The
    precisions ``"int8"`` and ``"uint8"`` need ``quantization_ranges``: otherwise ``encode`` would use the ranges of
    each batch, and a text's vector would depend on its neighbours.

    Args:
        model_name: id of a model on the Hugging Face hub, or the folder of a saved one.
        device: ``"CPU"``, ``"GPU"`` (CUDA's), or one of PyTorch's, such as ``"cuda:1"``; if it cannot be used, the CPU,
            with a warning in the log. None: the GPU if there is one.
        max_seq_length: number of tokens at which texts are cut off; None: the model's own.
        load_model_args: keyword arguments for ``SentenceTransformer``; a ``device`` among them, or a ``device_map`` in
            its ``model_kwargs``, replaces the argument ``device``.
        quantization_ranges: the smallest and the largest value of each dimension, as an array of shape (2, dimensions),
            or the path or URI of a ``.npy`` file with it. Compute it from embeddings of typical texts:
            ``numpy.stack([embeddings.min(axis=0), embeddings.max(axis=0)])``.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: the name is missing, the device is unknown or given twice, or the ranges are not ranges.
        OSError: the file of the ranges cannot be opened.
    """

    _metrics_namespace = "BeamML_SentenceTransformer"
    _model_class = "SentenceTransformer"

    def __init__(
        self,
        model_name: str | os.PathLike[str],
        *,
        device: str | None = None,
        max_seq_length: int | None = None,
        load_model_args: dict[str, Any] | None = None,
        quantization_ranges: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(model_name or "", **options)
        if not model_name:
            raise ConfigurationError("model_name must name a model, such as 'all-MiniLM-L6-v2', or its folder.")
        self._max_seq_length = max_seq_length
        self._load_model_args = load_model_args or {}
        refuse_two_devices(device, self._load_model_args, "load_model_args")
        self._device = device
        self._ranges: Any = None if quantization_ranges is None else _as_ranges(quantization_ranges)

    def load_model(self) -> Any:
        """Loads the model in evaluation mode onto its device, or else the CPU, with a warning in the log."""
        return load_onto(self._device, self._load, self._load_model_args)

    def run_inference(
        self, batch: Sequence[str], model: Any, inference_args: dict[str, Any] | None = None
    ) -> list[PredictionResult]:
        """Embeds the texts, in one batch unless ``inference_args`` have a ``batch_size``."""
        self.validate_inference_args(inference_args)
        for text in batch:
            if not isinstance(text, str):
                raise TypeError(f"an example must be a text, not {type(text).__qualname__}.")
        options = {"batch_size": len(batch), "show_progress_bar": False, **(inference_args or {})}
        precision = options.pop("precision", None) if options.get("precision") in _CALIBRATED else None
        vectors = model.encode(list(batch), **options)
        if precision:
            vectors = self._quantized(vectors, precision)
        if isinstance(vectors, numpy.ndarray):
            return to_results(batch, [vector.copy() for vector in vectors], self._model_uri)
        return to_results(batch, list(map(owned, vectors)), self._model_uri)

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Raises ConfigurationError for a precision that needs ``quantization_ranges`` if there are none."""
        precision = (inference_args or {}).get("precision")
        if precision in _CALIBRATED and self._ranges is None:
            raise ConfigurationError(
                f"precision={precision!r} needs quantization_ranges, or a text's vector would depend on others: "
                "numpy.stack([embeddings.min(axis=0), embeddings.max(axis=0)]) of the embeddings of typical texts."
            )

    def default_length_fn(self) -> Callable[[Any], float] | None:
        """About the tokens of a text: those of a batch are padded to the longest."""
        return text_length

    def example_from_row(self, row: Mapping[str, Any]) -> str:
        """The text in a row's only column; ValueError if there are several, or it is no text."""
        return only_text(row)

    def _quantized(self, vectors: Any, precision: str) -> Any:
        """Vectors from ``encode`` as whole numbers; arrays stay arrays, tensors tensors."""
        given, wanted = self._ranges.shape[1], vectors[0].shape[-1]
        if given != wanted:
            raise ValueError(
                f"quantization_ranges are for vectors of length {given}, and these are of length {wanted}."
            )
        quantize = sentence_transformers.util.quantize_embeddings
        if isinstance(vectors, numpy.ndarray):
            return quantize(vectors, precision, self._ranges)
        return [torch.from_numpy(quantize(one[None], precision, self._ranges)[0]) for one in vectors]

    def _load(self, device: torch.device | None) -> Any:
        place = {"device": str(device)} if device else {}
        make = getattr(sentence_transformers, self._model_class)
        model = make(self._model_uri, **place, **self._load_model_args)
        if self._max_seq_length is not None:
            model.max_seq_length = self._max_seq_length
        return model.eval().requires_grad_(False)


class CrossEncoderModelHandler(SentenceTransformerModelHandler):
    """Scores pairs of texts; ``inference_args`` go to the model's ``predict``."""

    _model_class = "CrossEncoder"

    def run_inference(
        self, batch: Sequence[Any], model: Any, inference_args: dict[str, Any] | None = None
    ) -> list[PredictionResult]:
        """Scores the pairs, in one batch."""
        options = {"batch_size": len(batch), "show_progress_bar": False, **(inference_args or {})}
        return to_results(batch, list(map(float, model.predict(list(batch), **options))), self._model_uri)

    def _load(self, device: torch.device | None) -> Any:
        model = super()._load(device)
        if model.num_labels != 1:
            raise ConfigurationError(
                f"{self._model_uri} is no cross-encoder: it has {model.num_labels} labels instead of 1, so it has no "
                "score for a pair."
            )
        return model


def _as_ranges(given: Any) -> Any:
    try:
        if isinstance(given, str | os.PathLike):
            with open_uri(os.fspath(given)) as file:
                given = numpy.load(file, allow_pickle=False)
        ranges = numpy.asarray(given)
    except (ValueError, EOFError) as error:
        raise ConfigurationError(f"quantization_ranges are no array: {error}") from error
    is_table = ranges.dtype.kind in "iuf" and ranges.ndim == 2 and len(ranges) == 2
    if not is_table or not (ranges[0] <= ranges[1]).all():
        raise ConfigurationError(
            "quantization_ranges must be an array of shape (2, dimensions) with the smallest and the largest value of "
            f"each dimension, not {ranges.dtype} of shape {ranges.shape}."
        )
    return ranges.astype(numpy.float32)

"""Runs Hugging Face pipelines and models of transformers; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from headrace.core.beam_compat import with_beams_attributes
from headrace.core.conversion import predict_stacked, text_length, to_results
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.result import PredictionResult
from headrace.handlers.base import FrameworkHandler, NoModelError, TakesColumns

with extra_required("huggingface"):
    import torch
    import transformers

    from headrace.handlers.huggingface_models import (
        PipelineTask,
        answers_alike_in_batches,
        as_class,
        by_example,
        most_numbers,
        pretrained,
        reads_text,
        settled,
        takes_token_ids,
    )
    from headrace.handlers.torch_models import (
        KeyedTensorExamples,
        TensorExamples,
        call_model,
        column_dtypes,
        device_named,
        device_of,
        load_onto,
        owned,
        refuse_two_devices,
    )

__all__ = [
    "HuggingFaceModelHandlerKeyedTensor",
    "HuggingFaceModelHandlerTensor",
    "HuggingFacePipelineModelHandler",
    "PipelineTask",
    "default_keyed_tensor_inference_fn",
    "default_pipeline_inference_fn",
    "default_tensor_inference_fn",
]


TensorT = TypeVar("TensorT")

InferenceFn = Callable[
    [Sequence[TensorT], Any, str, "dict[str, Any] | None", "str | None"],
    Iterable[PredictionResult],
]
TensorInferenceFn = InferenceFn[torch.Tensor]
KeyedTensorInferenceFn = InferenceFn[dict[str, torch.Tensor]]
PipelineInferenceFn = Callable[[Sequence[Any], Any, dict[str, Any]], Iterable[Any]]

_OF_THE_TRANSFORM = {"inference_args": "give them to the transform: RunInference(handler, inference_args=...)"}


def default_tensor_inference_fn(
    batch: Sequence[Any],
    model: Any,
    device: str,
    inference_args: dict[str, Any] | None = None,
    model_id: str | None = None,
) -> Iterable[PredictionResult]:
    """Calls the model on the stacked examples, where its first weights are, whatever the ``device``.

    Tensors are converted to what the model's first argument takes. Of examples that are dicts, each name's stacked
    tensors are the keyword argument of that name. Examples of different dtypes or shapes run in groups of equal ones.
    If the answer has several outputs, each example gets a dict of those that have a row for it, without a loss or a
    cache of the whole batch.

    Raises:
        ValueError: an example for a model of token ids has a fractional value.
    """
    ask = partial(_asked, model=model, device=device, inference_args=inference_args)
    predictions = predict_stacked(batch, torch.stack, ask, partial(by_example, ignored=_of_all(model)))
    return to_results(batch, predictions, model_id)


def _asked(inputs: Any, model: Any, device: str, inference_args: dict[str, Any] | None) -> Any:
    inputs = settled(inputs, model) if isinstance(inputs, torch.Tensor) else inputs
    return call_model(inputs, model, device_of(model, device), inference_args)


def _of_all(model: Any) -> Sequence[str]:
    """The names of outputs that are not of the examples."""
    return getattr(getattr(model, "config", None), "keys_to_ignore_at_inference", None) or ()


default_keyed_tensor_inference_fn = default_tensor_inference_fn
"""Beam's name for dicts of tensors."""


def default_pipeline_inference_fn(
    batch: Sequence[Any], pipeline: Any, inference_args: dict[str, Any] | None = None
) -> Iterable[Any]:
    """The pipeline's answer for each example: a dict or a list of dicts, depending on the task.

    The examples share a batch if that leaves their answers alone, unless ``inference_args``, or the pipeline, have a
    ``batch_size``.
    """
    arguments = dict(inference_args or {})
    is_decided = "batch_size" in arguments or getattr(pipeline, "_batch_size", None) is not None
    if len(batch) > 1 and not is_decided and answers_alike_in_batches(pipeline):
        arguments["batch_size"] = len(batch)
    answer = pipeline(list(batch), **arguments)
    # For a list of one example, some tasks return its answer without a list; that of fill-mask is itself a list.
    is_list = isinstance(answer, list) and (len(answer) == 1 and getattr(pipeline, "task", None) != "fill-mask")
    return answer if is_list or len(batch) > 1 else [answer]


@with_beams_attributes
class _HuggingFaceModelHandler(TakesColumns[TensorT, Any]):
    models_have_ids: ClassVar[bool] = True
    """Whether a model's URI may be its id on a hub, so that no local file needs to exist."""
    _ignored_arguments: ClassVar[Mapping[str, str]] = _OF_THE_TRANSFORM

    _framework = "pt"
    _inference_fn: InferenceFn[TensorT]

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        model_class: type[Any] | str,
        device: str = "CPU",
        *,
        inference_fn: InferenceFn[TensorT] | None = None,
        load_model_args: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model_uri or "", inference_fn, **options)
        if not (model_uri and model_class):
            raise NoModelError(
                f"{type(self).__qualname__} needs model_uri and model_class, such as 'bert-base-uncased' and "
                f"transformers.AutoModel, not {model_uri!r} and {model_class!r}."
            )
        self._model_class = as_class(model_class)
        device_named(device)
        self._device = device
        self._load_model_args = load_model_args or {}

    def load_model(self) -> Any:
        """Loads the model in evaluation mode onto its device, those of its ``device_map``, or else the CPU."""
        return load_onto(self._device, self._load, self._load_model_args)

    def _called(self, batch: Any, model: Any, inference_args: dict[str, Any] | None) -> Iterable[PredictionResult]:
        device = "CPU" if device_of(model, self._device).type == "cpu" else "GPU"
        return self._inference_fn(batch, model, device, inference_args or {}, self._model_uri)

    def _answer(self, rows: Any, model: Any, inference_args: dict[str, Any] | None) -> Any:
        if not self.columns_equal_rows():
            return super()._answer(rows, model, inference_args)
        count = len(rows if isinstance(rows, torch.Tensor) else next(iter(rows.values())))
        return by_example(_asked(rows, model, self._device, inference_args), count, _of_all(model))

    def default_length_fn(self) -> Callable[[Any], float] | None:
        """For models of token ids, how many an example has: only examples of one shape share a call."""
        return most_numbers if takes_token_ids(self._model_class) else None

    def _load(self, device: torch.device | None) -> Any:
        return pretrained(self._model_class, self._model_uri, device, self._load_model_args)


class HuggingFaceModelHandlerKeyedTensor(KeyedTensorExamples, _HuggingFaceModelHandler[dict[str, torch.Tensor]]):
    """Predicts for dicts of tensors named as the model's arguments, such as a tokenizer makes.

    Args:
        model_uri: id of a model on the Hugging Face hub, or the folder of a saved one.
        model_class: a class with ``from_pretrained``, such as ``transformers.AutoModelForSequenceClassification``, or
            the name of one in transformers.
        framework: ``"pt"``, PyTorch.
        device: ``"CPU"``, ``"GPU"`` (CUDA's), or one of PyTorch's, such as ``"cuda:1"``; if it cannot be used, the CPU,
            with a warning in the log.
        inference_fn: ``(batch, model, device, inference_args, model_id)`` returns a PredictionResult for each example;
            ``device`` is the model's, ``"CPU"`` or ``"GPU"``. By default ``default_keyed_tensor_inference_fn``.
        load_model_args: keyword arguments for ``from_pretrained``; a ``device_map`` among them decides the device.
        dtypes: the dtype of columns of a file whose name does not imply it, such as ``{"words": "int64"}``. By default
            columns named like token ids and masks are 64-bit integers, all others 32-bit floats.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: the device, the framework or the class cannot be used; or the model or the class is
            missing (then it is also a RuntimeError).
    """

    _metrics_namespace = "BeamML_HuggingFaceModelHandler_KeyedTensor"
    _default_inference_fn = staticmethod(default_keyed_tensor_inference_fn)

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        model_class: type[Any] | str,
        framework: str,
        device: str = "CPU",
        *,
        inference_fn: KeyedTensorInferenceFn | None = None,
        load_model_args: dict[str, Any] | None = None,
        dtypes: Mapping[str, torch.dtype | str] | None = None,
        **options: Any,
    ) -> None:
        self._dtypes = column_dtypes(dtypes)
        if framework != "pt":
            raise ConfigurationError(f"framework must be 'pt', since transformers is PyTorch's now, not {framework!r}.")
        super().__init__(
            model_uri, model_class, device, inference_fn=inference_fn, load_model_args=load_model_args, **options
        )


class HuggingFaceModelHandlerTensor(TensorExamples, _HuggingFaceModelHandler[torch.Tensor]):
    """Predicts for tensors: an example is the model's first argument, without the batch dimension.

    The default ``inference_fn`` converts examples to what that argument takes: token ids to 64-bit integers; pixels,
    sounds and embeddings to the model's float dtype. If neither the argument's name nor the model's first weights (an
    embedding's) tell what it takes, 64-bit floats, as in rows of files, become the model's float dtype; everything else
    is left alone.

    Args and errors are those of ``HuggingFaceModelHandlerKeyedTensor``, without ``framework`` and ``dtypes``.
    """

    _of_rows = "float64"  # which an inference_fn of the user's has to convert
    _metrics_namespace = "BeamML_HuggingFaceModelHandler_Tensor"
    _default_inference_fn = staticmethod(default_tensor_inference_fn)


@with_beams_attributes
class HuggingFacePipelineModelHandler(FrameworkHandler[Any, Any]):
    """Runs a Hugging Face pipeline on texts, paths, images or whatever its task takes.

    Args:
        task: a task that the installed transformers knows, by its name or as a ``PipelineTask``.
        model: id of a model on the Hugging Face hub, or the folder of a saved one; empty: the one that transformers
            chooses for the task. If the hub knows the model's task, ``task`` may be empty.
        device: ``"CPU"``, ``"GPU"`` (CUDA's), or one of PyTorch's, such as ``"cuda:1"``; if it cannot be used, the CPU,
            with a warning in the log. None: the GPU if there is one.
        inference_fn: ``(batch, pipeline, inference_args)`` returns one answer for each example; by default
            ``default_pipeline_inference_fn``.
        load_pipeline_args: keyword arguments for ``transformers.pipeline``; a ``device`` or ``device_map`` among them
            replaces the argument ``device``.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: the device is unknown, or given twice; or there is neither a task nor a model (then it is
            also a RuntimeError).
    """

    _ignored_arguments: ClassVar[Mapping[str, str]] = _OF_THE_TRANSFORM
    _framework = "pt"
    _metrics_namespace = "BeamML_HuggingFacePipelineModelHandler"
    _default_inference_fn = staticmethod(default_pipeline_inference_fn)

    def __init__(
        self,
        task: str | PipelineTask = "",
        model: str | os.PathLike[str] = "",
        *,
        device: str | None = None,
        inference_fn: PipelineInferenceFn = default_pipeline_inference_fn,
        load_pipeline_args: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, inference_fn, **options)
        if not (task or model):
            raise NoModelError(f"{type(self).__qualname__} needs a task, such as 'fill-mask', or a model.")
        self._task = task.value if isinstance(task, PipelineTask) else task
        self._load_pipeline_args = load_pipeline_args or {}
        refuse_two_devices(device, self._load_pipeline_args, "load_pipeline_args")
        self._device = device

    def load_model(self) -> Any:
        """Loads the pipeline onto its device, or else the CPU, with a warning in the log."""
        return load_onto(self._device, self._load, self._load_pipeline_args)

    def _called(self, batch: Any, model: Any, inference_args: dict[str, Any] | None) -> Iterable[PredictionResult]:
        results = to_results(batch, self._inference_fn(batch, model, inference_args or {}), self._model_uri or None)
        return [result._replace(inference=owned(result.inference)) for result in results]

    def default_length_fn(self) -> Callable[[Any], float] | None:
        """Of texts, if the task takes texts and writes none."""
        return text_length if reads_text(self._task) else None

    def _load(self, device: torch.device | None) -> Any:
        where = {"device": device} if device else {}
        return transformers.pipeline(self._task or None, self._model_uri or None, **where, **self._load_pipeline_args)

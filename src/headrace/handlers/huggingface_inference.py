"""Runs Hugging Face pipelines and models of transformers; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from headrace.core.answer import predictions_of
from headrace.core.conversion import FLOAT32_MAX, in_groups, to_numbers, to_results
from headrace.core.errors import ConfigurationError, MissingExtraError
from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult
from headrace.handlers.cards import CARDS
from headrace.handlers.huggingface_classes import as_class, no_tensorflow
from headrace.handlers.huggingface_tasks import PipelineTask
from headrace.handlers.torch_tensors import (
    CPU,
    DEVICES,
    answer_to,
    by_example,
    column_dtypes,
    column_tensor,
    cuda_is_usable,
    device_named,
    device_of,
    kind_of,
    load_onto,
    num_bytes,
    owned,
    settled,
)

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "huggingface") from error
try:
    import transformers
except ImportError as error:
    raise MissingExtraError("transformers", "huggingface") from error

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
PipelineInferenceFn = Callable[[Sequence[Any], Any, dict[str, Any]], Iterable[Any]]


class _IncompleteError(ConfigurationError, RuntimeError):
    """Arguments that name no model; a RuntimeError, as Beam raises here."""


def default_tensor_inference_fn(
    batch: Sequence[torch.Tensor],
    model: Any,
    device: str,
    inference_args: dict[str, Any] | None = None,
    model_id: str | None = None,
) -> Iterable[PredictionResult]:
    """Calls the model on the stacked examples, where its first weights are, whatever the ``device``.

    Examples of different dtypes or shapes are run in groups of equal ones. Of an answer with several outputs each
    example gets a dict of those that have a row for it: not a loss or a cache of the whole batch.
    """
    return default_keyed_tensor_inference_fn(batch, model, device, inference_args, model_id)


def default_keyed_tensor_inference_fn(
    batch: Sequence[Any],
    model: Any,
    device: str,
    inference_args: dict[str, Any] | None = None,
    model_id: str | None = None,
) -> Iterable[PredictionResult]:
    """As ``default_tensor_inference_fn``, with each name's stacked tensors as the keyword argument of that name."""
    place = device_of(model, device_named(device))
    of_all = getattr(getattr(model, "config", None), "keys_to_ignore_at_inference", None) or ()

    def predict(alike: Sequence[Any]) -> list[Any]:
        return by_example(answer_to(alike, place, model, inference_args), len(alike), of_all)

    return to_results(batch, in_groups(batch, kind_of, predict), model_id)


def default_pipeline_inference_fn(
    batch: Sequence[Any], pipeline: Any, inference_args: dict[str, Any] | None = None
) -> Iterable[Any]:
    """What the pipeline says of each example: a dict, or a list of them, as the task has it."""
    answer = pipeline(list(batch), **(inference_args or {}))
    # Of a list of one, some tasks give that one's answer and not a list with it; fill-mask's is a list itself.
    is_list = isinstance(answer, list) and (len(answer) == 1 and getattr(pipeline, "task", None) != "fill-mask")
    return answer if is_list or len(batch) > 1 else [answer]


class _HuggingFaceModelHandler(ModelHandler[TensorT, PredictionResult, Any]):
    """What the two handlers of tensors have in common: the model and its device."""

    models_have_ids: ClassVar[bool] = True
    """Whether a model's URI may be its id on a hub, of which there is no file here."""

    _default_inference_fn: ClassVar[Callable[..., Iterable[PredictionResult]]]

    def _configure(
        self,
        model_uri: str | os.PathLike[str],
        model_class: Any,
        device: str,
        inference_fn: InferenceFn[TensorT] | None,
        load_model_args: dict[str, Any] | None,
    ) -> None:
        if not (model_uri and model_class):
            raise _IncompleteError(
                f"{type(self).__qualname__} needs model_uri and model_class, such as 'bert-base-uncased' and "
                f"transformers.AutoModel, not {model_uri!r} and {model_class!r}."
            )
        self._model_uri = os.fspath(model_uri)
        self._model_class = as_class(model_class)
        self._device = device_named(device)
        self._inference_fn = inference_fn or self._default_inference_fn
        self._load_model_args = load_model_args or {}

    def load_model(self) -> Any:
        """The model, in evaluation mode, on its device, or on those of its ``device_map``.

        A GPU that cannot be used, or onto which the model does not load, is replaced by the CPU, with a warning in the
        log.
        """
        if self._load_model_args.get("device_map") is not None:
            return self._load(None)
        return load_onto(self._device, self._load)

    def run_inference(
        self, batch: Sequence[TensorT], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Predicts, where the model's first weights are."""
        device = "CPU" if device_of(model, self._device) == CPU else "GPU"
        return self._inference_fn(batch, model, device, inference_args or {}, self._model_uri)

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` load another model; ``None`` leaves it as it is."""
        self._model_uri = model_path or self._model_uri

    def _load(self, device: torch.device | None) -> Any:
        """Loads and moves, but not what accelerate has put where it belongs."""
        model = self._model_class.from_pretrained(self._model_uri, **self._load_model_args)
        if device is not None and getattr(model, "hf_device_map", None) is None:
            model = model.to(device)
        return model.eval().requires_grad_(False)


class HuggingFaceModelHandlerKeyedTensor(_HuggingFaceModelHandler[dict[str, torch.Tensor]]):
    """Predicts for dicts of tensors, whose names are those of the model's arguments, as a tokenizer makes them.

    Args:
        model_uri: id of a model on the Hugging Face hub, or the folder of one that was saved.
        model_class: a class with ``from_pretrained``, such as ``transformers.AutoModelForSequenceClassification``, or
            the name of one in transformers.
        framework: ``"pt"``, PyTorch.
        device: ``"CPU"``, or ``"GPU"`` to use CUDA where it can be used and else, with a warning in the log, the CPU.
        inference_fn: ``(batch, model, device, inference_args, model_id)`` gives a PredictionResult for each example,
            where ``device`` says where the model is, ``"CPU"`` or ``"GPU"``; by default
            ``default_keyed_tensor_inference_fn``.
        load_model_args: keyword arguments for ``from_pretrained``; with a ``device_map`` that decides on the device.
        dtypes: of columns of a file that are neither 32-bit floats nor named as token ids and masks are, such as
            ``{"words": "int64"}``.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: the device, the framework or the class is none that can be used; or (then it is a
            RuntimeError too) there is no model or no class.
    """

    card = CARDS["huggingface_inference.HuggingFaceModelHandlerKeyedTensor"]

    _default_inference_fn = staticmethod(default_keyed_tensor_inference_fn)

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        model_class: Any,
        framework: str,
        device: str = "CPU",
        *,
        inference_fn: InferenceFn[dict[str, torch.Tensor]] | None = None,
        load_model_args: dict[str, Any] | None = None,
        dtypes: Mapping[str, torch.dtype | str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._dtypes = column_dtypes(dtypes)
        if framework == "tf":
            raise no_tensorflow("framework='tf'")
        if framework != "pt":
            raise ConfigurationError(f"framework must be 'pt', not {framework!r}.")
        self._configure(model_uri, model_class, device, inference_fn, load_model_args)

    def get_num_bytes(self, batch: Sequence[dict[str, torch.Tensor]]) -> int:
        """Bytes of the tensors' elements."""
        return sum(num_bytes(tensor) for example in batch for tensor in example.values())

    def get_metrics_namespace(self) -> str:
        """Beam's for this handler."""
        return "BeamML_HuggingFaceModelHandler_KeyedTensor"

    def example_from_row(self, row: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """A row's columns as tensors: a number without dimensions, a list as a 1-D tensor.

        They are 64-bit integers where the column is named as token ids and masks are (``input_ids``,
        ``attention_mask``, ...), what ``dtypes`` says, and else 32-bit floats; never what a row's values look like.

        Raises:
            ValueError: a value is no number that the column's dtype can hold; names the column and the value.
        """
        return {column: column_tensor(column, value, self._dtypes) for column, value in row.items()}


class HuggingFaceModelHandlerTensor(_HuggingFaceModelHandler[torch.Tensor]):
    """Predicts for tensors: an example is the model's first argument, without the batch dimension.

    All of them become what that argument takes: token ids 64-bit integers; pixels, sounds and embeddings the model's
    floats. Where neither the argument's name nor the model's first weights (an embedding's) say what it takes, 64-bit
    floats, as rows of files are, become the model's floats, and all else stays as it is.

    Args and errors are those of ``HuggingFaceModelHandlerKeyedTensor``, but that there is no ``framework`` and no
    ``dtypes``, and the default ``inference_fn`` is ``default_tensor_inference_fn``.
    """

    card = CARDS["huggingface_inference.HuggingFaceModelHandlerTensor"]

    _default_inference_fn = staticmethod(default_tensor_inference_fn)

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        model_class: Any,
        device: str = "CPU",
        *,
        inference_fn: InferenceFn[torch.Tensor] | None = None,
        load_model_args: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._configure(model_uri, model_class, device, inference_fn, load_model_args)

    def run_inference(
        self, batch: Sequence[torch.Tensor], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Predicts, where the model's first weights are; the results hold the examples as they were given.

        Raises:
            ValueError: an example with a fraction is given to a model of token ids.
        """
        tensors = settled(batch, model)
        given = {id(tensor): example for tensor, example in zip(tensors, batch, strict=True)}
        for result in predictions_of(super().run_inference(tensors, model, inference_args), "inference_fn"):
            is_fed = isinstance(result, PredictionResult) and id(result.example) in given
            yield result._replace(example=given[id(result.example)]) if is_fed else result

    def get_num_bytes(self, batch: Sequence[torch.Tensor]) -> int:
        """Bytes of the tensors' elements."""
        return sum(map(num_bytes, batch))

    def get_metrics_namespace(self) -> str:
        """Beam's for this handler."""
        return "BeamML_HuggingFaceModelHandler_Tensor"

    def example_from_row(self, row: Mapping[str, Any]) -> torch.Tensor:
        """A row's numbers as a 1-D tensor of 64-bit floats, which become what the model takes when it is there.

        Raises:
            ValueError: a value is no finite 32-bit number; names the column and the value.
        """
        return torch.tensor(to_numbers(row, FLOAT32_MAX), dtype=torch.float64)


class HuggingFacePipelineModelHandler(ModelHandler[Any, PredictionResult, Any]):
    """Runs a Hugging Face pipeline: texts, paths or images in, what the task makes of them out.

    Args:
        task: a task that the installed transformers knows, by its name or as a ``PipelineTask``.
        model: id of a model on the Hugging Face hub, or the folder of one that was saved; empty: the one that
            transformers chooses for the task. Where it names a model on the hub that says its task, ``task`` may be
            empty.
        device: ``"CPU"``, or ``"GPU"`` to use CUDA where it can be used and else, with a warning in the log, the CPU;
            None: the GPU if there is one.
        inference_fn: ``(batch, pipeline, inference_args)`` gives one answer for each example; by default
            ``default_pipeline_inference_fn``.
        load_pipeline_args: keyword arguments for ``transformers.pipeline``; a ``device`` or ``device_map`` among them
            takes the place of the argument ``device``.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: the device is another one, or given twice; or (then it is a RuntimeError too) there is
            neither a task nor a model.
    """

    card = CARDS["huggingface_inference.HuggingFacePipelineModelHandler"]

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
        super().__init__(**options)
        if not (task or model):
            raise _IncompleteError(f"{type(self).__qualname__} needs a task, such as 'fill-mask', or a model.")
        self._task = task.value if isinstance(task, PipelineTask) else task
        self._model = os.fspath(model)
        self._device = device_named(str(device).upper()) if device else None
        self._inference_fn = inference_fn
        self._load_pipeline_args = load_pipeline_args or {}
        self._is_placed = bool(_places(self._load_pipeline_args))
        if device and self._is_placed:
            raise ConfigurationError(
                f"load_pipeline_args say where the pipeline goes ({', '.join(_places(self._load_pipeline_args))}), so "
                f"device={device!r} would have no effect; leave one of them out."
            )

    def load_model(self) -> Any:
        """The pipeline, on its device.

        A GPU that cannot be used, or onto which the model does not load, is replaced by the CPU, with a warning in the
        log.
        """
        if self._is_placed:
            return self._load()
        device = self._device or DEVICES["GPU" if cuda_is_usable() else "CPU"]
        return load_onto(device, lambda device: self._load(device=device))

    def run_inference(
        self, batch: Sequence[Any], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Runs the pipeline on the examples."""
        answers = self._inference_fn(batch, model, inference_args or {})
        results = to_results(batch, answers, self._model or None)
        return [result._replace(inference=owned(result.inference)) for result in results]

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` load another model for the same task; ``None`` leaves it as it is."""
        self._model = model_path or self._model

    def get_metrics_namespace(self) -> str:
        """Beam's for this handler."""
        return "BeamML_HuggingFacePipelineModelHandler"

    def _load(self, **where: Any) -> Any:
        return transformers.pipeline(self._task or None, self._model or None, **where, **self._load_pipeline_args)


def _places(load_pipeline_args: Mapping[str, Any]) -> list[str]:
    """Which of the arguments of a pipeline say where it goes."""
    given = {**(load_pipeline_args.get("model_kwargs") or {}), **load_pipeline_args}
    return [name for name in ("device", "device_map") if given.get(name) is not None]

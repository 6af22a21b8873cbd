"""Which models and pipelines of Hugging Face run here, what they take and answer, and which may have batches."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from numbers import Integral, Real
from typing import Any
from weakref import WeakKeyDictionary

from headrace.core.errors import ConfigurationError, PredictionCountError, extra_required

with extra_required("huggingface"):
    import torch
    import transformers

    from headrace.handlers.torch_models import is_of_ids, rows

_LOGGER = logging.getLogger(__name__)

_TEXTS = {
    "feature-extraction",
    "fill-mask",
    "ner",
    "question-answering",
    "sentiment-analysis",
    "text-classification",
    "token-classification",
    "zero-shot-classification",
}
_FLOATS = ("_values", "_features", "_embeds")
"""Suffixes of the names of arguments that take floats."""
_NO_TEXT = re.compile("Image|Vision|Video|Audio|Speech|Depth|Detection|Segment|Mask(?!ed)|Keypoint|CTC|Backbone")


class PipelineTask(str, Enum):
    """Tasks of Hugging Face pipelines by Beam's names; which of them exist depends on the version of transformers.

    Any other task can be given as a string.
    """

    AudioClassification = "audio-classification"
    AutomaticSpeechRecognition = "automatic-speech-recognition"
    Conversational = "conversational"
    DepthEstimation = "depth-estimation"
    DocumentQuestionAnswering = "document-question-answering"
    FeatureExtraction = "feature-extraction"
    FillMask = "fill-mask"
    ImageClassification = "image-classification"
    ImageSegmentation = "image-segmentation"
    ImageToText = "image-to-text"
    MaskGeneration = "mask-generation"
    NER = "ner"
    ObjectDetection = "object-detection"
    QuestionAnswering = "question-answering"
    SentimentAnalysis = "sentiment-analysis"
    Summarization = "summarization"
    TableQuestionAnswering = "table-question-answering"
    TextClassification = "text-classification"
    TextGeneration = "text-generation"
    Text2TextGeneration = "text2text-generation"
    TextToAudio = "text-to-audio"
    TokenClassification = "token-classification"
    Translation = "translation"
    VideoClassification = "video-classification"
    VisualQuestionAnswering = "visual-question-answering"
    VQA = "vqa"
    ZeroShotAudioClassification = "zero-shot-audio-classification"
    ZeroShotClassification = "zero-shot-classification"
    ZeroShotImageClassification = "zero-shot-image-classification"
    ZeroShotObjectDetection = "zero-shot-object-detection"
    Translation_XX_to_YY = "translation_XX_to_YY"


def as_class(model_class: Any) -> Any:
    """A class whose models run with PyTorch; a string names one in transformers."""
    found = getattr(transformers, model_class, None) if isinstance(model_class, str) else model_class
    if not hasattr(found, "from_pretrained"):
        raise ConfigurationError(
            "model_class must be a class of PyTorch models with from_pretrained, or the name of one in transformers: "
            f"{model_class!r}."
        )
    return found


def pretrained(model_class: Any, uri: str, device: torch.device | None, arguments: Mapping[str, Any]) -> Any:
    """A model in evaluation mode; on the device, unless it is None or accelerate has placed the model already."""
    model = model_class.from_pretrained(uri, **arguments)
    if device is not None and getattr(model, "hf_device_map", None) is None:
        model = model.to(device)
    return model.eval().requires_grad_(False)


def takes_token_ids(model_class: Any) -> bool:
    """Whether models of the class take token ids, as far as it, or its name, says."""
    takes = getattr(model_class, "main_input_name", "input_ids")
    return takes == "input_ids" and not _NO_TEXT.search(getattr(model_class, "__name__", ""))


def settled(batch: torch.Tensor, model: Any) -> torch.Tensor:
    """Converts a batch to the dtype that the model's first argument takes; ValueError for an id that is not whole.

    Token ids become 64-bit integers. Pixels, sounds and embeddings get the model's float dtype, and so do 64-bit floats
    if it is unknown what the argument takes.
    """
    wanted = _wanted(model) or (_float_of(model) if batch.dtype == torch.float64 else batch.dtype)
    converted = batch.to(wanted)  # itself, if it is of that dtype
    if batch.is_floating_point() and not wanted.is_floating_point and not torch.equal(converted.to(batch.dtype), batch):
        wrong = batch[converted.to(batch.dtype) != batch][:1].tolist()
        raise ValueError(f"the model takes whole numbers, such as token ids, and an example holds {wrong}.")
    return converted


def _wanted(model: Any) -> torch.dtype | None:
    """The dtype of the first argument: by its name, or integers if the first weights are an embedding's."""
    parameters = [name for name in inspect.signature(getattr(model, "forward", model)).parameters if name != "self"]
    if parameters and parameters[0].endswith(_FLOATS):
        return _float_of(model)
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    first = next((module for module in modules if module._parameters), None)
    has_ids = (parameters and is_of_ids(parameters[0])) or isinstance(first, torch.nn.Embedding)
    return torch.int64 if has_ids else None


def _float_of(model: Any) -> torch.dtype:
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return next((one.dtype for one in weights if one.is_floating_point()), torch.float32)


def by_example(answer: Any, count: int, ignored: Sequence[str] = ()) -> list[Any]:
    """Splits an answer (a tensor, or a mapping or tuple of outputs) into one prediction for each of ``count`` examples.

    A mapping loses the outputs that have no row for each example, such as a loss or a cache of the whole batch, and
    those named in ``ignored``, which may have as many rows as there are examples only by coincidence.
    """
    if isinstance(answer, Mapping):
        answer = {name: output for name, output in answer.items() if name not in ignored}
    predictions = _parts(answer, count)
    if predictions is None:
        raise PredictionCountError(
            f"the model's answer, of type {type(answer).__qualname__}, has no row for each of {count} examples; give "
            "the handler an inference_fn that makes one prediction for each."
        )
    return predictions


def _parts(output: Any, count: int) -> list[Any] | None:
    """Each example's part of an output, in memory of its own; None if the output has no such parts.

    A tuple holds a tensor for each layer, and so does each example's part.
    """
    if isinstance(output, torch.Tensor):
        return rows(output) if output.ndim and len(output) == count else None
    if isinstance(output, tuple):
        layers = [_parts(layer, count) for layer in output]
        return list(zip(*layers, strict=True)) if layers and None not in layers else None
    if isinstance(output, Mapping):
        columns = {name: parts for name, parts in ((n, _parts(o, count)) for n, o in output.items()) if parts}
        return [{name: parts[index] for name, parts in columns.items()} for index in range(count)] if columns else None
    return None


def most_numbers(example: Any) -> int:
    """The number of elements of a tensor, or of the largest one in a dict or tuple; 1 of anything else."""
    if isinstance(example, torch.Tensor):
        return max(1, example.numel())
    if isinstance(example, Mapping):
        example = tuple(example.values())
    return max(map(most_numbers, example), default=1) if isinstance(example, tuple) else 1


def reads_text(task: str) -> bool:
    """Whether the task takes texts and writes none: then the length of a text decides what it costs."""
    return task in _TEXTS


def answers_alike_in_batches(pipeline: Any) -> bool:
    """Whether a pipeline says of examples in a batch, where it pads them, what it says of each alone.

    That depends on the model, on the tokenizer's padding token and side, and on the size to which images are scaled. So
    each pipeline of a task that we know is tried once, with examples of two sizes.
    """
    task = getattr(pipeline, "task", None)
    if task not in _TRIALS:
        return False
    if pipeline not in _alike:
        _alike[pipeline] = not (problem := _problem_with_batches(pipeline, *_TRIALS[task]))
        if problem:
            _LOGGER.warning("This %s pipeline runs its examples one by one, not in batches: %s", task, problem)
    return _alike[pipeline]


def _problem_with_batches(pipeline: Any, make: Callable[[Any], list[Any]], arguments: dict[str, Any]) -> str:
    """Why the examples that ``make`` makes may not share a batch; empty: they may."""
    try:
        examples = make(pipeline)
        alone = _scores(pipeline(examples[:2], batch_size=1, **arguments))
        together = _scores(pipeline(examples, batch_size=len(examples), **arguments)[:2])
        tolerance = max(1e-4, 4 * torch.finfo(pipeline.model.dtype).eps) * max(map(abs, alone))
        is_alike = all(abs(one - other) <= tolerance for one, other in zip(alone, together, strict=True))
    except Exception as error:
        return str(error) or type(error).__name__
    return "" if is_alike else "padding changes its answers."


def _scores(answer: Any) -> list[float]:
    """The scores in an answer, in order; of labels that score the same, any may come first."""
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    if isinstance(answer, list):
        return [score for part in answer for score in _scores(part)]
    return [float(answer)] if isinstance(answer, Real) and not isinstance(answer, Integral) else []


def _texts(_: Any) -> list[Any]:
    return ["a", "a b c d e f g h i"] * 16  # as many as a model has layers: some list these in their answer


def _masked_texts(pipeline: Any) -> list[Any]:
    return [f"{text} {pipeline.tokenizer.mask_token}" for text in _texts(pipeline)]


def _images(_: Any) -> list[Any]:
    from PIL import Image  # noqa: PLC0415 - only pipelines of images need it

    return [Image.new("RGB", size, color) for size, color in (((24, 32), "red"), ((60, 40), "blue"))]


_TRIALS: dict[str, tuple[Callable[[Any], list[Any]], dict[str, Any]]] = {
    "fill-mask": (_masked_texts, {}),
    "image-classification": (_images, {"function_to_apply": "none"}),
    "text-classification": (_texts, {"function_to_apply": "none", "top_k": None}),
    "token-classification": (_texts, {"ignore_labels": []}),
    "zero-shot-classification": (_texts, {"candidate_labels": ["a", "b c d"]}),
}
"""By task: makes examples, the first two of different size, and arguments with which answers tell most."""
_alike: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

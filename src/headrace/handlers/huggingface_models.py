"""Which models and pipelines of Hugging Face run here, and which of these give the same answers in a batch."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from enum import Enum
from numbers import Integral, Real
from typing import Any
from weakref import WeakKeyDictionary

from headrace.core.errors import ConfigurationError, UnsupportedError, extra_required

with extra_required("huggingface"):
    import torch
    import transformers

__all__ = ["PipelineTask", "answers_alike_in_batches", "as_class", "no_tensorflow", "reads_text", "takes_token_ids"]

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
    name = model_class if isinstance(model_class, str) else getattr(model_class, "__name__", "")
    if name.startswith(("TF", "Flax")):
        raise no_tensorflow(f"model_class={name}")
    found = getattr(transformers, name, None) if isinstance(model_class, str) else model_class
    if not hasattr(found, "from_pretrained"):
        raise ConfigurationError(
            f"model_class must be a class with from_pretrained, or the name of one in transformers: {model_class!r}."
        )
    return found


def takes_token_ids(model_class: Any) -> bool:
    """Whether models of the class take token ids, as far as it, or its name, says."""
    takes = getattr(model_class, "main_input_name", "input_ids")
    return takes == "input_ids" and not _NO_TEXT.search(getattr(model_class, "__name__", ""))


def no_tensorflow(asked: str) -> UnsupportedError:
    """The error for a model of TensorFlow's, with the cure."""
    return UnsupportedError(
        asked,
        "transformers 5 has no TensorFlow any more: load the same model with its PyTorch class (framework='pt'), or a "
        "TensorFlow SavedModel or Keras file with headrace.handlers.tensorflow_inference",
    )


def reads_text(task: str) -> bool:
    """Whether the task takes texts and writes none: then the length of a text decides what it costs.

    What a task costs that writes texts is decided by their length, and a first one may take minutes.
    """
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

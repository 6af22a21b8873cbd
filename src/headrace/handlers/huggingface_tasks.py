"""The tasks of Hugging Face pipelines, by Beam's names."""

from __future__ import annotations

from enum import Enum

__all__ = ["PipelineTask", "reads_text"]

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


def reads_text(task: str) -> bool:
    """Whether the task takes texts and writes none: then the length of a text decides what it costs.

    What a task costs that writes texts is decided by their length, and a first one may take minutes.
    """
    return task in _TEXTS

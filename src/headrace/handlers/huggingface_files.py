"""What the folder of a model of transformers or sentence-transformers says of it."""

from __future__ import annotations

from headrace.core.errors import ConfigurationError
from headrace.core.model_files import KnownModel, ModelFile

__all__ = ["recognise"]

_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForImageClassification": "image-classification",
    "ForObjectDetection": "object-detection",
    "ForAudioClassification": "audio-classification",
    "ForCTC": "automatic-speech-recognition",
    "ForSpeechSeq2Seq": "automatic-speech-recognition",
}
"""Tasks that take one value of a row, by the end of the architecture's name."""
_WRITES = ("ForCausalLM", "LMHeadModel")


def recognise(model: ModelFile) -> KnownModel | None:
    """The handler of embeddings, of a pipeline for the task that the architecture names, or of a writing model.

    Raises:
        ConfigurationError: the architecture names no task.
    """
    if "modules.json" in model.members:
        return KnownModel("sentence-transformer", "a sentence-transformers model", takes="text")
    settings = model.settings("config.json") if model.is_folder else {}
    if "model_type" not in settings and "architectures" not in settings:
        return None
    name = next(iter(settings.get("architectures") or ()), "no architecture")
    what = f"a {name} of Hugging Face"
    if name.endswith(_WRITES):
        return KnownModel("huggingface-generation", what, takes="rows")
    task = next((task for end, task in _TASKS.items() if name.endswith(end)), None)
    if task is None:
        raise ConfigurationError(
            f"it holds {what}, which may do several tasks; name one: --handler huggingface-pipeline --handler-arg "
            "task=TASK."
        )
    return KnownModel("huggingface-pipeline", f"{what} for {task}", {"task": task}, takes="text")

"""What handlers of language models in this process have in common: prompts, conversations, and what is generated."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict

from headrace.core.engine import EngineModelHandler
from headrace.core.errors import ConfigurationError
from headrace.core.handler import ModelT
from headrace.core.result import PredictionResult
from headrace.handlers.base import UriModelHandler
from headrace.handlers.prompts import PromptRows, Prompts

__all__ = ["EngineLostError", "Generated", "GenerationModelHandler", "Prompt", "as_messages"]

Prompt = str | Sequence[Mapping[str, Any]]
"""A text; or a conversation: messages with a role and a content."""


class EngineLostError(RuntimeError):
    """What generates text has ended over this request, or another."""


class Generated(TypedDict):
    """What a language model made of a prompt."""

    text: str
    finish_reason: str
    """``"stop"``: the model ended the text; ``"length"``: it had no more tokens."""
    input_tokens: int
    output_tokens: int


def as_messages(prompt: Any) -> list[dict[str, Any]] | None:
    """The messages of a conversation; None if the prompt is a text.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(prompt, str):
        return None
    is_list = isinstance(prompt, Sequence) and len(prompt) > 0
    if not (is_list and all(isinstance(one, Mapping) and {"role", "content"} <= one.keys() for one in prompt)):
        raise TypeError(
            "a prompt is a text, or a list of messages such as {'role': 'user', 'content': 'Hello'}, not "
            f"{prompt!r:.80}."
        )
    return [dict(one) for one in prompt]


class GenerationModelHandler(
    PromptRows, UriModelHandler[Prompt, ModelT], EngineModelHandler[Prompt, PredictionResult, ModelT]
):
    """What the handlers of engines that generate text make of prompts and rows.

    Args:
        model_uri: id of a model on the Hugging Face hub, or the folder of a saved one.
        prompt: the prompt of each row. Column names go in braces: ``"Classify: {text}"``.
        options: those of ``headrace.EngineModelHandler``.

    Raises:
        ConfigurationError: there is no model, or the prompt names no column.
    """

    models_have_ids: ClassVar[bool] = True
    """Whether a model's URI may be its id on a hub, so that no local file needs to exist."""

    def __init__(self, model_uri: str | os.PathLike[str], prompt: str | None = None, **options: Any) -> None:
        super().__init__(model_uri, **options)
        if not self._model_uri:
            raise ConfigurationError("model_uri must be a model's id on the hub or a folder; it is empty.")
        self._prompts = Prompts(type(self).__qualname__, prompt)

    def asked(self, example: Any) -> Prompt:
        """The prompt of an example, which may be a row if there is a ``prompt``.

        Raises:
            TypeError: the example is a row, and there is none.
            ValueError: a column of it is missing, or empty.
        """
        return self._prompts.text(example) if isinstance(example, Mapping) else example

    def prefix(self, example: Any) -> str | None:
        """The prompt, so that those that begin alike go together."""
        prompt = self.asked(example)
        return prompt if isinstance(prompt, str) else json.dumps(prompt, default=str)

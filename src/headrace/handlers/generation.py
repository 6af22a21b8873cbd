"""What handlers of language models in this process have in common: prompts, conversations, and what is generated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from headrace.core.engine import EngineModelHandler
from headrace.core.handler import ModelT
from headrace.core.result import PredictionResult
from headrace.handlers.base import UriModelHandler

__all__ = ["EngineLostError", "Generated", "GenerationModelHandler", "Prompt", "as_messages"]

Prompt = str | Sequence[Mapping[str, Any]]
"""A text; or a conversation: messages with a role and a content."""

_ROLES = ("system", "user", "assistant", "developer", "tool")


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


class GenerationModelHandler(UriModelHandler[Prompt, ModelT], EngineModelHandler[Prompt, PredictionResult, ModelT]):
    """What the handlers of engines that generate text make of prompts and rows."""

    def prefix(self, example: Prompt) -> str | None:
        """The prompt, so that those that begin alike go together."""
        return example if isinstance(example, str) else json.dumps(example, default=str)

    def example_from_row(self, row: Mapping[str, Any]) -> Prompt:
        """The text of the only column; of several, a message each, whose role is the column's name.

        Raises:
            ValueError: there are several columns, and one is not named as a role.
        """
        if len(row) == 1:
            return str(next(iter(row.values())))
        wrong = sorted(set(row) - set(_ROLES))
        if wrong:
            raise ValueError(f"columns of a conversation are named as roles ({', '.join(_ROLES)}), not {wrong}.")
        return [{"role": role, "content": str(text)} for role, text in row.items()]

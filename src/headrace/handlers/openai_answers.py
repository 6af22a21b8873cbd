"""What is in answers of OpenAI's API, read with the doubt that its many servers deserve."""

from __future__ import annotations

import math
from typing import Any

from headrace.core.errors import PredictionCountError
from headrace.core.remote import ElementFailure
from headrace.handlers.chat_endpoints import ModelReply
from headrace.handlers.json_answers import InvalidAnswerError, text_in

__all__ = ["choice_in", "reply_in", "tokens_in", "vectors_in"]


def choice_in(answer: Any) -> Any:
    """The first choice of a completion.

    Raises:
        PredictionCountError: the choices' indexes are not 0, 1, ..., each once.
        Exception: there are no choices.
    """
    return _in_order(answer.choices, len(answer.choices), "choices")[0]


def reply_in(answer: Any) -> ModelReply:
    """What a chat completion says.

    Raises:
        PredictionCountError: as ``choice_in``.
        InvalidAnswerError: the message has something else than a text.
        Exception: there is no message.
    """
    choice = choice_in(answer)
    content, refusal = choice.message.content, getattr(choice.message, "refusal", None)
    text, ended = None if content is None else text_in(content), choice.finish_reason
    why_none = f"the model refused: {refusal}" if refusal else f"the answer has no text; it ended with {ended!r}"
    return ModelReply(text, answer, why_none, ended == "length")


def tokens_in(answer: Any) -> tuple[Any, Any]:
    """The tokens of the prompt and of the answer, as far as it says."""
    usage = getattr(answer, "usage", None)
    return getattr(usage, "prompt_tokens", 0), getattr(usage, "completion_tokens", 0)


def vectors_in(answer: Any, count: int, *, is_encoded: bool = False) -> list[Any]:
    """The embeddings of a request's texts, in the order of the texts; a failure for one that is none.

    Args:
        answer: of the client.
        count: how many texts were sent.
        is_encoded: whether the user wants embeddings as the server encodes them, in base64.

    Raises:
        PredictionCountError: the embeddings' indexes are not those of the texts, each once.
        Exception: there are no embeddings.
    """
    found = [one.embedding for one in _in_order(answer.data, count, "embeddings")]
    return [one if is_encoded and isinstance(one, str) else _vector(one) for one in found]


def _vector(found: Any) -> Any:
    is_vector = isinstance(found, list) and found and set(map(type, found)) <= {int, float}
    if is_vector and math.isfinite(sum(found)):
        return found
    return ElementFailure(InvalidAnswerError(f"the embedding is no list of numbers: {found!r:.200}"))


def _in_order(items: list[Any], count: int, name: str) -> list[Any]:
    """Items of an answer in the order of their indexes; some servers keep the order, and say none."""
    if not items or not isinstance(items, list):
        raise TypeError(f"there are no {name}")
    indexes = [one.index for one in items]
    if indexes == [None] * count:
        return items
    if len(items) != count or set(indexes) != set(range(count)):
        said = f"the endpoint's {name} have the indexes {indexes!s:.200}"
        raise PredictionCountError(f"{said}; they must be those from 0 to {count - 1}, each once.")
    by_index = dict(zip(indexes, items, strict=True))
    return [by_index[place] for place in range(count)]

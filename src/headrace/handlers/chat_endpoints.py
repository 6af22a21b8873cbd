"""What handlers of chat models have in common: conversations, answers that fit a schema, and their repair."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.core.handler import ModelT
from headrace.core.remote import ElementFailure
from headrace.core.request_context import kept_for_next_try
from headrace.core.result import PredictionResult
from headrace.core.secrets import KeySource
from headrace.handlers.batch_api import MAX_WAIT_SECS
from headrace.handlers.client_endpoints import ClientHandler, Steps
from headrace.handlers.json_answers import InvalidAnswerError, JsonSchema
from headrace.handlers.prompts import Prompts

__all__ = ["ChatHandler", "ModelReply"]


class ModelReply(NamedTuple):
    """What a model answered."""

    text: str | None
    """None: nothing, or a call of a tool."""
    full: Any
    """The client's object."""
    why_none: str = "the answer has no text"
    cut_off: bool = False
    """Whether the limit of tokens ended it."""


class ChatHandler(ClientHandler[ModelT]):
    """Asks chat models: one request for each example, and another where an answer has to be repaired.

    Args:
        model_name: the name of the model.
        prompt: the prompt of each row. Column names go in braces: ``"Classify: {text}"``. Write a literal brace
            twice: ``{{``.
        system: the first message of conversations that do not begin with one of their own.
        json_schema: what answers must fit: a JSON schema, or the path or URI of a file with it.
        full_answer: whether predictions are the client's objects.
        url: the API's address.
        api_key: the key, or a function that returns it.
        batch_directory: a folder, made if it is missing: examples are sent in batches with the provider's Batch API,
            and what was sent is kept there, so that nothing is paid twice. None: each is a request of its own.
        max_wait_secs: how long to wait for a batch.
        options: those of ``headrace.RemoteModelHandler`` and of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: an argument is wrong.
        MissingExtraError: a schema needs the package jsonschema.
        OSError: the file of the schema cannot be opened.
    """

    def __init__(
        self,
        model_name: str,
        *,
        prompt: str | None = None,
        system: str | None = None,
        json_schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        full_answer: bool = False,
        url: str | None = None,
        api_key: KeySource = None,
        batch_directory: str | os.PathLike[str] | None = None,
        max_wait_secs: float = MAX_WAIT_SECS,
        **options: Any,
    ) -> None:
        options |= {"batch_directory": batch_directory, "max_wait_secs": max_wait_secs}
        super().__init__(model_name, prompt=prompt, url=url, api_key=api_key, **options)
        who = type(self).__qualname__
        self._prompts = Prompts(who, prompt, system)
        self._schema = None if json_schema is None else JsonSchema(json_schema, who, self._extra)
        self._full_answer = full_answer

    @abstractmethod
    def _asked(self, system: str | None, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The arguments of the request for an answer to a conversation."""

    def _steps(self, example: Any) -> Steps:
        try:
            system, messages = self._prompts.conversation(example)
        except (TypeError, ValueError) as error:
            return ElementFailure(error)
        kept = kept_for_next_try()
        reply = kept.get(id(example)) or (yield self._asked(system, messages))
        value = self._value(reply)
        if isinstance(value, ElementFailure) and self._schema is not None and reply.text is not None:
            if reply.cut_off:  # the next one would be, too
                return value
            kept[id(example)] = reply  # if the next request fails, that one alone is sent again
            complaint = {"role": "user", "content": self._schema.complaint(value.error)}
            said = reply.text.encode(errors="replace").decode()  # a lone surrogate cannot be sent
            reply = yield self._asked(system, [*messages, {"role": "assistant", "content": said}, complaint])
            value = self._value(reply)
        return value if isinstance(value, ElementFailure) else PredictionResult(example, value, self.model_name)

    def _value(self, reply: ModelReply) -> Any:
        """What is to be predicted; an ElementFailure if it is not in the answer."""
        if self._schema is None and self._full_answer:
            return reply.full
        if reply.text is None:
            return ElementFailure(InvalidAnswerError(reply.why_none))
        if self._schema is None:
            return reply.text
        try:
            value = self._schema.read(reply.text)
        except InvalidAnswerError as error:
            cut_off = InvalidAnswerError(f"{error}; the limit of tokens cut it off")
            return ElementFailure(cut_off if reply.cut_off else error)
        return reply.full if self._full_answer else value

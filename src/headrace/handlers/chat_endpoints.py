"""What handlers have in common that ask a chat model behind an endpoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.core.handler import ModelT
from headrace.core.remote import ElementFailure
from headrace.core.request_context import kept_for_next_try
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey
from headrace.handlers.batch_requests import BatchOptions
from headrace.handlers.json_answers import InvalidAnswerError, JsonSchema
from headrace.handlers.prompts import Prompts
from headrace.handlers.text_endpoints import TextEndpointHandler

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


class ChatHandler(TextEndpointHandler[ModelT]):
    """Asks chat models: one request for each example, and another where an answer has to be repaired."""

    def __init__(
        self,
        model_name: str,
        api_key: ApiKey,
        url: str | None,
        *,
        prompts: Prompts,
        schema: JsonSchema | None,
        full_answer: bool,
        batches: BatchOptions | None,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(model_name, api_key, url, size=1, batches=batches, options=options)
        self._prompts = prompts
        self._schema = schema
        self._full_answer = full_answer

    @abstractmethod
    async def _send(
        self, client: ModelT, system: str | None, messages: list[dict[str, Any]], args: Mapping[str, Any]
    ) -> ModelReply:
        """Sends one request, and reports what it used."""

    async def request(
        self, batch: Sequence[Any], model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """Asks for each example; a wrong one costs the others nothing.

        Raises:
            EndpointError: no request can succeed.
            Exception: whatever the client raises.
        """
        return await self._answers(batch, model, inference_args)

    async def _probe(self, client: ModelT, args: Mapping[str, Any]) -> ModelReply:
        return await self._send(client, None, [{"role": "user", "content": "Hi"}], args)

    def example_from_row(self, row: Mapping[str, Any]) -> Any:
        """The prompt of a row, or its conversation.

        Raises:
            ValueError: it is not clear which column is the prompt, or the column is missing or empty.
        """
        return self._prompts.example_from_row(row)

    def refuse_columns(self, columns: Sequence[str]) -> None:
        """As ``TextEndpointHandler.refuse_columns``; several may be the messages of a conversation."""
        self._prompts.refuse_columns(columns, may_be_conversation=True)

    async def _predict(self, example: Any, client: ModelT, args: Mapping[str, Any]) -> Any:
        try:
            system, messages = self._prompts.conversation(example)
        except (TypeError, ValueError) as error:
            return ElementFailure(error)
        kept = kept_for_next_try()
        reply = kept.get(id(example)) or await self._asked(client, system, messages, args)
        value = self._value(reply)
        if isinstance(value, ElementFailure) and self._schema is not None and reply.text is not None:
            if reply.cut_off:  # the next one would be, too
                return value
            kept[id(example)] = reply  # if the next request fails, that one alone is sent again
            told = self._schema.complaint(value.error)
            said = reply.text.encode(errors="replace").decode()  # a lone surrogate cannot be sent
            mended = [{"role": "assistant", "content": said}, {"role": "user", "content": told}]
            reply = await self._asked(client, system, [*messages, *mended], args)
            value = self._value(reply)
        return value if isinstance(value, ElementFailure) else PredictionResult(example, value, self.model_name)

    async def _asked(
        self, client: ModelT, system: str | None, messages: list[dict[str, Any]], args: Mapping[str, Any]
    ) -> ModelReply:
        return await self._ask(lambda: self._send(client, system, messages, args))

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

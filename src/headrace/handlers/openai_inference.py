"""Asks models behind OpenAI's API, or one that is compatible with it, with OpenAI's client."""

from __future__ import annotations

import asyncio
import json
import math
import os
from abc import abstractmethod
from array import array
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from headrace.core.errors import PredictionCountError, extra_required
from headrace.core.remote import ElementFailure, ElementRetry
from headrace.core.result import PredictionResult
from headrace.core.spelling import with_options_of
from headrace.handlers.batch_jobs import BatchRefusedError, Collected, Requests
from headrace.handlers.batch_store import Announced, Line, lines_in
from headrace.handlers.chat_endpoints import ChatHandler, ClientHandler, ModelReply, Steps
from headrace.handlers.prompts import InvalidAnswerError, text_in
from headrace.handlers.text_endpoints import REFUSED, outcome_of, outcomes_of, status_of

with extra_required("openai"):
    import openai
    from openai.resources.chat.completions import AsyncCompletions as Chat
    from openai.resources.completions import AsyncCompletions as Completions
    from openai.resources.embeddings import AsyncEmbeddings as Embeddings
    from openai.types import Completion, CreateEmbeddingResponse
    from openai.types.chat import ChatCompletion

__all__ = ["OpenAIChatModelHandler", "OpenAICompletionsModelHandler", "OpenAIEmbeddingsModelHandler"]

_MARK = "headrace"
"""Our token's name in a batch's metadata."""
_EARLIER_SECS = 86_400
"""How far the provider's clock may be behind ours. To look at too many batches costs little."""
_FULL = "token_limit_exceeded"
"""The code of an error: too many tokens are enqueued."""
_SHOWN = 3
"""Errors of a batch that was refused."""


class OpenAIBatches:
    """A file of requests goes up, a file of answers and one of errors come back.

    Args:
        client: OpenAI's.
        path: of single requests, such as ``"/v1/chat/completions"``.
    """

    most_requests = 50_000
    most_bytes = 200_000_000

    def __init__(self, client: Any, path: str) -> None:
        self._client = client
        self._path = path

    async def prepare(self, token: str, requests: Requests) -> str:
        """Does what has to be done before there can be a batch, uploads a file; returns what ``send`` needs."""
        same = {"method": "POST", "url": self._path}
        lines = [json.dumps({"custom_id": name, **same, "body": body}) + "\n" for name, body in requests.items()]
        file = f"{token}.jsonl", "".join(lines).encode()
        return str((await self._client.files.create(file=file, purpose="batch")).id)

    async def send(self, token: str, prepared: str) -> str:
        """Makes a batch of the file; returns its id."""
        batch = await self._client.batches.create(
            completion_window="24h", endpoint=self._path, input_file_id=prepared, metadata={_MARK: token}
        )
        return str(batch.id)

    async def find(self, batch: Announced) -> str | None:
        """The id of a batch that may have arrived, by our token in its metadata; "" if there is none."""
        async for one in self._client.batches.list(limit=100):  # the latest first
            if one.created_at < batch.at - _EARLIER_SECS:
                break
            if (one.metadata or {}).get(_MARK) == batch.token:
                return str(one.id)
        return ""

    async def collect(self, remote: str) -> Collected | None:
        """What a batch leaves behind, in both files; None while it runs. BatchRefusedError: the whole batch failed."""
        batch = await self._client.batches.retrieve(remote)
        if batch.status == "failed":
            errors = (batch.errors and batch.errors.data) or []
            reasons = [f"{one.message or one.code}{f' (line {one.line})' if one.line else ''}" for one in errors]
            said = "; ".join(reasons[:_SHOWN]) or "it does not say why"
            refused = BatchRefusedError(f"the endpoint refuses batch {remote}: {said}")
            refused.is_for_now = {one.code for one in errors} == {_FULL}
            raise refused
        if batch.status not in ("completed", "expired", "cancelled"):
            return None
        if not batch.output_file_id and batch.request_counts is not None and batch.request_counts.completed:
            return None  # its answers are there, and their file is not yet
        lines: list[Line] = []
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            try:
                content = (await self._client.files.content(file)).content
            except Exception as error:
                if status_of(error) != 404 or not lines:  # else there are answers, and what failed was not billed
                    raise
            else:
                lines += await asyncio.to_thread(lines_in, content, _openai_line)
        return lines, batch.status


def _openai_line(said: dict[str, Any]) -> Line:
    response = said.get("response") or {}
    status = response.get("status_code")
    if not status:
        return Line(said["custom_id"], None, str(said["error"].get("message") or ""))
    if not isinstance(status, int) or not 100 <= status < 600:
        raise ValueError("it is no status of HTTP")
    return Line(said["custom_id"], 200 if 200 <= status < 300 else status, json.dumps(response.get("body")))


class _OpenAIHandler(ClientHandler[openai.AsyncOpenAI]):
    """Makes the client, for each kind of request.

    Args:
        url: the API's address, up to ``/v1``. None: ``OPENAI_BASE_URL`` in the worker's environment, else OpenAI's.
        api_key: the key, or a function that returns it. None: ``OPENAI_API_KEY`` in the worker's environment. A server
            at another URL may need none.
    """

    _extra = "openai"
    _client_error = openai.APIError
    _key_variable = "OPENAI_API_KEY"
    _url_variable = "OPENAI_BASE_URL"

    def create_client(self) -> openai.AsyncOpenAI:
        """Makes the client, which retries nothing: Headrace does; ConfigurationError if there is no key.

        A subclass may make another, such as ``openai.AsyncAzureOpenAI(max_retries=0)``.
        """
        key = self._api_key
        if callable(key.given):

            async def current() -> str:
                return key.required()

            return openai.AsyncOpenAI(api_key=current, base_url=self._url, max_retries=0)
        needs_none = self._url or os.environ.get(self._url_variable)
        value = key.value() or "none" if needs_none else key.required()
        return openai.AsyncOpenAI(api_key=value, base_url=self._url, max_retries=0)

    def _batch_api(self, client: openai.AsyncOpenAI) -> OpenAIBatches:
        return OpenAIBatches(client, f"/v1{self._path}")

    def _tokens_in(self, answer: Any) -> tuple[Any, Any, Any]:
        usage = getattr(answer, "usage", None)
        cached = getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", 0)
        return getattr(usage, "prompt_tokens", 0), getattr(usage, "completion_tokens", 0), cached


class OpenAIChatModelHandler(_OpenAIHandler, ChatHandler[openai.AsyncOpenAI]):
    """Asks a chat model at OpenAI, or at any endpoint that is compatible.

    Examples, predictions and arguments are those of ``ChatHandler`` and ``ClientHandler`` in
    ``headrace.handlers.chat_endpoints``. ``inference_args`` are those of OpenAI's ``chat.completions.create``:
    ``temperature``, ``max_completion_tokens``, and what only your server knows in ``extra_body``.
    """

    gen_ai = ("chat", "openai")
    _create = Chat.create
    _ours = ("model", "messages", "stream")
    _path = "/chat/completions"
    _answer = ChatCompletion
    _wanted = "chat completion"

    def _asked(self, system: str | None, messages: list[dict[str, Any]]) -> dict[str, Any]:
        first = [] if system is None else [{"role": "system", "content": system}]
        asked: dict[str, Any] = {"messages": [*first, *messages]}
        if self._schema is not None:
            shape = {"name": "answer", "schema": self._schema.schema}
            asked["response_format"] = {"type": "json_schema", "json_schema": shape}
        return asked

    def _reply_in(self, answer: Any, asked: Mapping[str, Any]) -> ModelReply:
        choice = answer.choices[0]
        content, refusal = choice.message.content, getattr(choice.message, "refusal", None)
        text, ended = None if content is None else text_in(content), choice.finish_reason
        why_none = f"the model refused: {refusal}" if refusal else f"the answer has no text; it ended with {ended!r}"
        return ModelReply(text, answer, why_none, ended == "length")


class _OpenAITextHandler(_OpenAIHandler):
    """Makes one text of each row; an answer has a list with what it says of each text."""

    _takes_conversations = False

    @abstractmethod
    def _asked(self, text: str) -> dict[str, Any]:
        """The arguments of the request for a text."""

    def _steps(self, example: Any) -> Steps:
        try:
            text = self._prompts.text(example)
        except (TypeError, ValueError) as error:
            return ElementFailure(error)
        (value,) = yield self._asked(text)
        return value if isinstance(value, ElementFailure) else PredictionResult(example, value, self.model_name)


class OpenAICompletionsModelHandler(_OpenAITextHandler):
    """Continues prompts, with models that are no chat models: an example is a text or, with ``prompt``, a row.

    The prediction is the text that follows. ``inference_args`` are those of OpenAI's ``completions.create``.

    The arguments are those of ``OpenAIChatModelHandler``, but for ``system`` and ``json_schema``.
    """

    gen_ai = ("text_completion", "openai")
    _create = Completions.create
    _ours = ("model", "prompt", "stream")
    _path = "/completions"
    _answer = Completion
    _wanted = "completion"

    @with_options_of(ClientHandler)
    def __init__(self, model_name: str, *, full_answer: bool = False, **options: Any) -> None:
        super().__init__(model_name, **options)
        self._full_answer = full_answer

    def _asked(self, text: str) -> dict[str, Any]:
        return {"prompt": text}

    def _reply_in(self, answer: Any, asked: Mapping[str, Any]) -> list[Any]:
        text = text_in(answer.choices[0].text)
        return [answer if self._full_answer else text]


class OpenAIEmbeddingsModelHandler(_OpenAITextHandler):
    """Embeds texts: an example is a text or, with ``prompt``, a row; its prediction is a list of floats.

    A request has up to 64 texts; ``max_batch_size`` is another limit. If the endpoint refuses one for what is in it,
    such as a text that is too long, halves of it are sent until the texts at fault are alone. Refused requests are not
    billed. ``inference_args`` are those of OpenAI's ``embeddings.create``, such as ``dimensions``. The arguments are
    those of ``OpenAIChatModelHandler`` that are about prompts, the endpoint and batches.
    """

    gen_ai = ("embeddings", "openai")
    _create = Embeddings.create
    _ours = ("model", "input")
    _path = "/embeddings"
    _answer = CreateEmbeddingResponse
    _wanted = "list of embeddings"
    _http_size = 64

    async def request(
        self, batch: Sequence[Any], model: openai.AsyncOpenAI, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """Embeds a batch with one request, if nothing in it is refused; with the Batch API with one for each text."""
        if self._batches is not None:
            return await super().request(batch, model, inference_args)
        found: list[Any] = [None] * len(batch)
        texts: dict[int, str] = {}
        for place, example in enumerate(batch):
            try:
                text = self._prompts.text(example)
                text.encode()  # one that cannot be would fail the others in its request
                texts[place] = text
            except (TypeError, ValueError) as error:
                found[place] = ElementFailure(error)
        vectors = await self._embed(list(texts.values()), model, inference_args or {}) if texts else []
        for place, vector in zip(texts, vectors, strict=True):
            is_vector = not isinstance(vector, ElementFailure | ElementRetry)
            found[place] = PredictionResult(batch[place], vector, self.model_name) if is_vector else vector
        return found

    async def _embed(
        self, texts: list[str], client: openai.AsyncOpenAI, args: Mapping[str, Any], *, is_part: bool = False
    ) -> list[Any]:
        """A vector for each text; what stands for it in the place of one that the endpoint refuses.

        The other half of a part may have been paid for: it raises only what concerns all.
        """
        try:
            return await self._ask(self._sent(client, {"input": texts, **args}))
        except Exception as caught:
            error = caught
        await self._refuse_all_if_probe_fails([error], client, args)
        if len(texts) == 1 or status_of(error) not in REFUSED:
            outcome = outcome_of(error) if is_part else outcomes_of([error], others_are_accepted=True)[0]
            return [outcome] * len(texts)
        half = len(texts) // 2
        parts = [await self._embed(part, client, args, is_part=True) for part in (texts[:half], texts[half:])]
        return [*parts[0], *parts[1]]

    def _asked(self, text: str) -> dict[str, Any]:
        return {"input": [text]}

    def _reply_in(self, answer: Any, asked: Mapping[str, Any]) -> list[Any]:
        stays = asked.get("encoding_format") == "base64"
        found = [one.embedding for one in _in_order(answer.data, len(asked["input"]))]
        return [one if stays and isinstance(one, str) else _vector(one) for one in found]


def _vector(found: Any) -> Any:
    """The numbers of an embedding, which the client has sent in base64."""
    if isinstance(found, str):
        with suppress(ValueError):
            found = array("f", b64decode(found)).tolist()
    is_vector = isinstance(found, list) and found and set(map(type, found)) <= {int, float}
    if is_vector and math.isfinite(sum(found)):
        return found
    return ElementFailure(InvalidAnswerError(f"the embedding is no list of numbers: {found!r:.200}"))


def _in_order(items: list[Any], count: int) -> list[Any]:
    """Embeddings in the order of their indexes, which must be those of ``count`` texts, or absent."""
    if not items or not isinstance(items, list):
        raise TypeError("there are no embeddings")
    indexes = [one.index for one in items]
    if indexes == [None] * count:
        return items
    if len(items) != count or set(indexes) != set(range(count)):
        said = f"the endpoint's embeddings have the indexes {indexes!s:.200}"
        raise PredictionCountError(f"{said}; they must be those from 0 to {count - 1}, each once.")
    return sorted(items, key=lambda one: one.index)

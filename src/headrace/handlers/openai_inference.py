"""Asks models behind OpenAI's API, or one that is compatible with it, with OpenAI's client."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from headrace.core.errors import extra_required
from headrace.core.remote import ElementFailure
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey, KeySource
from headrace.handlers.batch_requests import MAX_WAIT_SECS, BatchOptions
from headrace.handlers.cards import CARDS
from headrace.handlers.chat_endpoints import ChatHandler, ModelReply
from headrace.handlers.client_errors import NO_KEY, REFUSED, outcome_of, outcomes_of, status_of
from headrace.handlers.json_answers import JsonSchema, text_in
from headrace.handlers.openai_answers import choice_in, reply_in, tokens_in, vectors_in
from headrace.handlers.prompts import Prompts
from headrace.handlers.text_endpoints import TextEndpointHandler, checked_url

with extra_required("openai"):
    import openai
    from openai.resources.chat.completions import AsyncCompletions as Chat
    from openai.resources.completions import AsyncCompletions as Completions
    from openai.resources.embeddings import AsyncEmbeddings as Embeddings

    from headrace.handlers.openai_batches import OpenAIBatches

__all__ = ["OpenAIChatModelHandler", "OpenAICompletionsModelHandler", "OpenAIEmbeddingsModelHandler"]

_KEY = "OPENAI_API_KEY"
_MOST_TEXTS = 64
"""Texts in a request for embeddings."""


class _OpenAIHandler(TextEndpointHandler[openai.AsyncOpenAI]):
    """Makes the client, for each kind of request."""

    _url_variable = "OPENAI_BASE_URL"
    _create: ClassVar[Any]
    """The client's method."""
    _ours: ClassVar[tuple[str, ...]]
    """The arguments of it that the handler sets."""
    _path: ClassVar[str]
    """Of its requests, up to which the URL goes."""

    def _batch_api(self, client: openai.AsyncOpenAI) -> tuple[OpenAIBatches, str, type[Any]]:
        path = f"/v1{self._path}"
        return OpenAIBatches(client, path), path, openai.DefaultAsyncHttpxClient

    def create_client(self) -> openai.AsyncOpenAI:
        """Makes the client, which retries nothing: Headrace does.

        A subclass may make another, such as ``openai.AsyncAzureOpenAI(max_retries=0)``.

        Raises:
            ConfigurationError: there is no key.
        """
        key = self._api_key
        if callable(key.given):

            async def current() -> str:
                return key.required()

            return openai.AsyncOpenAI(api_key=current, base_url=self._url, max_retries=0)
        needs_none = self._url or os.environ.get(self._url_variable)
        value = key.value() or NO_KEY if needs_none else key.required()
        return openai.AsyncOpenAI(api_key=value, base_url=self._url, max_retries=0)

    def _tokens_in(self, answer: Any) -> tuple[Any, Any]:
        return tokens_in(answer)

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Refuses arguments that OpenAI's client does not know, or that the handler sets.

        Raises:
            ConfigurationError: there is one.
        """
        self._refuse_unfit(self._create, inference_args, self._ours)


class OpenAIChatModelHandler(_OpenAIHandler, ChatHandler[openai.AsyncOpenAI]):
    """Asks a chat model: an example is a prompt, a conversation or, with ``prompt``, a row; the answer is a text.

    A conversation is a list of messages, ``{"role": "user", "content": "..."}``. With ``json_schema`` the prediction is
    the value in the answer. An answer that does not fit is sent back once, with what is wrong.

    ``inference_args`` are those of OpenAI's ``chat.completions.create``: ``temperature``, ``max_completion_tokens``,
    and what only your server knows in ``extra_body``. The endpoint may be any that is compatible.

    Args:
        model_name: the name of the model, such as ``"gpt-4o-mini"``.
        prompt: the prompt of each row. Column names go in braces: ``"Classify: {text}"``. Write a literal brace
            twice: ``{{``.
        system: the first message of conversations that do not begin with one of their own.
        json_schema: what answers must fit: a JSON schema, or the path or URI of a file with it.
        full_answer: whether predictions are OpenAI's ``ChatCompletion``, with logprobs, finish reason and tokens.
        url: the API's address, up to ``/v1``. None: ``OPENAI_BASE_URL`` in the worker's environment, else OpenAI's.
        api_key: the key, or a function that returns it. None: ``OPENAI_API_KEY`` in the worker's environment. A server
            at another URL may need none.
        batch_directory: a folder, made if it is missing: examples are sent in batches with the provider's Batch API,
            and what was sent is kept there, so that nothing is paid twice. None: each is a request of its own.
        max_wait_secs: how long to wait for a batch.
        options: those of ``headrace.RemoteModelHandler`` and of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: an argument is wrong.
        MissingExtraError: a schema needs the package jsonschema.
        OSError: the file of the schema cannot be opened.
    """

    card = CARDS["openai_inference.OpenAIChatModelHandler"]
    _create = Chat.create
    _ours = ("model", "messages", "stream")
    _path = "/chat/completions"

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
        who = type(self).__qualname__
        shape: dict[str, Any] = {"schema": None if json_schema is None else JsonSchema(json_schema, who, "openai")}
        shape |= {"prompts": Prompts(who, prompt, system), "full_answer": full_answer}
        key, url = ApiKey(api_key, _KEY, who), checked_url(who, url, self._path)
        batches = BatchOptions.of(who, "openai", batch_directory, max_wait_secs)
        super().__init__(model_name, key, url, batches=batches, options=options, **shape)

    async def _send(
        self, client: openai.AsyncOpenAI, system: str | None, messages: list[dict[str, Any]], args: Mapping[str, Any]
    ) -> ModelReply:
        first: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        shape = {} if self._schema is None else {"response_format": _response_format(self._schema.schema)}
        all_args: Any = {"model": self.model_name, "messages": [*first, *messages], **shape, **args}
        return await self._heard(
            client.chat.completions.with_raw_response.create(**all_args), "chat completion", reply_in
        )


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


class _OpenAITextHandler(_OpenAIHandler):
    """Makes one text of each row."""

    _prompts: Prompts

    def example_from_row(self, row: Mapping[str, Any]) -> str:
        """The prompt or text of a row.

        Raises:
            ValueError: it is not clear which column that is, or the column is missing or empty.
        """
        return self._prompts.text_from_row(row)


class OpenAICompletionsModelHandler(_OpenAITextHandler):
    """Continues prompts, with models that are no chat models: an example is a text or, with ``prompt``, a row.

    The prediction is the text that follows. ``inference_args`` are those of OpenAI's ``completions.create``.

    Args:
        model_name: of the model, as the server knows it.
        prompt: this and the other arguments are those of ``OpenAIChatModelHandler``.
        full_answer: whether predictions are OpenAI's ``Completion``.
        url: the address of the API, up to ``/v1``.
        api_key: the key, or a function that returns it.
        batch_directory: of the Batch API.
        max_wait_secs: how long to wait for a batch.
        options: those of ``headrace.RemoteModelHandler`` and of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    card = CARDS["openai_inference.OpenAICompletionsModelHandler"]
    _create = Completions.create
    _ours = ("model", "prompt", "stream")
    _path = "/completions"

    def __init__(
        self,
        model_name: str,
        *,
        prompt: str | None = None,
        full_answer: bool = False,
        url: str | None = None,
        api_key: KeySource = None,
        batch_directory: str | os.PathLike[str] | None = None,
        max_wait_secs: float = MAX_WAIT_SECS,
        **options: Any,
    ) -> None:
        who = type(self).__qualname__
        self._prompts = Prompts(who, prompt)
        self._full_answer = full_answer
        key, url = ApiKey(api_key, _KEY, who), checked_url(who, url, self._path)
        batches = BatchOptions.of(who, "openai", batch_directory, max_wait_secs)
        super().__init__(model_name, key, url, size=1, batches=batches, options=options)

    async def request(
        self, batch: Sequence[Any], model: openai.AsyncOpenAI, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """Asks for each example.

        Raises:
            EndpointError: no request can succeed.
            openai.OpenAIError: this one failed.
        """
        return await self._answers(batch, model, inference_args)

    async def _probe(self, client: openai.AsyncOpenAI, args: Mapping[str, Any]) -> object:
        return await self._send(client, "Hi", args)

    async def _predict(self, example: Any, client: openai.AsyncOpenAI, args: Mapping[str, Any]) -> Any:
        try:
            prompt = self._prompts.text(example)
        except (TypeError, ValueError) as error:
            return ElementFailure(error)
        return PredictionResult(example, await self._ask(lambda: self._send(client, prompt, args)), self.model_name)

    async def _send(self, client: openai.AsyncOpenAI, prompt: str, args: Mapping[str, Any]) -> Any:
        def read(answer: Any) -> Any:
            text = text_in(choice_in(answer).text)
            return answer if self._full_answer else text

        all_args: Any = {"model": self.model_name, "prompt": prompt, **args}
        return await self._heard(client.completions.with_raw_response.create(**all_args), "completion", read)


class OpenAIEmbeddingsModelHandler(_OpenAITextHandler):
    """Embeds texts: an example is a text or, with ``prompt``, a row; its prediction is a list of floats.

    A request has up to 64 texts; ``max_batch_size`` is another limit. If the endpoint refuses one for what is in it,
    such as a text that is too long, halves of it are sent until the texts at fault are alone. Refused requests are not
    billed. ``inference_args`` are those of OpenAI's ``embeddings.create``, such as ``dimensions``.

    Args:
        model_name: the name of the model, such as ``"text-embedding-3-small"``.
        prompt: makes the text of a row: ``"{title}: {body}"``; this and the other arguments are those of
            ``OpenAIChatModelHandler``.
        url: the address of the API, up to ``/v1``.
        api_key: the key, or a function that returns it.
        batch_directory: of the Batch API.
        max_wait_secs: how long to wait for a batch.
        options: those of ``headrace.RemoteModelHandler`` and of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    card = CARDS["openai_inference.OpenAIEmbeddingsModelHandler"]
    _create = Embeddings.create
    _ours = ("model", "input")
    _path = "/embeddings"

    def __init__(
        self,
        model_name: str,
        *,
        prompt: str | None = None,
        url: str | None = None,
        api_key: KeySource = None,
        batch_directory: str | os.PathLike[str] | None = None,
        max_wait_secs: float = MAX_WAIT_SECS,
        **options: Any,
    ) -> None:
        who = type(self).__qualname__
        self._prompts = Prompts(who, prompt)
        key, url = ApiKey(api_key, _KEY, who), checked_url(who, url, self._path)
        batches = BatchOptions.of(who, "openai", batch_directory, max_wait_secs)
        super().__init__(model_name, key, url, size=_MOST_TEXTS, batches=batches, options=options)

    async def request(
        self, batch: Sequence[Any], model: openai.AsyncOpenAI, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """Embeds a batch with one request, if nothing in it is refused; with the Batch API with one for each text.

        Raises:
            EndpointError: no request can succeed.
            openai.OpenAIError: this one failed.
        """
        if self._batches is not None:
            return await self._answers(batch, model, inference_args)
        return await self._results(batch, model, inference_args or {})

    async def _predict(self, example: Any, client: openai.AsyncOpenAI, args: Mapping[str, Any]) -> Any:
        return (await self._results([example], client, args))[0]

    async def _probe(self, client: openai.AsyncOpenAI, args: Mapping[str, Any]) -> object:
        return await self._send(client, ["Hi"], args)

    async def _results(self, batch: Sequence[Any], client: openai.AsyncOpenAI, args: Mapping[str, Any]) -> list[Any]:
        found: dict[int, Any] = {}
        texts: dict[int, str] = {}
        for place, example in enumerate(batch):
            try:
                text = self._prompts.text(example)
                text.encode()  # one that cannot be would fail the others in its request
                texts[place] = text
            except (TypeError, ValueError) as error:
                found[place] = ElementFailure(error)
        if texts:
            vectors = await self._embed(list(texts.values()), client, args)
            found |= zip(texts, vectors, strict=True)
        return [
            one if isinstance(one, ElementFailure) else PredictionResult(example, one, self.model_name)
            for example, one in ((example, found[place]) for place, example in enumerate(batch))
        ]

    async def _embed(
        self, texts: list[str], client: openai.AsyncOpenAI, args: Mapping[str, Any], *, is_part: bool = False
    ) -> list[Any]:
        """A vector for each text; what stands for it in the place of one that the endpoint refuses.

        Raises:
            Exception: the request failed; of a part, whose other half may have been paid for, one that concerns all.
        """
        try:
            return await self._ask(lambda: self._send(client, texts, args))
        except Exception as caught:
            error = caught
        await self._refuse_all_if_probe_fails([error], client, args)
        if len(texts) == 1 or status_of(error) not in REFUSED:
            outcome = outcome_of(error) if is_part else outcomes_of([error], others_are_accepted=True)[0]
            return [outcome] * len(texts)
        half = len(texts) // 2
        parts = [await self._embed(part, client, args, is_part=True) for part in (texts[:half], texts[half:])]
        return [*parts[0], *parts[1]]

    async def _send(self, client: openai.AsyncOpenAI, texts: list[str], args: Mapping[str, Any]) -> list[Any]:
        all_args: Any = {"model": self.model_name, "input": texts, **args}
        is_encoded = args.get("encoding_format") == "base64"
        return await self._heard(
            client.embeddings.with_raw_response.create(**all_args),
            "list of embeddings",
            lambda answer: vectors_in(answer, len(texts), is_encoded=is_encoded),
        )

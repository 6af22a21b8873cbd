"""Asks Anthropic's models: a handler with the arguments of Beam's, and one that makes the requests itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.core.answer import predictions_of
from headrace.core.errors import ConfigurationError, EndpointError, extra_required
from headrace.core.remote import ElementFailure, ElementRetry, RemoteModelHandler
from headrace.core.request_context import report_usage
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey, KeySource
from headrace.core.spelling import with_options_of
from headrace.handlers.batch_jobs import Collected, Requests
from headrace.handlers.batch_store import Announced, Line, lines_in
from headrace.handlers.chat_endpoints import ChatHandler, ModelReply
from headrace.handlers.prompts import text_in
from headrace.handlers.text_endpoints import count_of, outcomes_of

with extra_required("anthropic"):
    import anthropic
    from anthropic import Anthropic, APIStatusError
    from anthropic.resources.messages import AsyncMessages
    from anthropic.types import Message

__all__ = ["AnthropicChatModelHandler", "AnthropicModelHandler", "message_from_conversation", "message_from_string"]

_KEY = "ANTHROPIC_API_KEY"
_MAX_TOKENS = 1024
_CALLER = "AnthropicModelHandler"
ClientT = TypeVar("ClientT", anthropic.Anthropic, anthropic.AsyncAnthropic)
_EARLIER_SECS = 600
"""How far the provider's clock may be behind ours."""
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""HTTP's statuses for kinds of errors in batches; 500 for others."""
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
"""Of a batch's requests; others may come to be among them, such as a total."""
_ABOUT_BATCHES = ("min_batch_size", "max_batch_size", "max_batch_duration_secs", "max_batch_weight", "element_size_fn")


def _retry_on_appropriate_error(exception: BaseException) -> bool:
    """Beam's filter: 429, and what is the server's fault."""
    return isinstance(exception, APIStatusError) and (exception.status_code == 429 or exception.status_code >= 500)


def message_from_string(
    model_name: str, batch: Sequence[str], client: Any, inference_args: dict[str, Any]
) -> list[Any]:
    """Beam's function for prompts: asks for one after the other; returns Anthropic's ``Message`` for each.

    Of several, an error is in the place of one that failed. ``client`` is ``anthropic.Anthropic``. ``inference_args``
    are those of ``messages.create``, with 1024 ``max_tokens`` by default.
    """
    return _asked(model_name, [[{"role": "user", "content": prompt}] for prompt in batch], client, inference_args)


def message_from_conversation(
    model_name: str, batch: Sequence[list[dict[str, str]]], client: Any, inference_args: dict[str, Any]
) -> list[Any]:
    """Beam's function for conversations, which are lists of messages; else as ``message_from_string``."""
    return _asked(model_name, batch, client, inference_args)


def _asked(model_name: str, conversations: Sequence[Any], client: Any, args: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = []
    for messages in conversations:
        try:
            answer = client.messages.create(model=model_name, messages=messages, **{"max_tokens": _MAX_TOKENS, **args})
        except Exception as error:
            answer = error
        found.append(answer)
    return [
        ElementFailure(one.error) if type(one) is ElementRetry and not _retry_on_appropriate_error(one.error) else one
        for one in outcomes_of(found)
    ]


class AnthropicModelHandler(RemoteModelHandler[Any, PredictionResult, Anthropic]):
    """Hands batches to a function that asks Claude, as Beam's handler does; the prediction is what it returns.

    Requests run on threads. ``AnthropicChatModelHandler`` needs no function, and its predictions are texts.

    Args:
        model_name: the name of the model, such as ``"claude-haiku-4-5"``.
        request_fn: returns an answer for each example, given the model's name, the batch, the client and a dict of
            arguments: ``message_from_string``, ``message_from_conversation``, or your own.
        api_key: the key, or a function that returns it. None: ``ANTHROPIC_API_KEY`` in the worker's environment.
        system: the system message of all requests, unless ``inference_args`` have one.
        output_config: Anthropic's argument of that name for all requests, unless ``inference_args`` have it.
        options: those of ``headrace.RemoteModelHandler`` and of ``headrace.ModelHandler``; without any about batches,
            each example is a batch of its own.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    gen_ai = ("chat", "anthropic")

    def __init__(
        self,
        model_name: str,
        request_fn: Callable[[str, Sequence[Any], Anthropic, dict[str, Any]], Any],
        api_key: KeySource = None,
        *,
        system: str | list[dict[str, str]] | None = None,
        output_config: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if all(options.get(name) is None for name in _ABOUT_BATCHES):
            options["max_batch_size"] = 1
        super().__init__(namespace=_CALLER, retry_filter=_retry_on_appropriate_error, **options)
        if not callable(request_fn):
            raise ConfigurationError(
                f"{_CALLER}: request_fn must be a function, such as message_from_string, not {request_fn!r:.80}."
            )
        self._api_key = ApiKey(api_key, _KEY, _CALLER)
        self.model_name = model_name
        self.request_fn = request_fn
        self.system = system
        self.output_config = output_config

    @property
    def api_key(self) -> KeySource:
        """What the handler was given."""
        return self._api_key.given

    def create_client(self) -> Anthropic:
        """Makes the client, which retries nothing: Headrace does; ConfigurationError if there is no key."""
        client = Anthropic(api_key=self._api_key.required()) if self._api_key.given is not None else Anthropic()
        client.max_retries = 0
        _refuse_anonymous(client, self._api_key)
        return client

    def request(
        self, batch: Sequence[Any], model: Anthropic, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """Calls ``request_fn``; what it returns for an example becomes its prediction."""
        ours = {"system": self.system, "output_config": self.output_config}
        args = {**{name: value for name, value in ours.items() if value is not None}, **(inference_args or {})}
        try:
            client = _renewed(model, self._api_key)
            answers = predictions_of(self.request_fn(self.model_name, batch, client, args), "request_fn", len(batch))
        except Exception as error:
            self._api_key.mask_error(error)
            raise
        return [self._prediction(example, answer) for example, answer in zip(batch, answers, strict=True)]

    def _prediction(self, example: Any, answer: Any) -> Any:
        if isinstance(answer, ElementFailure | ElementRetry):
            self._api_key.mask_error(answer.error)
            return answer
        read, written, cached = _tokens_in(answer)
        report_usage(self.model_name, input_tokens=read, output_tokens=written, cached_tokens=cached)
        return PredictionResult(example, answer, self.model_name)


class AnthropicBatches:
    """Requests go up together, results come back as JSON lines.

    Args:
        client: returns Anthropic's, before each request: its key may have expired.
    """

    most_requests = 100_000
    most_bytes = 256_000_000

    def __init__(self, client: Callable[[], Any]) -> None:
        self._client = client

    async def prepare(self, token: str, requests: Requests) -> Any:
        """The requests as Anthropic has them, which keeps no token."""
        return [{"custom_id": name, "params": body} for name, body in requests.items()]

    async def send(self, token: str, prepared: Any) -> str:
        """Makes a batch."""
        return str((await self._client().messages.batches.create(requests=prepared)).id)

    async def find(self, batch: Announced) -> str | None:
        """The id of the batch with our requests; "" if there is none; None: that cannot be told yet.

        Anthropic says which requests a batch has when it has ended: until then, one of as many might be it.
        """
        undecided = False
        async for one in self._client().messages.batches.list(limit=100):  # the latest first
            if one.created_at.timestamp() < batch.at - _EARLIER_SECS:
                break
            size = sum(getattr(one.request_counts, count) for count in _COUNTS)
            if one.id in batch.elsewhere or size != len(batch.ids):
                continue
            if one.processing_status != "ended":
                undecided = True
            elif one.results_url:
                named = {line.id for line in await self._results(one.id)}
                if named and named <= batch.ids:
                    return str(one.id)
        return None if undecided else ""

    async def collect(self, remote: str) -> Collected | None:
        """The results of a batch; None while it runs. EndpointError: Anthropic has them no longer."""
        batch = await self._client().messages.batches.retrieve(remote)
        if batch.processing_status != "ended":
            return None
        if not batch.results_url:
            raise EndpointError(
                f"the endpoint no longer has the answers of batch {remote}: Anthropic keeps them for 29 days. Name "
                "another batch_directory to ask again."
            )
        return await self._results(remote), "some of it expired or was cancelled"

    async def _results(self, remote: str) -> list[Line]:
        response = (await self._client().messages.batches.results(remote)).http_response
        try:
            content = await response.aread()  # the client's own reader ends at a line that is damaged
        except Exception as error:  # the HTTP client's
            raise ConnectionError(f"the answers broke off: {error}") from error
        return await asyncio.to_thread(lines_in, content, _anthropic_line)


def _anthropic_line(said: dict[str, Any]) -> Line:
    result = said["result"]
    if result["type"] == "succeeded":
        return Line(said["custom_id"], 200, json.dumps(result["message"]))
    if result["type"] == "errored":
        status = _STATUSES.get(result["error"]["error"]["type"], 500)
        return Line(said["custom_id"], status, json.dumps(result["error"]))
    return Line(said["custom_id"], None, f"the request {'expired' if result['type'] == 'expired' else 'was cancelled'}")


class AnthropicChatModelHandler(ChatHandler[anthropic.AsyncAnthropic]):
    """Asks Claude; examples, predictions and arguments are those of ``OpenAIChatModelHandler``, and ``max_tokens``.

    ``inference_args`` are those of Anthropic's ``messages.create``, such as ``thinking``; what only your endpoint knows
    goes into ``extra_body``. Without ``url`` and ``api_key`` the worker's environment has them:
    ``ANTHROPIC_BASE_URL``, else the address is Anthropic's, and ``ANTHROPIC_API_KEY``.

    Args:
        max_tokens: most tokens of an answer.
    """

    gen_ai = ("chat", "anthropic")
    _extra = "anthropic"
    _client_error = anthropic.APIError
    _key_variable = _KEY
    _url_variable = "ANTHROPIC_BASE_URL"
    _path = "/messages"
    _create = AsyncMessages.create
    _ours = ("model", "messages", "stream", "system")
    _answer = Message
    _wanted = "message"

    @with_options_of(ChatHandler)
    def __init__(self, model_name: str, *, max_tokens: int = _MAX_TOKENS, **options: Any) -> None:
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise ConfigurationError(
                f"{type(self).__qualname__}: max_tokens must be an int, at least 1, not {max_tokens!r}."
            )
        super().__init__(model_name, **options)
        self._max_tokens = max_tokens

    def create_client(self) -> anthropic.AsyncAnthropic:
        """Makes the client, which retries nothing: Headrace does; ConfigurationError if there is no key."""
        key = None if self._api_key.given is None else self._api_key.required()
        client = anthropic.AsyncAnthropic(api_key=key, base_url=self._url, max_retries=0)
        _refuse_anonymous(client, self._api_key)
        return client

    def _batch_api(self, client: anthropic.AsyncAnthropic) -> AnthropicBatches:
        return AnthropicBatches(lambda: _renewed(client, self._api_key))

    def _method(self, client: anthropic.AsyncAnthropic) -> Any:
        return super()._method(_renewed(client, self._api_key))

    def _asked(self, system: str | None, messages: list[dict[str, Any]]) -> dict[str, Any]:
        asked: dict[str, Any] = {"max_tokens": self._max_tokens, "messages": messages}
        if system is not None:
            asked["system"] = system
        if self._schema is not None:
            asked["output_config"] = {"format": {"type": "json_schema", "schema": self._schema.schema}}
        return asked

    def _tokens_in(self, answer: Any) -> tuple[int, int, int]:
        return _tokens_in(answer)

    def _reply_in(self, answer: Any, asked: Mapping[str, Any]) -> ModelReply:
        texts = [text_in(block.text) for block in answer.content if block.type == "text"]
        ended = answer.stop_reason
        is_refused = ended == "refusal" and not texts
        why_none = "the model refused to answer" if is_refused else f"the answer has no text; it ended with {ended!r}"
        return ModelReply("".join(texts) if texts else None, answer, why_none, ended == "max_tokens")


def _refuse_anonymous(client: Any, key: ApiKey) -> None:
    """Refuses a client that has found nothing in its environment by which the endpoint could know it."""
    if not any(getattr(client, name, None) for name in ("api_key", "auth_token", "credentials")):
        key.required()


def _renewed(client: ClientT, key: ApiKey) -> ClientT:
    """The client, with the current key of a function: the last one may have expired."""
    if callable(key.given):
        client.api_key = key.required()
    return client


def _tokens_in(answer: Any) -> tuple[int, int, int]:
    """The tokens of a prompt, with those that came from a cache or went there; of the answer; those from the cache."""
    usage = getattr(answer, "usage", None)
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    *read, written = (count_of(getattr(usage, name, 0)) for name in names)
    return sum(read), written, read[-1]

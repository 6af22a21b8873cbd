"""What handlers have in common that ask a model with OpenAI's or Anthropic's client, which are made alike.

What a handler asks for an example, and makes of the answers, is a generator (``_steps``): it yields the arguments of a
request and is sent what was answered. So the same steps run with a request each, and in rounds of a Batch API.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from headrace.core.errors import ConfigurationError, EndpointAnswerError, EndpointError, PredictionCountError
from headrace.core.handler import ModelT
from headrace.core.remote import ElementFailure
from headrace.core.request_context import kept_for_next_try, report_rate_limit, row_cost_error, usage_was_paid_before
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey, KeySource
from headrace.core.spelling import did_you_mean, with_options_of
from headrace.handlers.batch_jobs import MAX_WAIT_SECS, BatchApi, BatchJobs, batch_options
from headrace.handlers.batch_store import Line
from headrace.handlers.prompts import Fields, InvalidAnswerError, JsonSchema, Prompts
from headrace.handlers.text_endpoints import CODES_OF_ACCOUNTS, TextEndpointHandler, checked_url, outcome_of

Steps = Generator[dict[str, Any], Any, Any]
"""Yields the arguments of requests, gets what ``_reply_in`` makes of their answers, and returns the prediction."""

_CODES_IN_BATCHES = (*CODES_OF_ACCOUNTS, "model_not_found", "unknown_parameter", "unsupported_parameter")
"""Of errors that concern every request, where no probe tells."""
_NOT_IN_BATCHES = ("extra_headers", "extra_query")
_NOT_IN_A_BODY = (*_NOT_IN_BATCHES, "extra_body", "timeout")
_UNFIT = (ElementFailure, InvalidAnswerError, PredictionCountError)
"""What becomes of an example whose answers were of no use."""
_IN_A_BATCH = 10_000
"""Examples; each takes about 20 KB here until it is answered."""
_BATCHES = 4
"""How many may be at the provider at a time; those that wait for one of them take memory, too."""


class ClientHandler(TextEndpointHandler[ModelT]):
    """Makes requests with an official client, or batches of the same requests. Subclasses say which.

    Args:
        model_name: the model's name, as the endpoint knows it.
        prompt: the prompt of each row. Column names go in braces: ``"Classify: {text}"``. Write a literal brace
            twice: ``{{``.
        url: the API's address. None: that in the worker's environment, else the provider's.
        api_key: the key, or a function that returns it. None: that in the worker's environment.
        batch_directory: a folder, made if it is missing: examples are sent in batches with the provider's Batch API,
            and what was sent is kept there, so that nothing is paid twice. None: each is a request of its own.
        max_wait_secs: how long to wait for a batch.
        options: those of ``headrace.RemoteModelHandler`` and of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: an argument is wrong.
        MissingExtraError: a schema needs the package jsonschema, batches the package filelock.
        OSError: the file of the schema cannot be opened.
    """

    _extra: ClassVar[str]
    """Of Headrace, which brings the client."""
    _key_variable: ClassVar[str]
    _path: ClassVar[str]
    """Of requests, after the API's URL; and of the client's resource, where dots part it."""
    _client_error: ClassVar[type[Exception]]
    _create: ClassVar[Callable[..., Any]]
    """The client's method."""
    _ours: ClassVar[tuple[str, ...]]
    """The arguments of it that the handler sets."""
    _answer: ClassVar[Any]
    """The client's class of answers."""
    _wanted: ClassVar[str]
    """What an answer should be, for errors."""
    _http_size: ClassVar[int] = 1
    """Examples in a request."""
    _full_answer = False
    """Whether the client's objects are needed, and not only some fields of them: making them takes a tenth of the time
    of a request."""

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
        caller = type(self).__qualname__
        self._batches = batch_options(caller, self._extra, batch_directory, max_wait_secs)
        key, url = ApiKey(api_key, self._key_variable, caller), checked_url(caller, url, self._path)
        size = self._http_size
        if self._batches is not None:
            size, self.max_concurrent = _IN_A_BATCH, _BATCHES
        super().__init__(model_name, Prompts(caller, prompt), key, url, size, **options)

    @abstractmethod
    def _steps(self, example: Any) -> Steps:
        """What to ask for an example; returns its prediction, or an ElementFailure."""

    def _method(self, client: ModelT) -> Any:
        """The client's method that sends a request and returns its raw response."""
        return attrgetter(self._path.strip("/").replace("/", "."))(client).with_raw_response.create

    @abstractmethod
    def _reply_in(self, answer: Any, asked: Mapping[str, Any]) -> Any:
        """What is in the client's object that answers a request; may raise anything if that is not what was asked."""

    @abstractmethod
    def _tokens_in(self, answer: Any) -> tuple[Any, Any, Any]:
        """The tokens of the prompt, of the answer, and of the prompt's cached part, whatever the answer is."""

    @abstractmethod
    def _batch_api(self, client: ModelT) -> BatchApi: ...

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Raises ConfigurationError for arguments that the client does not know, or that the handler sets."""
        caller, known = f"{type(self).__qualname__}: inference_args", inspect.signature(self._create).parameters
        for name in inference_args or ():
            if name in self._ours:
                raise ConfigurationError(f"{caller} must not have {name!r}; the handler sets it.")
            if self._batches is not None and name in _NOT_IN_BATCHES:
                raise ConfigurationError(f"{caller} must not have {name!r} together with batch_directory.")
            if name not in known:
                raise ConfigurationError(
                    f"{caller} have {name!r}, which the client does not know{did_you_mean(name, known)} "
                    f"What only your endpoint knows goes into extra_body={{{name!r}: ...}}."
                )

    async def request(
        self, batch: Sequence[Any], model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """Asks for each example, perhaps in a batch; a wrong one costs the others nothing."""
        if self._batches is None:
            return await super().request(batch, model, inference_args)
        caller, where, api = type(self).__qualname__, f"{self._where()} /v1{self._path}", self._batch_api(model)
        try:
            jobs = await asyncio.to_thread(BatchJobs, caller, *self._batches, where, api, error=self._client_error)
            found = await self._in_rounds(jobs, batch, inference_args or {})
        except ConfigurationError as error:  # about the folder: no request can be sent
            raise EndpointError(f"{caller}: {error}") from error
        except Exception as error:
            self._api_key.mask_error(error)
            raise
        return [outcome_of(answer, may_pass=False) for answer in found]

    async def _predict(self, example: Any, client: ModelT, args: Mapping[str, Any]) -> Any:
        steps = self._steps(example)
        try:
            asked = next(steps)
            while True:
                asked = steps.send(await self._ask(self._sent(client, {**asked, **args})))
        except StopIteration as end:
            return end.value

    async def _probe(self, client: ModelT, args: Mapping[str, Any]) -> object:
        return await self._sent(client, {**next(self._steps("Hi")), **args})

    async def _sent(self, client: ModelT, asked: Mapping[str, Any]) -> Any:
        """What the answer to a request holds."""
        raw = await self._method(client)(model=self.model_name, **asked)
        report_rate_limit(raw.headers)
        content: bytes = raw.http_response.content
        is_page = not content.lstrip().startswith((b'"', b"{")) and "json" not in raw.headers.get("content-type", "")
        return self._read(content, asked, is_page=is_page, request_id=raw.request_id)

    def _read(
        self, content: bytes, asked: Mapping[str, Any], *, is_page: bool = False, request_id: str | None = None
    ) -> Any:
        """What an answer holds. It is paid for: its tokens are reported, and whatever is wrong with it is final."""
        answer: Any = None
        with suppress(Exception):  # whatever is raised about garbage, or about JSON that is nested too deeply
            if self._full_answer:
                answer = self._answer.construct(**json.loads(content))  # as the client does
                answer._request_id = request_id
            else:
                answer = json.loads(content, object_hook=lambda found: Fields(**found))
        if not is_page:
            self._used(*self._tokens_in(answer))
        try:
            return self._reply_in(answer, asked)
        except (InvalidAnswerError, PredictionCountError):
            raise
        except Exception:
            raise self._unreadable(content, self._wanted, is_page=is_page) from None

    async def _in_rounds(self, jobs: BatchJobs, batch: Sequence[Any], args: Mapping[str, Any]) -> list[Any]:
        """Predictions, and errors in their places: what all examples ask next goes into one batch, until none asks."""
        steps = list(map(self._steps, batch))
        replies: dict[int, Any] = dict.fromkeys(range(len(batch)))
        found: list[Any] = [None] * len(batch)
        sent: list[list[Any]] = [[] for _ in batch]
        while replies:
            asked: dict[int, dict[str, Any]] = {}
            for place, reply in replies.items():
                try:
                    request = {**steps[place].send(reply), **args}
                    sent[place].append(_body({"model": self.model_name, **request}))
                    asked[place] = request
                except StopIteration as end:
                    found[place] = end.value
                except Exception as error:  # there is no request for it, or none that can be sent
                    found[place] = error
            answers = await jobs.answers([sent[place][-1] for place in asked])
            replies = {}
            for (place, request), answer in zip(asked.items(), answers, strict=True):
                try:
                    replies[place] = self._answered(answer, request)
                except Exception as error:
                    found[place] = self._judged(error, _CODES_IN_BATCHES)
        await jobs.refuse(
            body for bodies, one in zip(sent, found, strict=True) if isinstance(one, _UNFIT) for body in bodies
        )
        return found

    def _answered(self, answer: Line | Exception, asked: Mapping[str, Any]) -> Any:
        """What the answer to a request of a batch holds; raises what came of one that failed."""
        if isinstance(answer, Exception):
            raise answer
        if answer.status != 200:
            error: Any = EndpointAnswerError(f"Error code: {answer.status} - {answer.body:.500}", answer.status)
            with suppress(AttributeError, LookupError, RecursionError, TypeError, ValueError):
                error.code = json.loads(answer.body)["error"]["code"]
            raise error
        usage_was_paid_before(not answer.is_new)
        try:
            return self._read(answer.body.encode(), asked)
        finally:
            usage_was_paid_before(False)


def _body(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request with these arguments; raises TypeError or ValueError if it cannot be sent."""
    body = {name: value for name, value in asked.items() if name not in _NOT_IN_A_BODY}
    body |= asked.get("extra_body") or {}
    json.dumps(body, ensure_ascii=False).encode()
    return body


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
    """Asks a chat model: an example is a prompt, a conversation or, with ``prompt``, a row; the answer is a text.

    A conversation is a list of messages, ``{"role": "user", "content": "..."}``. With ``json_schema`` the prediction is
    the value in the answer. An answer that does not fit is sent back once, with what is wrong. All arguments that are
    not here, and errors, are those of ``ClientHandler``.

    Args:
        system: the system message of conversations that do not begin with one of their own.
        json_schema: what answers must fit: a JSON schema, or the path or URI of a file with it.
        full_answer: whether predictions are the client's objects (of chats ``ChatCompletion`` or ``Message``).
    """

    @with_options_of(ClientHandler)
    def __init__(
        self,
        model_name: str,
        *,
        system: str | None = None,
        json_schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        full_answer: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model_name, **options)
        caller = type(self).__qualname__
        self._prompts = Prompts(caller, self._prompts.template, system)
        self._schema = None if json_schema is None else JsonSchema(json_schema, caller, self._extra)
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
            if (too_dear := row_cost_error(value.error)) is not None:
                return ElementFailure(too_dear)
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

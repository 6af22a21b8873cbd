"""What handlers have in common that ask a language model behind an endpoint."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from headrace.core.cache_key import default_cache_key
from headrace.core.errors import ConfigurationError, EndpointError, as_type_name
from headrace.core.handler import ModelHandler, ModelT
from headrace.core.rate_limits import report_rate_limit
from headrace.core.remote import ElementFailure, ElementRetry, RemoteModelHandler
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey
from headrace.core.spelling import did_you_mean
from headrace.core.usage import report_usage
from headrace.handlers.batch_api import BatchApi
from headrace.handlers.batch_jobs import BatchJobs
from headrace.handlers.batch_requests import BatchOptions, BatchRequests
from headrace.handlers.client_errors import is_final, sent_no_key, status_of
from headrace.handlers.json_answers import InvalidAnswerError
from headrace.handlers.prompts import Prompts

__all__ = [
    "TextEndpointHandler",
    "answers_of",
    "as_answer",
    "checked_url",
    "heard",
]

AnswerT = TypeVar("AnswerT")

_FOR_ALL = frozenset(
    {
        "account_deactivated",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_quota",
        "model_not_found",
        "unknown_parameter",
        "unsupported_parameter",
    }
)
"""Codes of errors that concern every request. An empty account, too, is a 429 to some, and waiting does not fill it."""
_UNPAID = 402
_EMPTY = "credit balance is too low"
"""What Anthropic says of an account, with a 400."""
_BAD = (400, 413, 422)
"""Either the example or the arguments are at fault."""
_WRONG = (401, 403, 404)
_NOT_IN_BATCHES = ("extra_headers", "extra_query")
_IN_A_BATCH = 10_000
"""Examples; each takes about 20 KB here until it is answered."""
_BATCHES = 4
"""How many may be at the provider at a time; those that wait for one of them take memory, too."""


class TextEndpointHandler(RemoteModelHandler[Any, PredictionResult, ModelT]):
    """Sends requests about texts; knows which errors concern one example, and which all of them.

    A subclass sets ``_url_variable``, the environment variable with the URL of the API.

    Args:
        model_name: of the model, as the endpoint knows it.
        api_key: where the key comes from.
        url: of the API; None: that of the environment, else the provider's.
        size: examples in a request, unless the options say otherwise.
        batches: how to use the provider's Batch API; None: not.
        options: those of ``headrace.RemoteModelHandler`` and of ``headrace.ModelHandler``.
    """

    _url_variable: ClassVar[str]
    _prompts: Prompts

    def __init__(
        self,
        model_name: str,
        api_key: ApiKey,
        url: str | None,
        *,
        size: int,
        batches: BatchOptions | None = None,
        options: Mapping[str, Any],
    ) -> None:
        remote = inspect.signature(RemoteModelHandler.__init__).parameters.keys() & options.keys()
        super().__init__(**{name: options[name] for name in remote})
        others = {name: value for name, value in options.items() if name not in remote}
        if batches is not None:
            size, self.max_concurrent = _IN_A_BATCH, _BATCHES
        ModelHandler.__init__(self, **{**_full_batches(size, others), **others})
        if not isinstance(model_name, str) or not model_name:
            raise ConfigurationError(f"{type(self).__qualname__}: model_name must name a model, not {model_name!r}.")
        self.model_name = model_name
        self._api_key = api_key
        self._url = url
        self._batches = batches
        self._has_worked = False
        """Whether the endpoint has answered anything in this process."""

    def columns_of_rows(self) -> list[str]:
        """The columns that the prompt takes from a row; empty without a prompt."""
        return self._prompts.columns

    def refuse_columns(self, columns: Sequence[str]) -> None:
        """Refuses rows of which no prompt can be made.

        Raises:
            ConfigurationError: it is not clear which of the columns is the prompt.
        """
        self._prompts.refuse_columns(columns)

    def quota_name(self) -> str | None:
        """The URL and the model, whatever is asked; a handler with a key of its own may have a quota of its own."""
        return f"{self._where()} {self.model_name}" if self._api_key.given is None else None

    def cache_key(self) -> Any:
        """What decides the predictions: the URL, wherever it comes from, the model, and what is asked how."""
        return [self._where(), *default_cache_key(self)]

    def _where(self) -> str:
        return self._url or os.environ.get(self._url_variable, self._url_variable)

    def _batch_api(self, client: ModelT) -> tuple[BatchApi, str, type[Any]]:
        """The provider's Batch API, the path there of single requests, and the class of its client's HTTP client."""
        raise NotImplementedError

    async def _answers(
        self, batch: Sequence[Any], client: ModelT, predict: Callable[[Any, ModelT], Awaitable[Any]]
    ) -> list[Any]:
        """What ``predict`` returns for each example, with this client, or one whose requests are sent in batches."""
        if self._batches is None:
            return await answers_of(batch, lambda example: predict(example, client))
        options = self._batches
        api, path, http_client = self._batch_api(client)
        try:
            given = options.who, options.directory, options.max_wait_secs, f"{self._where()} {path}"
            jobs = await asyncio.to_thread(BatchJobs, *given, api)
            requests = BatchRequests(jobs)
            async with http_client(transport=requests.transport_for(http_client)) as http:
                batched = client.copy(http_client=http, timeout=options.max_wait_secs)  # type: ignore[attr-defined]
                found = await requests.run(batch, lambda example: predict(example, batched))
        except Exception as error:
            self._api_key.mask_error(error)
            raise
        for answer in found:
            if isinstance(answer, BaseException):
                self._api_key.mask_error(answer)
        return [_of_one(answer) for answer in found]

    async def _ask(self, send: Callable[[], Awaitable[AnswerT]], probe: Callable[[], Awaitable[object]]) -> AnswerT:
        """The answer to a request.

        A 400 to the first request may concern its example or all of them. A second request, the ``probe``, tells: it
        has the same arguments, and a prompt at which nothing can be wrong.

        Raises:
            EndpointError: no request can succeed.
            Exception: this one failed. The key is in none of them.
        """
        try:
            answer = await send()
        except Exception as error:
            has_no_key = sent_no_key(error)
            _explain(error)
            self._api_key.mask_error(error)
            if has_no_key:
                raise self._refusal_without_key(error) from error
            if await self._concerns_all(error, probe):
                raise self._refusal(f"{as_type_name(error)}: {error}") from error
            raise
        self._has_worked = True
        return answer

    async def _concerns_all(self, error: Exception, probe: Callable[[], Awaitable[object]]) -> bool:
        status = status_of(error)
        is_empty = status == _UNPAID or (status in _BAD and _EMPTY in str(error))
        if is_empty or getattr(error, "code", None) in _FOR_ALL:
            return True
        if self._has_worked or status not in _BAD or self._batches is not None:
            return False
        try:
            await probe()
        except Exception as again:
            return status_of(again) in _BAD
        self._has_worked = True
        return False

    def _refuse_unfit(self, create: Any, args: Mapping[str, Any] | None, ours: Collection[str]) -> None:
        """Refuses arguments of a request that the client does not know, or that the handler sets.

        Args:
            create: the client's method.
            args: the ``inference_args``.
            ours: what the handler sets.

        Raises:
            ConfigurationError: names the argument, and the one that is most likely meant.
        """
        who, known = type(self).__qualname__, inspect.signature(create).parameters
        for name in args or ():
            if name in ours:
                raise ConfigurationError(f"{who}: inference_args must not have {name!r}; the handler sets it.")
            if self._batches is not None and name in _NOT_IN_BATCHES:
                raise ConfigurationError(
                    f"{who}: inference_args must not have {name!r} together with batch_directory: a batch has no "
                    f"{name.removeprefix('extra_')} for single requests."
                )
            if name not in known:
                raise ConfigurationError(
                    f"{who}: inference_args have {name!r}, which the client does not know{did_you_mean(name, known)} "
                    f"What only your endpoint knows goes into extra_body={{{name!r}: ...}}."
                )

    def _refusal(self, reason: str) -> EndpointError:
        return EndpointError(
            f"{type(self).__qualname__}: the endpoint refuses every request: {reason.rstrip('.')}. Check the arguments "
            "of the request, the model's name, the URL and the account."
        )

    def _refusal_without_key(self, error: Exception) -> EndpointError:
        try:
            self._api_key.required()
        except ConfigurationError as missing:
            return EndpointError(f"{missing} The endpoint wants one: {as_type_name(error)}: {error}")
        return self._refusal(f"{as_type_name(error)}: {error}")

    def _used(self, tokens_in: Any, tokens_out: Any = 0) -> None:
        """Reports tokens, of which some endpoints say nothing."""
        report_usage(self.model_name, input_tokens=tokens_in or 0, output_tokens=tokens_out or 0)

    def _unreadable(self, answer: Any, wanted: str) -> Exception:
        """The error about an answer that is something else than was wanted."""
        found = self._api_key.mask(answer if isinstance(answer, str) else repr(answer))
        said = f"the endpoint answered with no {wanted}: {found[:200]!r}"
        if isinstance(answer, str) and not self._has_worked:  # such as the page of a web site
            return self._refusal(f"{said}; its URL may lack an ending, such as /v1")
        return InvalidAnswerError(said)


def _full_batches(size: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Batches as large as allowed: they take as long as small ones, and quotas count requests."""
    most = options.get("max_batch_size") or max(size, options.get("min_batch_size") or 1)
    return {"min_batch_size": most, "max_batch_size": most}


def _of_one(answer: Any) -> Any:
    """What became of one example of a batch; whatever its error is, the others have answers of their own.

    Raises:
        Exception: the error, if it concerns all of them.
    """
    if not isinstance(answer, BaseException):
        return answer
    if not isinstance(answer, Exception) or isinstance(answer, EndpointError | ConfigurationError):
        raise answer
    return ElementFailure(answer)


async def heard(asked: Awaitable[Any]) -> Any:
    """What an official client's raw response holds; reports what its headers say about rate limits."""
    raw = await asked
    report_rate_limit(raw.headers)
    answer = raw.parse()
    return await answer if inspect.isawaitable(answer) else answer


async def answers_of(examples: Sequence[Any], answer: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """The answers for examples that are asked for side by side; of several, an error stands for its own example.

    Raises:
        Exception: the error of the only example, or one that concerns all of them.
    """
    if len(examples) == 1:
        return [await answer(examples[0])]
    found = await asyncio.gather(*map(answer, examples), return_exceptions=True)
    return [as_answer(one) if isinstance(one, BaseException) else one for one in found]


def as_answer(error: BaseException) -> ElementFailure | ElementRetry:
    """What stands for one of several examples whose request failed.

    Raises:
        Exception: the error, if it concerns all of them.
    """
    status = status_of(error)
    if not isinstance(error, Exception) or isinstance(error, EndpointError | ConfigurationError) or status in _WRONG:
        raise error
    return ElementFailure(error) if is_final(status) else ElementRetry(error)


def checked_url(who: str, url: str | None, ending: str) -> str | None:
    """The URL under which an API is.

    Args:
        who: the handler's class, for errors.
        url: as the user gave it.
        ending: what requests append; people copy it, too.

    Raises:
        ConfigurationError: it is no URL of HTTP.
    """
    if url is None:
        return None
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"{who}: url must be that of an API, such as http://localhost:8000/v1, not {url!r}.")
    return url.rstrip("/").removesuffix(ending)


def _explain(error: BaseException) -> None:
    """Lets an error of a client say why, where it only says "Error code: 422", or "Connection error."."""
    body = getattr(error, "body", None)
    if status_of(error) is not None and body and str(error) == f"Error code: {status_of(error)}":
        said = body.get("detail", body) if isinstance(body, Mapping) else body  # as FastAPI words it
        error.args = (f"{error} - {said!s:.300}",)
    root = error
    while (cause := root.__cause__ or (None if root.__suppress_context__ else root.__context__)) is not None:
        root = getattr(cause, "exceptions", (cause,))[0]  # of several addresses, the first says enough
    if root is not error and status_of(error) is None and hasattr(error, "request") and str(root) not in str(error):
        error.args = (f"{error} {as_type_name(root)}: {root}",)

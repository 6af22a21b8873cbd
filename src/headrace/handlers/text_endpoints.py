"""What handlers have in common that ask a language model behind an endpoint."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from headrace.core.errors import ConfigurationError, EndpointError, PredictionCountError, as_type_name
from headrace.core.fingerprint import default_cache_key
from headrace.core.handler import ModelHandler, ModelT
from headrace.core.remote import RemoteModelHandler
from headrace.core.request_context import report_rate_limit, report_usage
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey
from headrace.core.spelling import did_you_mean
from headrace.handlers.batch_api import BatchApi
from headrace.handlers.batch_jobs import BatchJobs
from headrace.handlers.batch_requests import BatchOptions, BatchRequests
from headrace.handlers.client_errors import (
    BAD,
    REFUSED,
    WRONG,
    explain,
    outcome_of,
    outcomes_of,
    sent_no_key,
    settled,
    status_of,
)
from headrace.handlers.json_answers import InvalidAnswerError
from headrace.handlers.prompts import Prompts

__all__ = ["TextEndpointHandler", "checked_url", "count_of"]

AnswerT = TypeVar("AnswerT")

_CODES_OF_ACCOUNTS = frozenset(
    {"account_deactivated", "billing_hard_limit_reached", "billing_not_active", "insufficient_quota"}
)
"""Codes of errors that concern every request. An empty account, too, is a 429 to some, and waiting does not fill it."""
_CODES_IN_BATCHES = _CODES_OF_ACCOUNTS | {"model_not_found", "unknown_parameter", "unsupported_parameter"}
"""Where no probe tells."""
_UNPAID = 402
_EMPTY = "credit balance is too low"
"""What Anthropic says of an account, with a 400."""
_READ, _SHOWN = 2_000, 200
"""Characters of an answer that cannot be read: those searched for the key, and those in the error."""
_NOT_IN_BATCHES = ("extra_headers", "extra_query")
_IN_A_BATCH = 10_000
"""Examples; each takes about 20 KB here until it is answered."""
_BATCHES = 4
"""How many may be at the provider at a time; those that wait for one of them take memory, too."""

_RUNS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""A name for what is asked with one client; what that could not use, another one asks for again."""


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

    async def _predict(self, example: Any, client: ModelT, args: Mapping[str, Any]) -> Any:
        """The prediction for an example, or what stands for it."""
        raise NotImplementedError

    async def _probe(self, client: ModelT, args: Mapping[str, Any]) -> object:
        """Sends a request of the same arguments, and a prompt at which nothing can be wrong."""
        raise NotImplementedError

    async def _answers(self, batch: Sequence[Any], client: ModelT, given: dict[str, Any] | None) -> list[Any]:
        """Predictions for examples, each by a request with these ``inference_args``, perhaps in a batch of them."""
        args = given or {}
        if self._batches is None:
            found = await settled(batch, lambda example: self._predict(example, client, args))
            await self._refuse_all_if_probe_fails(found, client, args)
            return outcomes_of(found, others_are_accepted=True)
        options = self._batches
        api, path, http_client = self._batch_api(client)
        try:
            place = options.who, options.directory, options.max_wait_secs, f"{self._where()} {path}"
            run = _RUNS.setdefault(client, uuid.uuid4().hex)
            jobs = await asyncio.to_thread(BatchJobs, *place, api, run=run)
            requests = BatchRequests(jobs)
            async with http_client(transport=requests.transport_for(http_client)) as http:
                batched = client.copy(http_client=http, timeout=options.max_wait_secs)  # type: ignore[attr-defined]
                found = await requests.run(batch, lambda example: self._predict(example, batched, args))
        except ConfigurationError as error:  # about the folder: no request can be sent
            raise EndpointError(f"{options.who}: {error}") from error
        except Exception as error:
            self._api_key.mask_error(error)
            raise
        for answer in found:
            if isinstance(answer, BaseException):
                self._api_key.mask_error(answer)
        return [outcome_of(answer, may_pass=False) for answer in found]

    async def _ask(self, send: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        """The answer to a request.

        Raises:
            EndpointError: no request can succeed.
            Exception: this one failed. The key is in none of them.
        """
        try:
            answer = await send()
        except Exception as error:
            explain(error)
            self._api_key.mask_error(error)
            if self._is_of_account(error):
                raise self._refusal(f"{as_type_name(error)}: {error}") from error
            raise
        self._has_worked = True
        return answer

    def _is_of_account(self, error: Exception) -> bool:
        status = status_of(error)
        codes = _CODES_OF_ACCOUNTS if self._batches is None else _CODES_IN_BATCHES
        is_empty = status == _UNPAID or (status in BAD and _EMPTY in str(error))
        return is_empty or getattr(error, "code", None) in codes

    async def _refuse_all_if_probe_fails(self, found: Iterable[Any], client: ModelT, args: Mapping[str, Any]) -> None:
        """Tells refusals of single examples from that of every request, while nothing has been accepted.

        Args:
            found: what became of requests: answers and errors.
            client: with which to send another.
            args: its arguments.

        Raises:
            EndpointError: no request can succeed.
        """
        error = next(filter(_is_refusal, found), None)
        if error is None or self._has_worked or self._batches is not None:
            return
        (again,) = await settled([client], lambda client: self._probe(client, args))
        self._has_worked |= not isinstance(again, BaseException)
        if self._has_worked or not _is_refusal(again):
            return
        if sent_no_key(again):
            raise self._refusal_without_key(error) from error
        is_page = getattr(error, "is_page", False)
        said = f"{error}; its URL may lack an ending, such as /v1" if is_page else f"{as_type_name(error)}: {error}"
        is_wrong = status_of(error) in WRONG
        raise (EndpointError(type(self).__qualname__, said) if is_wrong else self._refusal(said)) from error

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

    async def _heard(self, asked: Awaitable[Any], wanted: str, read: Callable[[Any], AnswerT]) -> AnswerT:
        """What the answer to a request holds; the official client returns it as a raw response.

        The answer is paid for: its tokens are reported, and whatever is wrong with it, the error is a final one.

        Args:
            asked: the request.
            wanted: what the answer should be, for errors.
            read: finds in the client's object what is wanted; may raise anything.

        Raises:
            InvalidAnswerError: it is not what was wanted; has its beginning.
            PredictionCountError: it is for something else than what was asked.
            Exception: there is no answer.
        """
        raw = await asked
        report_rate_limit(raw.headers)
        answer, content = await _parsed(raw), raw.http_response.content
        is_page = "json" not in raw.headers.get("content-type", "") and not content.lstrip().startswith((b'"', b"{"))
        if not is_page:
            self._used(*self._tokens_in(answer))
        try:
            return read(answer)
        except Exception as error:
            if isinstance(error, InvalidAnswerError | PredictionCountError):
                raise
        raise self._unreadable(content, wanted, is_page=is_page)

    def _tokens_in(self, answer: Any) -> tuple[Any, Any]:
        """The tokens of the prompt and of the answer, whatever the answer is."""
        raise NotImplementedError

    def _used(self, tokens_in: Any, tokens_out: Any = 0) -> None:
        """Reports tokens; some endpoints leave them out, or send nonsense."""
        report_usage(self.model_name, input_tokens=count_of(tokens_in), output_tokens=count_of(tokens_out))

    def _unreadable(self, content: bytes, wanted: str, *, is_page: bool = False) -> InvalidAnswerError:
        """The error about an answer that is something else than was wanted."""
        begins = self._api_key.mask(content[:_READ].decode(errors="replace"))[:_SHOWN]
        error = InvalidAnswerError(f"the endpoint answered with no {wanted}: {begins!r}")
        error.is_page = is_page
        return error


def _is_refusal(found: Any) -> bool:
    return isinstance(found, Exception) and (status_of(found) in REFUSED or getattr(found, "is_page", False))


def count_of(tokens: Any) -> int:
    """A number of tokens; 0 for what is none."""
    return int(tokens) if isinstance(tokens, int | float) and 0 < tokens < math.inf else 0


def _full_batches(size: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Batches as large as allowed: they take as long as small ones, and quotas count requests."""
    most = options.get("max_batch_size") or max(size, options.get("min_batch_size") or 1)
    return {"min_batch_size": most, "max_batch_size": most}


async def _parsed(raw: Any) -> Any:
    """The client's object for a raw response; None: it can make none of it."""
    try:
        answer = raw.parse()
        return await answer if inspect.isawaitable(answer) else answer
    except Exception:  # whatever the client raises about garbage, or about JSON that is nested too deeply
        return None


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

"""What handlers of models behind endpoints have in common, and what the errors of official clients say."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from headrace.core.errors import ConfigurationError, EndpointError, PredictionCountError, as_type_name, causes
from headrace.core.events import UsageReported
from headrace.core.fingerprint import default_cache_key
from headrace.core.handler import ModelT
from headrace.core.remote import ElementFailure, ElementRetry, RemoteModelHandler
from headrace.core.request_context import report_used
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey
from headrace.handlers.prompts import InvalidAnswerError, PromptRows, Prompts

AnswerT = TypeVar("AnswerT")

BAD = (400, 413, 422)
WRONG = (401, 403, 404)
REFUSED = (*BAD, *WRONG)
"""Either the example is at fault, or what all requests have: the arguments, the key, the URL, the model."""
_OWN = (InvalidAnswerError, PredictionCountError, UnicodeError)
"""About what is in an answer, which was paid for, or about a prompt that cannot be sent."""

_PASSING = (408, 409, 425, 429)
"""Those of the statuses 400 to 499 that may pass."""

CODES_OF_ACCOUNTS = ("account_deactivated", "billing_hard_limit_reached", "billing_not_active", "insufficient_quota")
"""Codes of errors that concern every request. An empty account, too, is a 429 to some, and waiting does not fill it."""
_UNPAID = 402
_EMPTY = "credit balance is too low"
"""What Anthropic says of an account, with a 400."""
_READ, _SHOWN = 2_000, 200
"""Characters of an answer that cannot be read: those searched for the key, and those in the error."""


class TextEndpointHandler(PromptRows, RemoteModelHandler[Any, PredictionResult, ModelT]):
    """Asks for each example on its own; knows which errors concern one example, and which all of them.

    Args:
        model_name: of the model, as the endpoint knows it.
        prompts: make the prompts of examples.
        api_key: where the key comes from.
        url: of the API; None: that of the environment, else the provider's.
        size: examples in a request, unless the options say otherwise.
        options: those of ``headrace.RemoteModelHandler`` and of ``headrace.ModelHandler``.
    """

    _url_variable: ClassVar[str]
    """The environment variable with the URL of the API."""
    _has_worked = False
    """Whether the endpoint has answered anything in this process."""

    def __init__(
        self, model_name: str, prompts: Prompts, api_key: ApiKey, url: str | None, size: int, /, **options: Any
    ) -> None:
        # Batches as large as allowed: they take as long as small ones, and quotas count requests.
        most = options.get("max_batch_size") or max(size, options.get("min_batch_size") or 1)
        super().__init__(**{"min_batch_size": most, "max_batch_size": most, **options})
        if not isinstance(model_name, str) or not model_name:
            raise ConfigurationError(f"{type(self).__qualname__}: model_name must name a model, not {model_name!r}.")
        self.model_name = model_name
        self._prompts = prompts
        self._api_key = api_key
        self._url = url

    def quota_name(self) -> str | None:
        """The URL and the model, whatever is asked; a handler with a key of its own may have a quota of its own."""
        return f"{self._where()} {self.model_name}" if self._api_key.given is None else None

    def cache_key(self) -> Any:
        """What decides the predictions: the URL, wherever it comes from, the model, and what is asked how."""
        return [self._where(), *default_cache_key(self)]

    def _where(self) -> str:
        return self._url or os.environ.get(self._url_variable, self._url_variable)

    async def _predict(self, example: Any, client: ModelT, args: Mapping[str, Any]) -> Any:
        """The prediction for an example, or what stands for it."""
        raise NotImplementedError  # each endpoint's handler does it

    async def _probe(self, client: ModelT, args: Mapping[str, Any]) -> object:
        """Sends a request of the same arguments, and a prompt at which nothing can be wrong."""
        raise NotImplementedError  # each endpoint's handler does it

    async def request(
        self, batch: Sequence[Any], model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        """Asks for each example; a wrong one costs the others nothing. EndpointError: no request can succeed."""
        args = inference_args or {}
        found = await settled(batch, lambda example: self._predict(example, model, args))
        await self._refuse_all_if_probe_fails(found, model, args)
        return outcomes_of(found, others_are_accepted=True)

    async def _ask(self, sent: Awaitable[AnswerT]) -> AnswerT:
        """The answer to a request, or its error as ``_judged`` has it."""
        try:
            answer = await sent
        except Exception as error:
            raise self._judged(error)  # noqa: B904 - mostly the same error
        self._has_worked = True
        return answer

    def _judged(self, error: Exception, codes: Sequence[str] = CODES_OF_ACCOUNTS) -> Exception:
        """The error, without the key; or an EndpointError if it, or its code, says that it concerns every request."""
        explain(error)
        self._api_key.mask_error(error)
        is_empty = status_of(error) == _UNPAID or (status_of(error) in BAD and _EMPTY in str(error))
        if is_empty or getattr(error, "code", None) in codes:
            refusal = self._refusal(error)
            refusal.__cause__ = error
            return refusal
        return error

    async def _refuse_all_if_probe_fails(self, found: Iterable[Any], client: ModelT, args: Mapping[str, Any]) -> None:
        """Raises EndpointError if one is refused, nothing was ever accepted, and another request is refused, too."""
        error = next(filter(_is_refusal, found), None)
        if error is None or self._has_worked:
            return
        (again,) = await settled([client], lambda client: self._probe(client, args))
        self._has_worked |= not isinstance(again, BaseException)
        if not self._has_worked and _is_refusal(again):
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> EndpointError:
        """That the endpoint refuses every request, and what may be wrong."""
        caller, said = type(self).__qualname__, f"{as_type_name(error)}: {error}"
        if getattr(error, "is_page", False):
            said = f"{error}; its URL may lack an ending, such as /v1"
        elif status_of(error) in WRONG:
            return EndpointError(caller, said)
        cure = "Check the arguments of the request, the model's name, the URL and the account."
        return EndpointError(f"{caller}: the endpoint refuses every request: {said.rstrip('.')}. {cure}")

    def _used(self, tokens_in: Any, tokens_out: Any = 0, cached: Any = 0) -> None:
        """Reports tokens; some endpoints leave them out, or send nonsense."""
        read, written, had = map(count_of, (tokens_in, tokens_out, cached))
        report_used(UsageReported(self.model_name, read, written, cached_tokens=min(had, read)))

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


def checked_url(caller: str, url: str | None, ending: str) -> str | None:
    """The URL of an API, without the ending that requests append: people copy it, too."""
    if url is None:
        return None
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"{caller}: url must be that of an API, such as http://localhost:8000/v1, not {url!r}."
        )
    return url.rstrip("/").removesuffix(ending)


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an endpoint's answer; None: there was none."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def is_final(status: int | None) -> bool:
    """Whether the same request would get this status again."""
    return status is not None and 400 <= status < 500 and status not in _PASSING


def explain(error: BaseException) -> None:
    """Lets an error of a client say why, where it only says "Error code: 422", or "Connection error."."""
    body = getattr(error, "body", None)
    if status_of(error) is not None and body and str(error) == f"Error code: {status_of(error)}":
        said = body.get("detail", body) if isinstance(body, Mapping) else body  # as FastAPI words it
        error.args = (f"{error} - {said!s:.300}",)
    *_, root = causes(error)  # of several addresses the first, which says enough
    if root is not error and status_of(error) is None and hasattr(error, "request") and str(root) not in str(error):
        error.args = (f"{error} {as_type_name(root)}: {root}",)


async def settled(examples: Sequence[Any], answer: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """The answers for examples that are asked for side by side; an error in the place of one that failed."""
    if len(examples) != 1:
        return await asyncio.gather(*map(answer, examples), return_exceptions=True)
    try:
        return [await answer(examples[0])]
    except Exception as error:
        return [error]


def outcomes_of(found: Sequence[Any], *, others_are_accepted: bool = False) -> list[Any]:
    """What to answer for examples with a request each: their answers, and what stands for those that failed.

    Raises the error of the only example, and one that concerns all: unless ``others_are_accepted``, also 401, 403 and
    404 for every one of these.
    """
    errors = [one for one in found if isinstance(one, BaseException)]
    if errors and len(errors) == len(found):
        are_wrong = all(status_of(error) in WRONG for error in errors)
        is_alone = len(found) == 1 and not are_wrong and not isinstance(errors[0], _OWN)
        if is_alone or (are_wrong and not others_are_accepted):
            raise errors[0]
    return [outcome_of(one) for one in found]


def outcome_of(answer: Any, *, may_pass: bool = True) -> Any:
    """What became of one of several examples: its answer, or what stands for it if its request failed.

    Raises an error that concerns all. ``may_pass``: whether to send requests again whose errors may pass.
    """
    if not isinstance(answer, BaseException):
        return answer
    if not isinstance(answer, Exception) or isinstance(answer, EndpointError | ConfigurationError):
        raise answer
    is_lasting = not may_pass or isinstance(answer, _OWN) or is_final(status_of(answer))
    return ElementFailure(answer) if is_lasting else ElementRetry(answer)

"""Asks Gemini, through the Gemini API or Vertex AI; names and arguments as ``apache_beam.ml.inference``'s."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.core.answer import predictions_of
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.remote import ElementFailure
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey, KeySource
from headrace.handlers.prompts import InvalidAnswerError, Prompts
from headrace.handlers.text_endpoints import TextEndpointHandler, checked_url

with extra_required("google"):
    import google.genai as genai  # noqa: PLR0402 - an import from google would not name the missing package
    from google.genai import errors
    from google.genai.types import GenerateContentConfig, GenerateContentResponse, HttpOptions, HttpRetryOptions

    try:
        import httpx
    except ModuleNotFoundError:  # google-genai 3 brings its successor
        import httpx2 as httpx

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

__all__ = ["GeminiModelHandler", "generate_from_string", "generate_image_from_strings_and_images"]

_CALLER = "GeminiModelHandler"
_FLEX_HEADERS = {"X-Vertex-AI-LLM-Request-Type": "flex"}
_TIMEOUT_MS = 600_000
_KEY_VARIABLES = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
"""In the order in which Google's client looks for them."""
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What Google's client raises about an answer that is none, or about what it is to send."""
_IN_FLIGHT = 1_000
"""How many connections may be open: as many as requests may be in flight."""


def _retry_on_appropriate_service_error(exception: Exception) -> bool:
    """Whether the same request may succeed later: after a 429, a fault of the service or a lost connection."""
    if isinstance(exception, errors.APIError):
        return exception.code == 429 or exception.code >= 500  # type: ignore[no-any-return]
    return not isinstance(exception, _UNREADABLE)


def generate_from_string(model_name: str, batch: Sequence[str], model: Any, inference_args: dict[str, Any]) -> Any:
    """Asks a ``genai.Client`` for an answer to the prompts of one request; as a handler's ``request_fn``, to each.

    ``inference_args`` are further arguments of ``generate_content``. Returns Google's ``GenerateContentResponse``.
    """
    return model.models.generate_content(model=model_name, contents=batch, **inference_args)


def generate_image_from_strings_and_images(
    model_name: str, batch: Sequence[list[Any]], model: Any, inference_args: dict[str, Any]
) -> Any:
    """As ``generate_from_string``, for images; an example is a list of texts, images (PIL's) and ``Part``."""
    return model.models.generate_content(model=model_name, contents=batch, **inference_args)


_OURS = (generate_from_string, generate_image_from_strings_and_images)
"""In place of these, each example is asked for on its own, without blocking."""


class GeminiModelHandler(TextEndpointHandler[Any]):
    """Asks Gemini: an example's prediction is Google's ``GenerateContentResponse``.

    Each example is a request of its own. If Gemini blocks the prompt or the answer, or answers nothing, it is a dead
    letter that says why (``InvalidAnswerError``). With the functions of this module, and with a ``request_fn`` that is
    ``async def``, requests run in the event loop, with others on threads.

    Args:
        model_name: such as "gemini-2.5-flash".
        request_fn: takes (model_name, batch, client, inference_args), sends a request and returns its response. A batch
            is one example, unless ``min_batch_size`` or ``max_batch_size`` say otherwise: then it returns a list.
        api_key: of the Gemini API, or a function that returns it, called in the worker. None, and no project: the
            worker's environment variable GOOGLE_API_KEY or GEMINI_API_KEY, whichever is set where the handler is made.
        project: for Vertex AI, the project in Google Cloud; not together with ``api_key``.
        location: for Vertex AI, the region.
        use_vertex_flex_api: whether Vertex AI may take longer, for less money.
        prompt: the prompt of each row, with column names in braces: ``"Classify: {text}"``.
        full_answer: whether predictions are Google's responses; if not, their texts.
        url: the address of the service, in place of Google's.
        http_options: of ``genai.Client``, as ``HttpOptions`` or a dict: ``{"api_version": "v1", "timeout": 60_000}``.
        credentials: for Vertex AI, a function that returns Google's, called in the worker; None: the default there.
        options: those of ``headrace.RemoteModelHandler``, but for ``namespace`` and ``retry_filter``.

    ``inference_args`` are those of ``generate_content``: ``{"config": {"temperature": 0, "max_output_tokens": 100}}``.
    A request may take 600 s, unless ``http_options`` say otherwise; Google's client does not retry.

    Raises:
        ConfigurationError: neither a key nor a project with its location, or both; another argument is wrong.
    """

    gen_ai = ("generate_content", "gcp.gemini")
    model_parameter = "model_name"
    _url_variable = "GOOGLE_GEMINI_BASE_URL"
    _takes_conversations = False

    def __init__(  # noqa: PLR0917 - Beam's
        self,
        model_name: str,
        request_fn: Callable[[str, Sequence[Any], Any, dict[str, Any]], Any] = generate_from_string,
        api_key: KeySource = None,
        project: str | None = None,
        location: str | None = None,
        use_vertex_flex_api: bool | None = False,
        *,
        prompt: str | None = None,
        full_answer: bool = True,
        url: str | None = None,
        http_options: HttpOptions | dict[str, Any] | None = None,
        credentials: Callable[[], Credentials] | None = None,
        **options: Any,
    ) -> None:
        variable = next((name for name in _KEY_VARIABLES if os.environ.get(name)), _KEY_VARIABLES[-1])
        key = ApiKey(api_key or None, variable, _CALLER)
        given = {name: value for name, value in options.items() if value is not None}
        ours = {"namespace": _CALLER, "retry_filter": _retry_on_appropriate_service_error}
        prompts, url = Prompts(_CALLER, prompt), checked_url(_CALLER, url, "")
        super().__init__(model_name, prompts, key, url, 1, **given, **ours)
        if not callable(request_fn):
            raise ConfigurationError(f"{_CALLER}: request_fn must be a function, not {request_fn!r}.")
        self.request_fn = request_fn
        self.project = project
        self.location = location
        self.use_vertex = _is_vertex(key, variable, project, location)
        self.use_vertex_flex_api = use_vertex_flex_api
        self._full_answer = full_answer
        self._http_options = _validated(http_options)
        self._credentials = credentials

    @property
    def api_key(self) -> KeySource:
        """As it was given."""
        return self._api_key.given

    def quota_name(self) -> str | None:
        """Of Vertex AI the project, the region and the model; of the Gemini API the URL and the model."""
        if self.use_vertex:
            return f"{self._url or 'Vertex AI'} {self.project} {self.location} {self.model_name}"
        return super().quota_name()

    def create_client(self) -> Any:
        """Makes the ``genai.Client``, for the Gemini API or for Vertex AI; ConfigurationError if there is no key."""
        vertex = {"vertexai": True, "project": self.project, "location": self.location}
        place = vertex if self.use_vertex else {"api_key": self._api_key.required()}
        if self._credentials is not None:
            place["credentials"] = self._credentials()
        options = self._client_options()
        client = genai.Client(**place, http_options=options)

        async def aclose() -> None:
            await client.aio.aclose()
            await options.httpx_async_client.aclose()

        client.aclose = aclose  # the event loop closes clients that have this method, and Google's has another
        return client

    def _client_options(self) -> Any:
        """How requests travel: once, since Headrace retries."""
        is_flex = self.use_vertex and self.use_vertex_flex_api
        flex = {"api_version": "v1", "headers": _FLEX_HEADERS} if is_flex else {}
        options = HttpOptions(timeout=_TIMEOUT_MS, **flex)
        for name, value in self._http_options.items():
            setattr(options, name, {**options.headers, **value} if name == "headers" and options.headers else value)
        options.base_url = self._url or options.base_url
        options.retry_options = HttpRetryOptions(attempts=1)
        limits = httpx.Limits(max_connections=_IN_FLIGHT, max_keepalive_connections=_IN_FLIGHT)
        options.client_args = {"limits": limits, **(self._http_options.get("client_args") or {})}
        # Where aiohttp is installed, Google's client would use it, and repeat lost requests after up to ten seconds.
        given = {"limits": limits, "follow_redirects": True, **(self._http_options.get("async_client_args") or {})}
        options.httpx_async_client = httpx.AsyncClient(**given)
        return options

    @property
    def request(self) -> Callable[..., Any]:
        """Asks for the examples of a batch; ``async def``, by which Headrace goes, unless ``request_fn`` blocks."""
        if self.request_fn in _OURS:
            return super().request
        return self._request_in_loop if inspect.iscoroutinefunction(self.request_fn) else self._request_on_thread

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Refuses what Google's client does not know; a ``request_fn`` of the user's has arguments of its own."""
        given = {"config": None, **(inference_args or {})} if self.request_fn in _OURS else {"config": None}
        try:
            GenerateContentConfig.model_validate(given.pop("config") or {})
            if given:
                raise ValueError(f"it has no {', '.join(given)}; settings go into config={{'temperature': 0}}")
        except ValueError as error:
            raise ConfigurationError(f"{_CALLER}: inference_args do not fit generate_content: {error}") from error

    async def _probe(self, client: Any, args: Mapping[str, Any]) -> object:
        return await self._generated("Hi", client, args)

    async def _predict(self, example: Any, client: Any, args: Mapping[str, Any]) -> Any:
        try:
            content = self._content(example)
        except (TypeError, ValueError) as error:
            return ElementFailure(error)
        return self._prediction(example, await self._ask(self._generated(content, client, args)))

    async def _generated(self, content: Any, client: Any, args: Mapping[str, Any]) -> Any:
        with self._explaining():
            try:
                return await client.aio.models.generate_content(model=self.model_name, contents=[content], **args)
            except _UNREADABLE as error:
                self._used(0)
                said = str(getattr(error, "doc", error))  # of a JSONDecodeError
                raise self._unreadable(said.encode(errors="replace"), "response") from error

    async def _request_in_loop(
        self, batch: Sequence[Any], model: Any, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        with self._explaining():
            return self._predictions(batch, await self._called(batch, model, inference_args))

    def _request_on_thread(
        self, batch: Sequence[Any], model: Any, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        with self._explaining():
            return self._predictions(batch, self._called(batch, model, inference_args))

    def _called(self, batch: Sequence[Any], client: Any, args: dict[str, Any] | None) -> Any:
        return self.request_fn(self.model_name, list(map(self._content, batch)), client, args or {})

    def _content(self, example: Any) -> Any:
        is_row = self._prompts.template is not None and isinstance(example, Mapping)
        return self._prompts.text(example) if is_row else example

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """A context in which errors get what they lack, and lose the key."""
        try:
            yield
        except Exception as error:
            if isinstance(error, errors.APIError):
                _explain(error)
            self._api_key.mask_error(error)
            raise

    def _predictions(self, batch: Sequence[Any], answer: Any) -> list[Any]:
        """The predictions in what a ``request_fn`` of the user's returned."""
        is_single = len(batch) == 1 and self.batch_elements_kwargs().get("max_batch_size") == 1
        # What is answered to a single example is its prediction, whatever it is, as with Beam.
        answers = [answer] if is_single else predictions_of(answer, "request_fn", len(batch))
        return list(map(self._prediction, batch, answers))

    def _prediction(self, example: Any, answer: Any) -> PredictionResult | ElementFailure:
        if not isinstance(answer, GenerateContentResponse):
            return PredictionResult(example, answer, self.model_name)
        self._used(*_tokens_in(answer))
        why_not = _why_without_content(answer)
        if why_not is None and not self._full_answer:
            answer = answer.text
            why_not = "the answer has no text" if answer is None else None
        if why_not is not None:
            return ElementFailure(InvalidAnswerError(why_not))
        return PredictionResult(example, answer, self.model_name)


def _is_vertex(key: ApiKey, variable: str, project: str | None, location: str | None) -> bool:
    """Whether to ask Vertex AI, and not the Gemini API; raises ConfigurationError if the arguments do not say."""
    if key.given is not None and (project or location):
        raise ConfigurationError(f"{_CALLER}: give api_key for the Gemini API, or project and location for Vertex AI.")
    if key.given is not None or (project is None and location is None and os.environ.get(variable)):
        return False
    if project is None or location is None:
        raise ConfigurationError(
            f"{_CALLER}: for Vertex AI give project and location; for the Gemini API set {variable}, also in the "
            "environment of the workers. If only they have it, give api_key=, a function that returns the key."
        )
    return True


def _validated(given: HttpOptions | dict[str, Any] | None) -> dict[str, Any]:
    """The options that were given; raises ConfigurationError if Google's client does not know one of them."""
    try:
        options = HttpOptions.model_validate(given or {})
    except ValueError as error:
        raise ConfigurationError(f"{_CALLER}: http_options are not those of genai.Client: {error}") from None
    return {name: getattr(options, name) for name in options.model_fields_set}


def _tokens_in(response: Any) -> tuple[int, int, int]:
    """The tokens of a response that are billed: of the prompt; of the answer, with its thoughts; from a cache."""
    usage = response.usage_metadata
    names = ("prompt_token_count", "tool_use_prompt_token_count"), ("candidates_token_count", "thoughts_token_count")
    read, written = (sum(getattr(usage, name, None) or 0 for name in some) for some in names)
    return read, written, getattr(usage, "cached_content_token_count", None) or 0


def _why_without_content(response: Any) -> str | None:
    """Why a response has nothing in it; None if it has."""
    candidates, feedback = response.candidates or [], response.prompt_feedback
    if any(one.content and one.content.parts for one in candidates):
        return None
    if feedback is not None and feedback.block_reason is not None:
        return f"Gemini blocked the prompt: {_said(feedback.block_reason, feedback.block_reason_message)}"
    ended = [_said(one.finish_reason, one.finish_message) for one in candidates if one.finish_reason is not None]
    cure = "; raise max_output_tokens" if "MAX_TOKENS" in ended else ""
    return f"Gemini answered without content: {', '.join(ended) or 'it gave no reason'}{cure}"


def _said(reason: Any, message: str | None) -> str:
    name = str(getattr(reason, "name", reason))
    return f"{name} ({message})" if message else name


def _explain(error: Any) -> None:
    """Completes an ``APIError``: its status and how long to wait, where Headrace looks for them.

    The answer itself goes: it holds the request, and that holds the key.
    """
    details = repr(error.details)
    error.status_code = error.code
    if error.code == 400 and re.search("'reason': 'API_KEY_(INVALID|EXPIRED)'", details):
        error.status_code = 401  # Google's own is 400, as for a bad prompt
    elif error.code == 400 and error.status == "FAILED_PRECONDITION":
        error.status_code = 403  # from this country, or without billing
    error.headers = dict(getattr(error.response, "headers", None) or {})
    error.response = None
    error.retry_after = max(map(float, re.findall(r"'retryDelay': '(\d+(?:\.\d+)?)s'", details)), default=0.0)

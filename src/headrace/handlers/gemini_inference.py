"""Asks Gemini, through the Gemini API or Vertex AI; names and arguments as ``apache_beam.ml.inference``'s."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.core.answer import predictions_of, wrong_count
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.remote import ElementFailure
from headrace.core.result import PredictionResult
from headrace.core.secrets import ApiKey, KeySource
from headrace.handlers.cards import CARDS
from headrace.handlers.json_answers import InvalidAnswerError
from headrace.handlers.prompts import Prompts
from headrace.handlers.text_endpoints import TextEndpointHandler, checked_url

with extra_required("google"):
    import google.genai as genai  # noqa: PLR0402 - an import from google would not name the missing package
    from google.genai import errors
    from google.genai.types import GenerateContentConfig, GenerateContentResponse, HttpOptions, HttpRetryOptions

    from headrace.handlers import gemini_answers

    try:
        import httpx
    except ModuleNotFoundError:  # google-genai 3 brings its successor
        import httpx2 as httpx

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.genai.types import Part
    from PIL.Image import Image

__all__ = ["GeminiModelHandler", "generate_from_string", "generate_image_from_strings_and_images"]

_WHO = "GeminiModelHandler"
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
    """Asks for an answer to the prompts of one request.

    As the ``request_fn`` of a ``GeminiModelHandler`` it stands for a request for each prompt.

    Args:
        model_name: of a model that generates text.
        batch: the prompts; Gemini takes several as parts of one.
        model: a ``genai.Client``.
        inference_args: further arguments of ``generate_content``, such as ``{"config": {"temperature": 0}}``.

    Returns:
        Google's ``GenerateContentResponse``.
    """
    return model.models.generate_content(model=model_name, contents=batch, **inference_args)


def generate_image_from_strings_and_images(
    model_name: str, batch: Sequence[list[str | Image | Part]], model: Any, inference_args: dict[str, Any]
) -> Any:
    """Asks for images; an example is a list of texts and images (of PIL, or ``Part``).

    Args:
        model_name: of a model that generates images, such as gemini-2.5-flash-image.
        batch: the examples of one request.
        model: a ``genai.Client``.
        inference_args: further arguments of ``generate_content``.

    Returns:
        Google's ``GenerateContentResponse``.
    """
    return model.models.generate_content(model=model_name, contents=batch, **inference_args)


_OURS = (generate_from_string, generate_image_from_strings_and_images)
"""In place of these, each example is asked for on its own, without blocking."""


class GeminiModelHandler(TextEndpointHandler[Any]):
    """Asks Gemini: an example's prediction is Google's ``GenerateContentResponse``.

    Each example is a request of its own, and has an outcome of its own: its prediction or, if Gemini blocks the prompt
    or the answer, or answers nothing, a dead letter that says why (``InvalidAnswerError``). With the functions of this
    module, and with a ``request_fn`` that is ``async def``, requests run in the event loop, with others on threads.

    Args:
        model_name: such as "gemini-2.5-flash".
        request_fn: takes (model_name, batch, client, inference_args), sends a request and returns its response. A batch
            is one example, unless ``min_batch_size`` or ``max_batch_size`` say otherwise: then it returns a list with a
            response for each. The functions of this module always stand for a request for each example.
        api_key: of the Gemini API, or a function that returns it, called in the worker. None, and no project: the
            worker's environment variable GOOGLE_API_KEY or GEMINI_API_KEY, whichever is set where the handler is made.
        project: for Vertex AI, the project in Google Cloud; not together with ``api_key``.
        location: for Vertex AI, the region.
        use_vertex_flex_api: whether Vertex AI may take longer, for less money.
        prompt: the prompt of each row. Column names go in braces: ``"Classify: {text}"``. Write a literal brace
            twice: ``{{``.
        full_answer: whether predictions are Google's responses; if not, their texts.
        url: the address of the service, in place of Google's.
        http_options: of ``genai.Client``, as ``HttpOptions`` or a dict: ``{"api_version": "v1", "timeout": 60_000}``.
        credentials: for Vertex AI, a function that returns Google's credentials, called in the worker; None: the
            default credentials there.
        options: those of ``headrace.RemoteModelHandler`` and ``headrace.ModelHandler``, but for ``namespace`` and
            ``retry_filter``.

    ``inference_args`` are those of ``generate_content``: ``{"config": {"temperature": 0, "max_output_tokens": 100}}``.
    A request may take 600 s, unless ``http_options`` say otherwise; Google's client does not retry.

    Raises:
        ConfigurationError: neither a key nor a project with its location, or both; another argument is wrong.
    """

    card = CARDS["gemini_inference.GeminiModelHandler"]
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
        key = ApiKey(api_key or None, variable, _WHO)
        given = {name: value for name, value in options.items() if value is not None}
        ours = {"namespace": _WHO, "retry_filter": _retry_on_appropriate_service_error}
        prompts, url = Prompts(_WHO, prompt), checked_url(_WHO, url, "")
        super().__init__(model_name, prompts, key, url, size=1, options={**given, **ours})
        if not callable(request_fn):
            raise ConfigurationError(f"{_WHO}: request_fn must be a function, not {request_fn!r}.")
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
        """Makes the ``genai.Client``, for the Gemini API or for Vertex AI.

        Raises:
            ConfigurationError: there is no key.
        """
        if self.use_vertex:
            place = {"vertexai": True, "project": self.project, "location": self.location}
        else:
            place = {"api_key": self._api_key.required()}
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
        """How requests travel: once, since Headrace retries, and within a limit of time."""
        if self.use_vertex and self.use_vertex_flex_api:
            options = HttpOptions(api_version="v1", headers=_FLEX_HEADERS, timeout=_TIMEOUT_MS)
        else:
            options = HttpOptions(timeout=_TIMEOUT_MS)
        for name, value in self._http_options.items():
            setattr(options, name, {**options.headers, **value} if name == "headers" and options.headers else value)
        options.base_url = self._url or options.base_url
        limits = httpx.Limits(max_connections=_IN_FLIGHT, max_keepalive_connections=_IN_FLIGHT)
        options.retry_options = HttpRetryOptions(attempts=1)
        # Where aiohttp is installed, Google's client would use it, and repeat lost requests after up to ten seconds.
        given = self._http_options.get("async_client_args") or {}
        options.httpx_async_client = httpx.AsyncClient(**{"limits": limits, "follow_redirects": True, **given})
        options.client_args = {"limits": limits, **(self._http_options.get("client_args") or {})}
        return options

    @property
    def request(self) -> Callable[..., Any]:
        """Asks for the examples of a batch; ``async def`` if ``request_fn`` can do so without blocking.

        A property, since Headrace tells by the method whether requests run in the event loop or on threads.
        """
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
            raise ConfigurationError(f"{_WHO}: inference_args do not fit generate_content: {error}") from error

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
                models = client.aio.models
                return await models.generate_content(model=self.model_name, contents=[content], **args)
            except _UNREADABLE as error:
                self._used(0)
                said = str(getattr(error, "doc", error))  # of a JSONDecodeError
                raise self._unreadable(said.encode(errors="replace"), "response") from error

    async def _request_in_loop(
        self, batch: Sequence[Any], model: Any, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        with self._explaining():
            answer = await self.request_fn(self.model_name, self._contents(batch), model, inference_args or {})
        return self._predictions(batch, answer)

    def _request_on_thread(
        self, batch: Sequence[Any], model: Any, inference_args: dict[str, Any] | None = None
    ) -> list[Any]:
        with self._explaining():
            answer = self.request_fn(self.model_name, self._contents(batch), model, inference_args or {})
        return self._predictions(batch, answer)

    def _contents(self, batch: Sequence[Any]) -> list[Any]:
        return list(map(self._content, batch))

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
                gemini_answers.explain(error)
            self._api_key.mask_error(error)
            raise

    def _predictions(self, batch: Sequence[Any], answer: Any) -> list[Any]:
        """The predictions in what a ``request_fn`` of the user's returned.

        Raises:
            PredictionCountError: it is for several examples, and has not a response for each.
        """
        if len(batch) == 1 and self.batch_elements_kwargs().get("max_batch_size") == 1:
            answers = [answer]  # whatever it is, as with Beam
        else:
            answers = predictions_of(answer, "request_fn", len(batch))
        if len(answers) != len(batch):
            raise wrong_count("request_fn", len(batch), len(answers))
        return list(map(self._prediction, batch, answers))

    def _prediction(self, example: Any, answer: Any) -> PredictionResult | ElementFailure:
        if not isinstance(answer, GenerateContentResponse):
            return PredictionResult(example, answer, self.model_name)
        self._used(*gemini_answers.tokens_in(answer))
        why_not = gemini_answers.why_without_content(answer)
        if why_not is None and not self._full_answer:
            answer = answer.text
            why_not = "the answer has no text" if answer is None else None
        if why_not is not None:
            return ElementFailure(InvalidAnswerError(why_not))
        return PredictionResult(example, answer, self.model_name)


def _is_vertex(key: ApiKey, variable: str, project: str | None, location: str | None) -> bool:
    """Whether to ask Vertex AI, and not the Gemini API.

    Raises:
        ConfigurationError: the arguments do not say.
    """
    if key.given is not None:
        if project or location:
            raise ConfigurationError(f"{_WHO}: give api_key for the Gemini API, or project and location for Vertex AI.")
        return False
    if project is None and location is None and os.environ.get(variable):
        return False
    if project is None or location is None:
        raise ConfigurationError(
            f"{_WHO}: for Vertex AI give project and location; for the Gemini API set {variable}, also in the "
            "environment of the workers. If only they have it, give api_key=, a function that returns the key."
        )
    return True


def _validated(given: HttpOptions | dict[str, Any] | None) -> dict[str, Any]:
    """The options that were given.

    Raises:
        ConfigurationError: there is one that Google's client does not know.
    """
    try:
        options = HttpOptions.model_validate(given or {})
    except ValueError as error:
        raise ConfigurationError(f"{_WHO}: http_options are not those of genai.Client: {error}") from None
    return {name: getattr(options, name) for name in options.model_fields_set}

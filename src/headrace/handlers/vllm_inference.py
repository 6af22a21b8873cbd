"""Runs language models with vLLM in a server; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import asyncio
import os
import ssl
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from headrace.core.beam_compat import with_beams_attributes
from headrace.core.engine import EngineModelHandler
from headrace.core.errors import ConfigurationError, UnsupportedError, extra_required
from headrace.core.files import open_uri
from headrace.core.result import PredictionResult
from headrace.core.spelling import with_options_of
from headrace.handlers.base import UriModelHandler
from headrace.handlers.prompts import ROLES
from headrace.handlers.vllm_server import Launch, Server, ServerProcess, VLLMServerError, server_arguments

with extra_required("vllm"):
    import openai

__all__ = ["OpenAIChatMessage", "VLLMChatModelHandler", "VLLMCompletionsModelHandler", "VLLMServerError"]

_IN_FLIGHT = 1_000
"""How many requests the server has at a time; those that wait here cannot time out there."""
_START_SECS = 1800.0
_PASSING = (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError)

ExampleT = TypeVar("ExampleT")


@dataclass(frozen=True)
class OpenAIChatMessage:
    """One message of a conversation."""

    role: str
    """Who sent it: "system", "user", "assistant"."""
    content: str


class _VLLMModelServer(Server):
    """A server by Beam's name, with Beam's arguments: handlers with a ``load_model`` of their own return one."""

    def __init__(
        self,
        model_name: str | os.PathLike[str],
        vllm_server_kwargs: Mapping[str, Any],
        dynamo_frontend_kwargs: Mapping[str, Any] | None = None,
        use_dynamo: bool = False,
    ) -> None:
        _refuse_dynamo(use_dynamo)
        super().__init__(Launch(os.fspath(model_name), *server_arguments(vllm_server_kwargs), _START_SECS))


@with_beams_attributes
class _VLLMModelHandler(UriModelHandler[ExampleT, Server], EngineModelHandler[ExampleT, PredictionResult, Server]):
    """Starts the server and sends requests; subclasses make a request from an example."""

    takes_batching_options = True

    def __init__(
        self,
        model_name: str,
        vllm_server_kwargs: Mapping[str, Any] | None = None,
        *,
        use_dynamo: bool = False,
        dynamo_frontend_kwargs: Mapping[str, Any] | None = None,
        start_timeout_secs: float = _START_SECS,
        **options: Any,
    ) -> None:
        super().__init__(model_name, **{"max_concurrent": _IN_FLIGHT, **options})
        self._use_dynamo, self._dynamo_frontend_kwargs = use_dynamo, dict(dynamo_frontend_kwargs or {})
        _refuse_dynamo(use_dynamo)
        if not start_timeout_secs > 0:
            raise ConfigurationError(f"start_timeout_secs must be positive, not {start_timeout_secs!r}.")
        self._vllm_server_kwargs = dict(vllm_server_kwargs or {})
        server_arguments(self._vllm_server_kwargs)
        self._start_timeout_secs = start_timeout_secs

    def load_model(self) -> Server:
        """Starts a server; returns when it answers."""
        return Server(self._launch())

    def _launch(self) -> Launch:
        _refuse_dynamo(self._use_dynamo)
        return Launch(self._model_uri, *server_arguments(self._vllm_server_kwargs), self._start_timeout_secs)

    async def submit(
        self, example: ExampleT, model: Server, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Sends one request; again if the server dies meanwhile. VLLMServerError: it died over this one."""
        answer = await model.ask(partial(self._answered, example=example, args=inference_args or {}))
        return PredictionResult(example, answer, self._model_uri)

    def run_inference(
        self, batch: Sequence[ExampleT], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Submits a batch and waits for all predictions; Beam's own RunInference gives a proxy of the server."""
        if isinstance(model, Server):
            return super().run_inference(batch, model, inference_args)
        answers: list[PredictionResult] = model.answers_to(self, batch, inference_args)
        return answers

    async def _answered(self, server: ServerProcess, example: ExampleT, args: dict[str, Any]) -> Any:
        name = self._model_uri if self._model_uri in server.served else server.served[0]
        try:
            return await self._request(_client_of(server), example, {"model": name, **args})
        except _PASSING as error:
            if not await asyncio.to_thread(server.is_dead):
                raise
            raise server.error(f"{server.ending} over this prompt, at last with no other beside it") from error

    @abstractmethod
    async def _request(self, client: openai.AsyncOpenAI, example: ExampleT, args: dict[str, Any]) -> Any:
        """Sends the request for one example; returns the server's answer."""

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """For Beam's own RunInference, which sends the requests of a batch side by side."""
        return self._batching_kwargs

    def share_model_across_processes(self) -> bool:
        """True: one server serves all processes of a machine."""
        return True


class VLLMCompletionsModelHandler(_VLLMModelHandler[str]):
    """Completes prompts: an example is a text, its prediction OpenAI's ``Completion``.

    Args:
        model_name: id of a model on the Hugging Face hub, or a path.
        vllm_server_kwargs: further options of vLLM's server, without leading dashes: ``{"max-num-seqs": 64,
            "enforce-eager": None}``. With ``{"tensor-parallel-size": 2}`` the server uses two GPUs.
        use_dynamo: must be False in this version.
        dynamo_frontend_kwargs: has no effect in this version.
        start_timeout_secs: how long the server may take until it answers, in seconds; includes downloading, loading
            and compiling.
        options: those of ``headrace.ModelHandler``.

    ``inference_args`` are those of OpenAI's request (``max_tokens``, ``temperature``, ``timeout`` in seconds, ...).

    Raises:
        ConfigurationError: an option of the server that Headrace sets itself.
    """

    gen_ai = ("text_completion", "vllm")

    async def _request(self, client: openai.AsyncOpenAI, example: str, args: dict[str, Any]) -> Any:
        return await client.completions.create(prompt=example, **args)


class VLLMChatModelHandler(_VLLMModelHandler[Sequence[OpenAIChatMessage]]):
    """Continues conversations: an example is a sequence of messages, its prediction OpenAI's ``ChatCompletion``.

    All other arguments, and errors, are those of ``VLLMCompletionsModelHandler``.

    Args:
        chat_template_path: path or URI of a chat template, for models without one.
    """

    gen_ai = ("chat", "vllm")

    @with_options_of(_VLLMModelHandler)
    def __init__(
        self,
        model_name: str,
        chat_template_path: str | os.PathLike[str] | None = None,
        vllm_server_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model_name, vllm_server_kwargs, **options)
        self._chat_template_path = None if chat_template_path is None else os.fspath(chat_template_path)

    def _launch(self) -> Launch:
        """With the current content of the chat template, which vLLM takes in place of a file's name, too."""
        launch = super()._launch()
        if self._chat_template_path is None:
            return launch
        with open_uri(self._chat_template_path) as file:
            template = file.read().decode().encode("unicode_escape").decode()
        return launch._replace(arguments=(*launch.arguments, "--chat-template", template))

    async def _request(
        self, client: openai.AsyncOpenAI, example: Sequence[OpenAIChatMessage], args: dict[str, Any]
    ) -> Any:
        messages: Any = [{"role": message.role, "content": message.content} for message in example]
        return await client.chat.completions.create(messages=messages, **args)

    def example_from_row(self, row: Mapping[str, Any]) -> list[OpenAIChatMessage]:
        """A conversation with a message for each column, whose name is the role; a single column may have any name."""
        if len(row) == 1:
            return [OpenAIChatMessage("user", str(text)) for text in row.values()]
        wrong = sorted(set(row) - set(ROLES))
        if wrong:
            raise ValueError(f"columns of a conversation are named as roles ({', '.join(ROLES)}), not {wrong}.")
        return [OpenAIChatMessage(role, str(text)) for role, text in row.items()]


def _refuse_dynamo(use_dynamo: bool) -> None:
    if use_dynamo:
        raise UnsupportedError("use_dynamo=True", "leave it out, and vLLM's own server runs the model")


def _client_of(server: ServerProcess) -> openai.AsyncOpenAI:
    """The server's client. It keeps no connection, so it belongs to no event loop, and nobody needs to close it."""
    if server.client is None:
        # No proxy and no certificates are needed; reading the latter takes longer than everything else here.
        http = openai.DefaultAsyncHttpxClient(trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        options = {"max_retries": 0, "default_headers": {"connection": "close"}, "http_client": http}
        server.client = openai.AsyncOpenAI(api_key=server.api_key, base_url=server.url, **options)
    client: openai.AsyncOpenAI = server.client
    return client

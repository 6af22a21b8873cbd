"""Runs language models with vLLM, in a server of its own; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.core.errors import ConfigurationError, MissingExtraError, UnsupportedError
from headrace.core.files import open_uri
from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult
from headrace.handlers.cards import CARDS
from headrace.handlers.vllm_server import Launch, Server, ServerProcess, VLLMServerError, server_arguments

try:
    import openai
except ImportError as error:
    raise MissingExtraError("openai", "vllm") from error

__all__ = ["OpenAIChatMessage", "VLLMChatModelHandler", "VLLMCompletionsModelHandler", "VLLMServerError"]

_IN_FLIGHT = 1_000
"""Requests of one batch that are sent at a time: what waits here cannot run into a time limit there."""
_START_SECS = 1800.0
_PASSING = (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError)
_ROLES = ("system", "user", "assistant", "developer", "tool")

ExampleT = TypeVar("ExampleT")


@dataclass(frozen=True)
class OpenAIChatMessage:
    """One message of a conversation."""

    role: str
    """Who sent it: "system", "user", "assistant"."""
    content: str


class _VLLMModelHandler(ModelHandler[ExampleT, PredictionResult, Server]):
    """What the two handlers have in common: the server, and how it is asked."""

    def __init__(
        self,
        model_name: str,
        vllm_server_kwargs: Mapping[str, Any] | None,
        start_timeout_secs: float,
        use_dynamo: bool,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(**options)
        if use_dynamo:
            raise UnsupportedError("use_dynamo=True", "leave it out, and vLLM's own server runs the model")
        if not start_timeout_secs > 0:
            raise ConfigurationError(f"start_timeout_secs must be positive, not {start_timeout_secs!r}.")
        self._model_name = model_name
        self._arguments, self._api_key = server_arguments(vllm_server_kwargs or {})
        self._start_timeout_secs = start_timeout_secs

    def load_model(self) -> Server:
        """A server that answers."""
        return Server(Launch(self._model_name, self._arguments, self._api_key, self._start_timeout_secs))

    def run_inference(
        self, batch: Sequence[ExampleT], model: Server, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Asks the server for all of a batch side by side, and again for what is missing if it dies meanwhile.

        Answers that have come are kept where others have not: they are not asked for again when the batch is repeated,
        whole or in parts, in the same thread.

        Raises:
            VLLMServerError: the server has died twice, or does not start again.
            openai.OpenAIError: what has become of a request; of several, one that may pass by itself.
        """
        answers = recall(model.local, batch, inference_args)
        try:
            self._fill(answers, batch, model, inference_args or {})
        except BaseException:
            remember(model.local, batch, inference_args, answers)
            raise
        return [PredictionResult(*pair, self._model_name) for pair in zip(batch, answers, strict=True)]

    def _fill(self, answers: list[Any], batch: Sequence[ExampleT], model: Server, args: dict[str, Any]) -> None:
        error: BaseException | None = None
        try:
            for _ in range(2):
                server = model.running()
                error = self._fill_from(server, answers, batch, args)
                if error is None:
                    return
                if not (isinstance(error, _PASSING) and server.is_dead()):
                    raise error
            raise server.error(f"{server.ending} over a batch, as the one before did") from error
        finally:
            del error  # whose traceback has this frame: in a cycle with it the server would outlive its last user

    def _fill_from(
        self, server: ServerProcess, answers: list[Any], batch: Sequence[ExampleT], args: dict[str, Any]
    ) -> BaseException | None:
        """Puts answers where there are none yet; returns why there are still none: a passing reason if any."""
        missing = [place for place, answer in enumerate(answers) if answer is None]
        outcomes = _run(self._ask(server, [batch[place] for place in missing], args))
        errors: list[BaseException] = []
        for place, outcome in zip(missing, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                errors.append(outcome)
            else:
                answers[place] = outcome
        return min(errors, key=lambda error: not isinstance(error, _PASSING), default=None)

    async def _ask(self, server: ServerProcess, examples: Sequence[ExampleT], args: dict[str, Any]) -> list[Any]:
        """Answers, and exceptions in place of those that did not come."""
        room = asyncio.Semaphore(_IN_FLIGHT)
        name = self._model_name if self._model_name in server.served else server.served[0]
        # No proxy stands between, and no certificates need to be read, which takes longer than all else here.
        transport = openai.DefaultAsyncHttpxClient(trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        async with openai.AsyncOpenAI(
            api_key=server.api_key, base_url=server.url, max_retries=0, http_client=transport
        ) as client:

            async def answer(example: ExampleT) -> Any:
                async with room:
                    return await self._request(client, example, {"model": name, **args})

            return await asyncio.gather(*map(answer, examples), return_exceptions=True)

    @abstractmethod
    async def _request(self, client: openai.AsyncOpenAI, example: ExampleT, args: dict[str, Any]) -> Any:
        """What the server says to one example."""

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` start a server of another model; ``None`` leaves it as it is."""
        self._model_name = model_path or self._model_name

    def share_model_across_processes(self) -> bool:
        """Yes: one server serves all processes of a machine."""
        return True


class VLLMCompletionsModelHandler(_VLLMModelHandler[str]):
    """Completes prompts: an example is a text, its prediction OpenAI's ``Completion``.

    Args:
        model_name: of Hugging Face's hub, or a path.
        vllm_server_kwargs: further options of vLLM's server, without their dashes, as ``{"max-num-seqs": 64,
            "enforce-eager": None}``. With ``{"tensor-parallel-size": 2}`` one server has two GPUs.
        use_dynamo: must be False in this version, as ``dynamo_frontend_kwargs`` must be None.
        dynamo_frontend_kwargs: see there.
        start_timeout_secs: how long the server may take until it answers, in seconds: downloads, loading, compiling.
        options: those of ``headrace.ModelHandler``.

    ``inference_args`` are those of OpenAI's request (``max_tokens``, ``temperature``, ``timeout`` in seconds, ...).

    Raises:
        ConfigurationError: an option of the server's that is not the user's to choose.
    """

    card = CARDS["vllm_inference.VLLMCompletionsModelHandler"]

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
        super().__init__(model_name, vllm_server_kwargs, start_timeout_secs, use_dynamo, options)

    async def _request(self, client: openai.AsyncOpenAI, example: str, args: dict[str, Any]) -> Any:
        return await client.completions.create(prompt=example, **args)


class VLLMChatModelHandler(_VLLMModelHandler[Sequence[OpenAIChatMessage]]):
    """Continues conversations: an example is a sequence of messages, its prediction OpenAI's ``ChatCompletion``.

    Args:
        model_name: of Hugging Face's hub, or a path.
        chat_template_path: path or URI of a chat template, for models that have none of their own.
        vllm_server_kwargs: as for ``VLLMCompletionsModelHandler``, as is all that follows.
        use_dynamo: see there.
        dynamo_frontend_kwargs: see there.
        start_timeout_secs: see there.
        options: see there.

    Raises:
        ConfigurationError: an option of the server's that is not the user's to choose.
    """

    card = CARDS["vllm_inference.VLLMChatModelHandler"]

    def __init__(
        self,
        model_name: str,
        chat_template_path: str | os.PathLike[str] | None = None,
        vllm_server_kwargs: Mapping[str, Any] | None = None,
        *,
        use_dynamo: bool = False,
        dynamo_frontend_kwargs: Mapping[str, Any] | None = None,
        start_timeout_secs: float = _START_SECS,
        **options: Any,
    ) -> None:
        super().__init__(model_name, vllm_server_kwargs, start_timeout_secs, use_dynamo, options)
        self._chat_template_path = None if chat_template_path is None else os.fspath(chat_template_path)

    def load_model(self) -> Server:
        """A server that answers, with the chat template as it is now."""
        template = None
        if self._chat_template_path is not None:
            with open_uri(self._chat_template_path) as file:
                template = file.read()
        launch = Launch(self._model_name, self._arguments, self._api_key, self._start_timeout_secs)
        return Server(launch, template)

    async def _request(
        self, client: openai.AsyncOpenAI, example: Sequence[OpenAIChatMessage], args: dict[str, Any]
    ) -> Any:
        messages: Any = [{"role": message.role, "content": message.content} for message in example]
        return await client.chat.completions.create(messages=messages, **args)

    def example_from_row(self, row: Mapping[str, Any]) -> list[OpenAIChatMessage]:
        """A conversation of one message for each column, which names the role; a single column may have any name.

        Raises:
            ValueError: of several columns one is no role.
        """
        if len(row) == 1:
            return [OpenAIChatMessage("user", str(text)) for text in row.values()]
        wrong = sorted(set(row) - set(_ROLES))
        if wrong:
            raise ValueError(f"columns of a conversation are named as roles ({', '.join(_ROLES)}), not {wrong}.")
        return [OpenAIChatMessage(role, str(text)) for role, text in row.items()]


def recall(local: threading.local, batch: Sequence[Any], args: Any) -> list[Any]:
    """For each example the answer that it had in a batch that failed as a whole, in this thread; else None."""
    known_args, known = _known(local)
    if known_args != args or not any(id(example) in known for example in batch):
        local.known = None, {}
        return [None] * len(batch)
    return [answers.pop() if answers else None for _, answers in (known.get(id(one), (one, [])) for one in batch)]


def remember(local: threading.local, batch: Sequence[Any], args: Any, answers: Sequence[Any]) -> None:
    """Keeps what the examples of a batch that fails have been answered, until its thread begins another batch."""
    _, known = _known(local)
    for example, answer in zip(batch, answers, strict=True):
        kept = known.setdefault(id(example), (example, []))[1]  # with the example, so that its id stays its own
        kept += [] if answer is None else [answer]
    local.known = args, known


def _known(local: threading.local) -> tuple[Any, dict[int, tuple[Any, list[Any]]]]:
    """The arguments of the calls, and the answers that are left, by the example's id."""
    known: tuple[Any, dict[int, tuple[Any, list[Any]]]] = getattr(local, "known", (None, {}))
    return known


def _run(work: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    """In a thread of its own.

    This one may have an event loop already, as a notebook's does; and errors of lost connections, which are in cycles
    with their frames, would have the frames of whoever called this thread, too, and with them the model.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()

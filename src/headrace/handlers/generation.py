"""What handlers of language models on this machine have in common: prompts, what is generated, and restarts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Generic, NoReturn, TypedDict, TypeVar

from headrace.core.engine import EngineModelHandler
from headrace.core.errors import ConfigurationError
from headrace.core.handler import ModelT
from headrace.core.request_context import report_generation
from headrace.core.result import PredictionResult
from headrace.handlers.base import UriModelHandler
from headrace.handlers.prompts import PromptRows, Prompts, as_message

RunningT = TypeVar("RunningT")
AnswerT = TypeVar("AnswerT")

_LOGGER = logging.getLogger(__name__)
_RARITY = 10
"""After a failed start, no other is attempted for this many times the duration of the failed one."""

Prompt = str | Sequence[Mapping[str, Any]]
"""A text; or a conversation: messages with a role and a content."""


class EngineLostError(RuntimeError):
    """What generates text has ended over this request, or another."""


class Generated(TypedDict):
    """What a language model made of a prompt."""

    text: str
    finish_reason: str
    """``"stop"``: the model ended the text; ``"length"``: it had no more tokens."""
    input_tokens: int
    output_tokens: int


def as_messages(prompt: Any) -> list[dict[str, Any]] | None:
    """The messages of a conversation; None if the prompt is a text. Raises TypeError if it is neither."""
    if isinstance(prompt, str):
        return None
    if not (isinstance(prompt, Sequence) and prompt):
        raise TypeError(f"a prompt is a text, or a list of messages, not {prompt!r:.80}.")
    messages = list(map(as_message, prompt))
    for one in messages:
        if "content" not in one:  # a chat template would make an empty message of it
            raise TypeError(f"a message must be a dict with 'role' and 'content', not {one!r:.80}.")
    return messages


class GenerationModelHandler(
    PromptRows, UriModelHandler[Prompt, ModelT], EngineModelHandler[Prompt, PredictionResult, ModelT]
):
    """Continues prompts and conversations with an engine in this process.

    An example is a text, or a list of messages such as ``{"role": "user", "content": "Hello"}``, for models with a chat
    template. Its prediction is a dict: ``text``, ``finish_reason`` (``"stop"``, or ``"length"`` if it was cut off),
    ``input_tokens`` and ``output_tokens``. A prompt that the model cannot take, such as one that is too long, fails
    alone.

    Args:
        model_uri: id of a model on the Hugging Face hub, or the folder of a saved one.
        prompt: the prompt of each row. Column names go in braces: ``"Classify: {text}"``.
        options: those of ``headrace.EngineModelHandler``.

    Raises:
        ConfigurationError: an option cannot be used.
    """

    models_have_ids: ClassVar[bool] = True
    """Whether a model's URI may be its id on a hub, so that no local file needs to exist."""

    def __init__(self, model_uri: str | os.PathLike[str], prompt: str | None = None, **options: Any) -> None:
        super().__init__(model_uri, **options)
        if not self._model_uri:
            raise ConfigurationError("model_uri must be a model's id on the hub or a folder; it is empty.")
        self._prompts = Prompts(type(self).__qualname__, prompt)

    def asked(self, example: Any) -> Prompt:
        """The prompt of an example, which may be a row if there is a ``prompt``; else raises as ``Prompts.text``."""
        return self._prompts.text(example) if isinstance(example, Mapping) else example

    def _predicted(
        self, example: Any, made: Generated, *, seconds: float, first_token_secs: float | None
    ) -> PredictionResult:
        """The prediction for an example; reports what it took."""
        counts = {"input_tokens": made["input_tokens"], "output_tokens": made["output_tokens"]}
        report_generation(self._model_uri, **counts, seconds=seconds, first_token_secs=first_token_secs)
        return PredictionResult(example, made, self._model_uri)

    def prefix(self, example: Any) -> str | None:
        """The prompt, so that those that begin alike go together."""
        prompt = self.asked(example)
        return prompt if isinstance(prompt, str) else json.dumps(prompt, default=str)


class Restarted(Generic[RunningT]):
    """What generates text: started at once, again on demand after it has ended, and ended with this object.

    Requests that it ends over are repeated, all together: mostly the reason was none of them. What it ends over a
    second time goes alone, so that only the one at fault fails. Thread-safe. It cannot be pickled.

    Args:
        start: starts it.
        why_ended: says how it ended; None: it runs.
        end: ends it, with all that it has started.
    """

    def __init__(
        self,
        start: Callable[[], RunningT],
        why_ended: Callable[[RunningT], str | None],
        end: Callable[[RunningT], object],
    ) -> None:
        self._start, self._why_ended, self._end = start, why_ended, end
        self._lock = threading.Lock()
        self._failed: tuple[Exception, float] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keep(start())

    def _keep(self, running: RunningT) -> None:
        self._now = running
        self._finalizer = weakref.finalize(self, self._end, running)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: it lives in one process")

    def running(self) -> RunningT:
        """What runs; another if the last one has ended. Raises if that does not start, or did not a short while ago."""
        with self._lock:
            why = self._why_ended(self._now)
            if why is None:
                return self._now
            began = time.monotonic()
            if self._failed is not None and began < self._failed[1]:
                raise self._failed[0]
            _LOGGER.warning("%s; another one is started.", why)
            self._finalizer()
            try:
                self._keep(self._start())
            except Exception as error:
                now = time.monotonic()
                self._failed = error, now + _RARITY * (now - began)
                raise
            return self._now

    async def ask(self, request: Callable[[RunningT], Awaitable[AnswerT]]) -> AnswerT:
        """What a request returns, which raises EngineLostError if what runs ended over it: at last alone, too."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._turns = loop, _RequestTurns()
            self._restart: asyncio.Future[RunningT] | None = None
        turns = self._turns
        for _ in range(2):
            async with turns.beside_others():
                running = await self._alive()
                try:
                    return await request(running)
                except EngineLostError as error:
                    error.with_traceback(None)  # its frames would keep this object, and so what runs
        async with turns.alone():
            return await request(await self._alive())

    async def _alive(self) -> RunningT:
        while self._why_ended(self._now) is not None:
            if self._restart is None or self._restart.done():  # one for all that wait, who may give up meanwhile
                self._restart = asyncio.ensure_future(asyncio.to_thread(self.running))
                self._restart.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.shield(self._restart)
        return self._now


class _RequestTurns:
    """Lets requests run beside each other, or one alone."""

    def __init__(self) -> None:
        self._running = 0
        self._gate = asyncio.Lock()
        self._none_runs = asyncio.Event()
        self._none_runs.set()

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        """Waits while one runs alone, or wants to."""
        async with self._gate:
            self._running += 1
            self._none_runs.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._none_runs.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Waits until all others have ended; those that come later wait."""
        async with self._gate:
            await self._none_runs.wait()
            yield

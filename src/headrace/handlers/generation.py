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
from typing import Any, ClassVar, Generic, TypedDict, TypeVar

from headrace.core.engine import EngineModelHandler
from headrace.core.errors import ConfigurationError
from headrace.core.handler import ModelT
from headrace.core.request_context import report_generation
from headrace.core.result import PredictionResult
from headrace.core.spelling import did_you_mean
from headrace.handlers.base import UriModelHandler
from headrace.handlers.prompts import PromptRows, Prompts, as_message

RunningT = TypeVar("RunningT")
AnswerT = TypeVar("AnswerT")

_LOGGER = logging.getLogger(__name__)
_PAIR = ("query", "document")
_RARITY = 10
"""After a failed start, no other is attempted for this many times the duration of the failed one."""

TASKS = ("generate", "embed", "classify", "score")
"""What an engine may do with a text."""

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


def as_pair(example: Any) -> tuple[str, str]:
    """A query and a document. Raises TypeError if the example is neither two texts nor a dict of two."""
    texts = example
    if isinstance(example, Mapping):
        texts = [example[name] for name in _PAIR] if example.keys() >= set(_PAIR) else list(example.values())
    if not (isinstance(texts, list | tuple) and len(texts) == 2 and all(isinstance(one, str) for one in texts)):
        raise TypeError(f"a pair is (query, document), or a dict of two texts, not {example!r:.80}.")
    return texts[0], texts[1]


class GenerationModelHandler(
    PromptRows, UriModelHandler[Prompt, ModelT], EngineModelHandler[Prompt, PredictionResult, ModelT]
):
    """Continues prompts and conversations with an engine in this process; or embeds, classifies or scores texts.

    To generate, an example is a text, or a list of messages such as ``{"role": "user", "content": "Hello"}``, for
    models with a chat template. Its prediction is a dict: ``text``, ``finish_reason`` (``"stop"``, or ``"length"`` if
    it was cut off), ``input_tokens`` and ``output_tokens``. A prompt that the model cannot take, such as one that is
    too long, fails alone.

    The other tasks cut off texts that are too long for the model:

    - ``"embed"``: of a text its embedding, a 1-D numpy array of 32-bit floats;
    - ``"classify"``: of a text a dict, ``label`` and ``score``; with ``inference_args={"top_k": 3}`` a list of the
      three best, with ``None`` of all;
    - ``"score"``: of a pair of texts, (query, document), how well they fit, a float: for cross-encoders. A dict is a
      pair if it has ``query`` and ``document``, or any two texts, in their order.

    Args:
        model_uri: id of a model on the Hugging Face hub, or the folder of a saved one.
        prompt: the prompt, or the text, of each row. Column names go in braces: ``"Classify: {text}"``.
        task: ``"generate"``, ``"embed"``, ``"classify"`` or ``"score"``.
        options: those of ``headrace.EngineModelHandler``.

    Raises:
        ConfigurationError: an option cannot be used.
    """

    models_have_ids: ClassVar[bool] = True
    """Whether a model's URI may be its id on a hub, so that no local file needs to exist."""

    def __init__(
        self, model_uri: str | os.PathLike[str], *, prompt: str | None = None, task: str = "generate", **options: Any
    ) -> None:
        super().__init__(model_uri, **options)
        if task not in TASKS:
            raise ConfigurationError(f"task is one of {', '.join(TASKS)}, not {task!r}{did_you_mean(str(task), TASKS)}")
        if task == "score" and prompt is not None:
            raise ConfigurationError("task='score' takes pairs of texts, which are no prompt: leave prompt out.")
        if task != "generate":
            self.gen_ai = ("embeddings" if task == "embed" else task, self.gen_ai[1])
        self._task = task
        self._takes_conversations = task == "generate"
        if not self._model_uri:
            raise ConfigurationError("model_uri must be a model's id on the hub or a folder; it is empty.")
        self._prompts = Prompts(type(self).__qualname__, prompt)

    def asked(self, example: Any) -> Any:
        """The prompt, text or pair of an example, which may be a row if there is a ``prompt``; else raises."""
        if self._task == "score":
            return as_pair(example)
        asked = self._prompts.text(example) if isinstance(example, Mapping) else example
        if self._task != "generate" and not isinstance(asked, str):
            raise TypeError(f"task={self._task!r} takes texts, not {asked!r:.80}.")
        return asked

    def refuse_columns(self, columns: Sequence[str]) -> None:
        """Raises ConfigurationError if it is not clear which column is the prompt, or which two are the pair."""
        if self._task != "score":
            super().refuse_columns(columns)
        elif len(columns) != 2 and not set(_PAIR) <= set(columns):
            raise ConfigurationError(
                "choose the two columns of a pair (--columns 'question,answer', in Python columns=) of "
                f"{', '.join(map(str, columns))}."
            )

    def example_from_row(self, row: Mapping[str, Any]) -> Any:
        """As ``PromptRows``; the pair of a row with two columns."""
        return as_pair(row) if self._task == "score" else super().example_from_row(row)

    def _refuse_options_of_generation(self, **given: Any) -> None:
        """Raises ConfigurationError if there are any and the task is another one."""
        wrong = [name for name, value in given.items() if value is not None]
        if wrong and self._task != "generate":
            raise ConfigurationError(f"task={self._task!r} generates nothing: leave out {', '.join(wrong)}.")

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

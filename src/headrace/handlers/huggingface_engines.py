"""Engines for models of transformers: continuous batching of generated text, or batches of similar length."""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from headrace.core.conversion import text_length
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult
from headrace.handlers.generation import EngineLostError, Restarted

with extra_required("huggingface"):
    import torch
    import transformers

_ENDED = "the thread that generates text has ended"
_CHECK_SECS = 5.0
"""How often to look whether the thread that generates is still alive."""
_DYING_SECS = 5.0
"""How long to wait, after a request has failed, for the thread to say that it ends: it fails its requests first."""
_DYING_POLL_SECS = 0.01
_STOP_SECS = 10.0
_GATHER_SECS = 0.01
"""How long to wait for others to share the first batch."""
_CPU_SIZES = {"page_size": 64, "num_blocks": 256, "max_batch_tokens": 1024, "max_requests_per_batch": 16}
"""On a CPU, whose memory is not all for the cache: it holds 16,384 tokens. And few requests at a time: each of them is
multiplied with all tokens of the others, and masked."""
_CPU_TOKENS, _GPU_TOKENS = 1024, 16_384
"""Of texts in a batch, with their padding."""
_CONTINUOUS = {
    *("max_new_tokens", "max_length", "do_sample", "temperature", "top_k", "top_p", "use_cache"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
}
"""Settings of generation that continuous batching honours, or that mean nothing to it; it ignores all others."""


class Tokens(NamedTuple):
    """What was generated for one prompt."""

    ids: list[int]
    seconds: float
    """From when the engine got the request to the last token."""
    first_token_secs: float | None


def why_not_continuous(model: Any, config: Any) -> str | None:
    """Why transformers cannot batch continuously with this model and configuration; None if it can."""
    if not (hasattr(transformers, "ContinuousBatchingConfig") and hasattr(model, "init_continuous_batching")):
        return f"transformers {transformers.__version__} cannot batch continuously with {type(model).__name__}"
    if model.device.type == "cpu" and find_spec("psutil") is None:
        return "on a CPU it needs the package psutil"
    ignored = sorted(name for name in config.to_diff_dict() if name not in _CONTINUOUS and not name.startswith("_"))
    return f"its continuous batching ignores {', '.join(ignored)}" if ignored else None


class ContinuousEngine(Restarted[Any]):
    """Requests join and leave the running batch one by one: the ``ContinuousBatchingManager`` of transformers."""

    def __init__(self, model: Any, config: Any, options: Mapping[str, Any]) -> None:
        sizes = _CPU_SIZES if model.device.type == "cpu" else {}
        self._numbers = itertools.count()
        super().__init__(partial(_started, model, config, {**sizes, **options}), _why_ended, _stop)
        config = self._now.continuous_batching_config
        self.longest = int(config.num_blocks * config.page_size)
        """How many tokens a prompt and its answer may have together, for the cache."""

    async def generate(self, ids: Sequence[int], max_new_tokens: int) -> Tokens:
        """Generates up to ``max_new_tokens`` tokens; EngineLostError if the thread that generates ended over them."""
        name = f"headrace-{next(self._numbers)}"
        return await self.ask(partial(_generated, ids=list(ids), max_new_tokens=max_new_tokens, name=name))


async def _generated(manager: Any, ids: list[int], max_new_tokens: int, name: str) -> Tokens:
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    manager.register_result_handler(name, partial(_settle, result))
    taken = manager.add_request(ids, name, max_new_tokens=max_new_tokens, record_timestamps=True)
    try:
        while taken is not None and manager.is_running() and not result.done():
            await asyncio.wait({result}, timeout=_CHECK_SECS)
        if not result.done():
            raise EngineLostError(_ENDED)
    except asyncio.CancelledError:
        manager.cancel_request(name)
        raise
    finally:
        manager.output_router.result_handlers.pop(name, None)
    output = result.result()
    if output.error is not None:
        raise EngineLostError(output.error) if await _is_dying(manager) else RuntimeError(output.error)
    times = output.timestamps or [time.perf_counter()]
    return Tokens(output.generated_tokens, times[-1] - output.created_time, times[0] - output.created_time)


def _started(model: Any, config: Any, options: Mapping[str, Any]) -> Any:
    manager = model.init_continuous_batching(
        generation_config=config,
        continuous_batching_config=transformers.ContinuousBatchingConfig(**options),
    )
    manager.warmup()
    # A thread is a daemon if the one that starts it is. Otherwise Python waited at its end for one that never ends.
    starting = threading.Thread(target=manager.start, daemon=True)
    starting.start()
    starting.join()
    return manager


def _settle(result: asyncio.Future[Any], output: Any) -> None:
    if not result.done() and output.is_finished():
        result.set_result(output)


def _why_ended(manager: Any) -> str | None:
    has_ended = not manager.is_running() or manager.background_thread_status.fatal_error is not None
    return _ENDED if has_ended else None


async def _is_dying(manager: Any) -> bool:
    """Whether the request that has just failed was one of all that its thread fails as it ends."""
    for _ in range(int(_DYING_SECS / _DYING_POLL_SECS)):
        if _why_ended(manager):
            return True
        await asyncio.sleep(_DYING_POLL_SECS)
    return False


def _stop(manager: Any) -> None:
    with suppress(Exception):  # it may have died, and Python may be about to end
        manager.stop(block=True, timeout=_STOP_SECS)


@dataclass(eq=False)
class _Waiting:
    given: Any
    length: int
    options: Any
    """What all of a batch have in common."""
    result: Future[Any] = field(default_factory=Future)
    began: float = field(default_factory=time.perf_counter)

    def fail(self, error: BaseException) -> None:
        if isinstance(error, StopIteration):
            error = RuntimeError(f"{type(error).__qualname__}: {error}")  # no future of asyncio takes it
        with suppress(InvalidStateError):  # it was cancelled
            self.result.set_exception(error)


class Batches:
    """Requests that wait are sorted by length, and go through a model in batches, on a thread while there are any.

    Args:
        run: answers a batch.
        size: how many may go together; None: any number.
        tokens: how many tokens they may be together, padded to the longest.
    """

    def __init__(
        self, run: Callable[[Sequence[_Waiting]], Iterable[Any]], size: int | None = None, tokens: float = math.inf
    ) -> None:
        self._run, self._size, self._tokens = run, size or math.inf, tokens
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._has_thread = False

    async def answer(self, given: Any, length: int, options: Any) -> Any:
        """The answer to one request; raises what the model raises for it alone."""
        request = _Waiting(given, length, options)
        with self._lock:
            if not self._has_thread:
                threading.Thread(target=self._work, name="headrace-generation", daemon=True).start()
            self._has_thread = True
            self._waiting.append(request)
        return await asyncio.wrap_future(request.result)

    def _work(self) -> None:
        while waiting := self._gathered():
            for batch in self._batches(waiting):
                self._try(batch)

    def _gathered(self) -> list[_Waiting]:
        """All waiting requests, after a moment for others to join them."""
        time.sleep(_GATHER_SECS)  # other callers may be about to ask, and nothing says whether they are
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._has_thread = bool(waiting)
        return waiting

    def _batches(self, waiting: Sequence[_Waiting]) -> Iterator[list[_Waiting]]:
        """Requests of the same options, in the order of their lengths."""
        batch: list[_Waiting] = []
        for one in sorted(waiting, key=lambda one: (repr(one.options), one.length)):
            is_full = len(batch) >= self._size or one.length * (len(batch) + 1) > self._tokens
            if batch and (is_full or repr(one.options) != repr(batch[0].options)):
                yield batch
                batch = []
            batch.append(one)
        yield batch

    def _try(self, batch: Sequence[_Waiting]) -> None:
        """Runs a batch; if that fails, each half on its own, until only what is at fault fails."""
        batch = [one for one in batch if not one.result.cancelled()]
        if not batch:
            return
        try:
            for one, answer in zip(batch, self._run(batch), strict=True):
                with suppress(InvalidStateError):  # it was cancelled
                    one.result.set_result(answer)
            return
        except BaseException as error:  # SystemExit, too: without this thread, all would wait for ever
            if len(batch) == 1:
                batch[0].fail(error)
                return
        middle = len(batch) // 2  # out here, where the error no longer holds what was in the accelerator's memory
        self._try(batch[:middle])
        self._try(batch[middle:])


class BatchedEngine(Batches):
    """Prompts go through ``model.generate`` in batches."""

    longest: int | None = None  # no cache limits it

    def __init__(self, model: Any, config: Any, batch_size: int) -> None:
        super().__init__(partial(_generate, model, config), batch_size)

    async def generate(self, ids: Sequence[int], max_new_tokens: int) -> Tokens:
        """Generates up to ``max_new_tokens`` tokens; raises what ``model.generate`` raises for this prompt alone."""
        tokens: Tokens = await self.answer(list(ids), len(ids), max_new_tokens)
        return tokens


class HandlerEngine(Batches):
    """Texts go through the model of a handler that takes batches.

    Args:
        handler: loads the model.
        batch_size: how many texts go together; None: as many as make about 1,024 tokens on a CPU, 16,384 elsewhere.
    """

    def __init__(self, handler: ModelHandler[Any, PredictionResult, Any], batch_size: int | None) -> None:
        model = handler.load_model()
        self._longest = getattr(model, "max_seq_length", None) or math.inf
        most = math.inf if batch_size else _CPU_TOKENS if torch.device(model.device).type == "cpu" else _GPU_TOKENS

        def predict(batch: Sequence[_Waiting]) -> list[Any]:
            found = handler.run_inference([one.given for one in batch], model, batch[0].options)
            return [one.inference for one in found]

        super().__init__(predict, batch_size, most)

    async def predict(self, example: Any, inference_args: Mapping[str, Any]) -> Any:
        """The prediction for an example."""
        return await self.answer(example, int(min(text_length(example), self._longest)), inference_args)


@torch.inference_mode()
def _generate(model: Any, config: Any, batch: Sequence[_Waiting]) -> list[Tokens]:
    longest = max(one.length for one in batch)
    pad = config.pad_token_id
    ids = torch.tensor([[pad] * (longest - one.length) + one.given for one in batch], device=model.device)
    mask = torch.tensor([[0] * (longest - one.length) + [1] * one.length for one in batch], device=model.device)
    watch = _Watch(batch)
    config = copy.copy(config)
    config.max_new_tokens = batch[0].options
    answer = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=config,
        stopping_criteria=transformers.StoppingCriteriaList([watch]),
    )
    ends, now, made = ends_of(config), time.perf_counter(), []
    for one, row in zip(batch, answer[:, longest:].tolist(), strict=True):
        stop = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
        first = None if watch.first is None else watch.first - one.began
        made.append(Tokens(row[: stop + 1], now - one.began, first))
    return made


class _Watch(transformers.StoppingCriteria):  # type: ignore[misc]
    """Sees when the first token comes, and ends what nobody waits for any longer."""

    def __init__(self, batch: Sequence[_Waiting]) -> None:
        self._batch = batch
        self.first: float | None = None

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self.first = self.first or time.perf_counter()
        over = [one.result.cancelled() for one in self._batch]
        return torch.tensor(over, dtype=torch.bool, device=input_ids.device)


def settings(base: Any, given: Mapping[str, Any], pad: int | None) -> Any:
    """The model's own configuration of generation, changed; ConfigurationError for a setting that there is not."""
    config = transformers.GenerationConfig.from_dict(base.to_dict())
    unknown = config.update(**given)
    if unknown:
        raise ConfigurationError(f"transformers.GenerationConfig has no settings {sorted(unknown)}.")
    if config.pad_token_id is None:
        config.pad_token_id = pad if pad is not None else [*ends_of(config), 0][0]
    return config


def ends_of(config: Any) -> list[int]:
    """The tokens that end a text."""
    ends = config.eos_token_id
    return [ends] if isinstance(ends, int) else list(ends or ())

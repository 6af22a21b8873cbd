"""Engines for causal language models of transformers: continuous batching, or batches of similar length."""

from __future__ import annotations

import asyncio
import copy
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from headrace.core.errors import ConfigurationError, extra_required
from headrace.handlers.generation import EngineLostError, Restarted

with extra_required("huggingface"):
    import torch
    import transformers

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
        if taken is None or not await _ended(result, manager):
            raise EngineLostError("the thread that generates text has ended")
    except asyncio.CancelledError:
        manager.cancel_request(name)
        raise
    finally:
        manager.output_router.result_handlers.pop(name, None)
    output = result.result()
    if output.error is None:
        return _tokens(output)
    raise EngineLostError(output.error) if await _is_dying(manager) else RuntimeError(output.error)


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


async def _ended(result: asyncio.Future[Any], manager: Any) -> bool:
    """Waits for a result; whether there is one, or nobody is left to make it."""
    while not result.done():
        was_running = manager.is_running()
        await asyncio.wait({result}, timeout=_CHECK_SECS)
        if not was_running and not result.done():
            return False
    return True


def _why_ended(manager: Any) -> str | None:
    has_ended = not manager.is_running() or manager.background_thread_status.fatal_error is not None
    return "the thread that generates text has ended" if has_ended else None


async def _is_dying(manager: Any) -> bool:
    """Whether the request that has just failed was one of all that its thread fails as it ends."""
    for _ in range(int(_DYING_SECS / _DYING_POLL_SECS)):
        if _why_ended(manager):
            return True
        await asyncio.sleep(_DYING_POLL_SECS)
    return False


def _tokens(output: Any) -> Tokens:
    times = output.timestamps or [time.perf_counter()]
    return Tokens(output.generated_tokens, times[-1] - output.created_time, times[0] - output.created_time)


def _stop(manager: Any) -> None:
    with suppress(Exception):  # it may have died, and Python may be about to end
        manager.stop(block=True, timeout=_STOP_SECS)


@dataclass(eq=False)
class _Prompt:
    ids: list[int]
    max_new_tokens: int
    result: Future[Tokens] = field(default_factory=Future)
    began: float = field(default_factory=time.perf_counter)

    def fail(self, error: BaseException) -> None:
        if isinstance(error, StopIteration):
            error = RuntimeError(f"{type(error).__qualname__}: {error}")  # no future of asyncio takes it
        with suppress(InvalidStateError):  # it was cancelled
            self.result.set_exception(error)


class BatchedEngine:
    """Prompts that wait are sorted by length, and go through ``model.generate`` in batches."""

    longest: int | None = None  # no cache limits it

    def __init__(self, model: Any, config: Any, batch_size: int) -> None:
        self._requests: queue.SimpleQueue[_Prompt | None] = queue.SimpleQueue()
        run = partial(_run_batches, self._requests, partial(_generate, model, config), batch_size)
        threading.Thread(target=run, name="headrace-generation", daemon=True).start()
        weakref.finalize(self, self._requests.put, None)

    async def generate(self, ids: Sequence[int], max_new_tokens: int) -> Tokens:
        """Generates up to ``max_new_tokens`` tokens; raises what ``model.generate`` raises for this prompt alone."""
        request = _Prompt(list(ids), max_new_tokens)
        self._requests.put(request)
        return await asyncio.wrap_future(request.result)


def _run_batches(
    requests: queue.SimpleQueue[_Prompt | None], generate: Callable[[Sequence[_Prompt]], None], size: int
) -> None:
    while (first := requests.get()) is not None:
        time.sleep(_GATHER_SECS)  # nothing tells that no other is about to come
        waiting = [first]
        with suppress(queue.Empty):
            while (another := requests.get_nowait()) is not None:
                waiting.append(another)
            requests.put(None)  # the end, for the next round
        for batch in _batches(waiting, size):
            _try(batch, generate)


def _batches(waiting: Sequence[_Prompt], size: int) -> Iterator[list[_Prompt]]:
    """Requests of one limit, in the order of their lengths."""
    ordered = sorted(waiting, key=lambda one: (one.max_new_tokens, len(one.ids)))
    for _, group in itertools.groupby(ordered, key=lambda one: one.max_new_tokens):
        while batch := list(itertools.islice(group, size)):
            yield batch


def _try(batch: Sequence[_Prompt], generate: Callable[[Sequence[_Prompt]], None]) -> None:
    """Generates; if that fails, each half on its own, until only what is at fault fails."""
    batch = [one for one in batch if not one.result.cancelled()]
    if not batch:
        return
    try:
        generate(batch)
    except BaseException as error:  # SystemExit, too: without this thread, all would wait for ever
        if len(batch) == 1:
            batch[0].fail(error)
            return
        middle = len(batch) // 2
        _try(batch[:middle], generate)
        _try(batch[middle:], generate)


@torch.inference_mode()
def _generate(model: Any, config: Any, batch: Sequence[_Prompt]) -> None:
    longest = max(len(one.ids) for one in batch)
    pad = config.pad_token_id
    ids = torch.tensor([[pad] * (longest - len(one.ids)) + one.ids for one in batch], device=model.device)
    mask = torch.tensor([[0] * (longest - len(one.ids)) + [1] * len(one.ids) for one in batch], device=model.device)
    watch = _Watch(batch)
    config = copy.copy(config)
    config.max_new_tokens = batch[0].max_new_tokens
    answer = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=config,
        stopping_criteria=transformers.StoppingCriteriaList([watch]),
    )
    ends = {config.eos_token_id} if isinstance(config.eos_token_id, int) else set(config.eos_token_id or ())
    now = time.perf_counter()
    for one, row in zip(batch, answer[:, longest:].tolist(), strict=True):
        first = None if watch.first is None else watch.first - one.began
        with suppress(InvalidStateError):  # it was cancelled
            one.result.set_result(Tokens(_up_to(row, ends), now - one.began, first))


def _up_to(ids: list[int], ends: set[int]) -> list[int]:
    """The tokens up to the first that ends the text, with that one."""
    stop = next((place for place, one in enumerate(ids) if one in ends), len(ids) - 1)
    return ids[: stop + 1]


class _Watch(transformers.StoppingCriteria):  # type: ignore[misc]
    """Sees when the first token comes, and ends what nobody waits for any longer."""

    def __init__(self, batch: Sequence[_Prompt]) -> None:
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
    ends = config.eos_token_id
    if config.pad_token_id is None:
        config.pad_token_id = pad if pad is not None else ends if isinstance(ends, int) else next(iter(ends or [0]))
    return config

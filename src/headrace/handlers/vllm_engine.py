"""Generates text with vLLM's asynchronous engine in this process; ``vllm_inference`` runs vLLM's server instead."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.result import PredictionResult
from headrace.handlers.generation import (
    EngineLostError,
    Generated,
    GenerationModelHandler,
    Prompt,
    Restarted,
    as_messages,
)

__all__ = ["VLLMEngineModelHandler"]

_MAX_TOKENS = 256


class VLLMEngine(Restarted[Any]):
    """An ``AsyncLLM``, which is restarted if its process dies.

    Args:
        arguments: of ``vllm.AsyncEngineArgs``.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(partial(_start, arguments), _obituary, _end)
        self._arguments = arguments
        self._numbers = itertools.count()
        self._tokenizer: Any = None

    async def generate(self, prompt: Any, params: Any) -> Any:
        """The output for one prompt; EngineLostError if the engine died over it."""
        return await self.ask(partial(_generated, prompt=prompt, params=params, name=f"headrace-{next(self._numbers)}"))

    def tokens_of(self, messages: Any) -> list[int]:
        """The tokens of a conversation, by the model's chat template."""
        if self._tokenizer is None:
            import transformers  # noqa: PLC0415 - vLLM brings it, and texts need none

            name = self._arguments.get("tokenizer") or self._arguments["model"]
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        return list(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


async def _generated(engine: Any, prompt: Any, params: Any, name: str) -> Any:
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError  # noqa: PLC0415 - as in load_model

    try:
        outputs = [one async for one in engine.generate(prompt, params, request_id=name)]
    except EngineGenerateError as error:  # which says nothing itself
        raise error.__cause__ or error from None
    except EngineDeadError as error:
        error.with_traceback(None)  # vLLM keeps it
        raise EngineLostError(
            "vLLM's engine died over this prompt, at last with no other beside it; the log says why."
        ) from error
    return outputs[-1]


def _start(arguments: Mapping[str, Any]) -> Any:
    import vllm  # noqa: PLC0415 - as in load_model
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415 - as in load_model

    return AsyncLLM.from_engine_args(vllm.AsyncEngineArgs(**arguments))


def _obituary(engine: Any) -> str | None:
    return "the process of vLLM's engine has ended" if engine.errored else None


def _end(engine: Any) -> None:
    """Ends an ``AsyncLLM``; first its task, which takes any other end for a failure, and logs it with a traceback."""
    task = getattr(engine, "output_handler", None)
    if task is not None:
        with contextlib.suppress(RuntimeError):  # its loop is closed
            task.get_loop().call_soon_threadsafe(task.cancel)
    engine.shutdown()


class VLLMEngineModelHandler(GenerationModelHandler[VLLMEngine]):
    """Continues prompts, and conversations, with vLLM's engine.

    Examples, predictions, ``model_uri``, ``prompt`` and errors are those of ``GenerationModelHandler``.

    Args:
        engine_args: further arguments of ``vllm.AsyncEngineArgs``, such as ``{"max_model_len": 4096}``.
        sampling_args: arguments of ``vllm.SamplingParams``, such as ``{"max_tokens": 100, "temperature": 0.0}``;
            ``RunInference(inference_args={...})`` overrides them. ``max_tokens`` is 256 by default. A dict as
            ``structured_outputs`` has the arguments of ``StructuredOutputsParams``: ``{"json": schema}``.
    """

    gen_ai = ("text_completion", "vllm")
    _metrics_namespace = "BeamML_vLLM"

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        *,
        prompt: str | None = None,
        engine_args: Mapping[str, Any] | None = None,
        sampling_args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model_uri, prompt, **options)
        self._engine_args = dict(engine_args or {})
        if "model" in self._engine_args:
            raise ConfigurationError("engine_args name the model a second time; leave it out there.")
        self._sampling_args = {"max_tokens": _MAX_TOKENS, **(sampling_args or {})}
        _refuse_wrong(self._sampling_args)

    def load_model(self) -> VLLMEngine:
        """Starts the engine, in a process that ends with this one; ConfigurationError for wrong ``sampling_args``."""
        with extra_required("vllm"):
            import vllm  # noqa: F401, PLC0415 - takes seconds, and a machine that makes pipelines may not have it
        _params(self._sampling_args)
        return VLLMEngine({"model": self._model_uri, **self._engine_args})

    async def submit(
        self, example: Prompt, model: VLLMEngine, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Generates for one prompt; raises what vLLM raises that refuses it."""
        asked = self.asked(example)
        messages = as_messages(asked)
        prompt = asked if messages is None else {"prompt_token_ids": model.tokens_of(messages)}
        params = _params({**self._sampling_args, **(inference_args or {})})
        began = time.perf_counter()
        output = await model.generate(prompt, params)
        seconds = time.perf_counter() - began
        (answer,) = output.outputs
        made = Generated(
            text=answer.text,
            finish_reason=str(answer.finish_reason),
            input_tokens=len(output.prompt_token_ids),
            output_tokens=len(answer.token_ids),
        )
        first = getattr(output.metrics, "first_token_latency", None) or None
        return self._predicted(example, made, seconds=seconds, first_token_secs=first)

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Raises ConfigurationError if vLLM is installed, and refuses them for its ``SamplingParams``."""
        _refuse_wrong({**self._sampling_args, **(inference_args or {})})


def _refuse_wrong(given: Mapping[str, Any]) -> None:
    """Raises ConfigurationError; where vLLM is not installed, it is asked in the worker."""
    if given.get("n", 1) != 1:
        raise ConfigurationError("a prompt gets one answer: leave out n.")
    if find_spec("vllm") is not None:
        _params(given)


def _params(given: Mapping[str, Any]) -> Any:
    """The parameters of one request; raises ConfigurationError if vLLM refuses them."""
    import vllm.sampling_params  # noqa: PLC0415 - as in load_model

    try:
        structured = given.get("structured_outputs")
        if isinstance(structured, Mapping):
            given = {**given, "structured_outputs": vllm.sampling_params.StructuredOutputsParams(**structured)}
        return vllm.SamplingParams(**given, output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY)
    except Exception as error:  # vLLM has classes of its own for them, others in each version
        raise ConfigurationError(f"vllm.SamplingParams: {error}") from error

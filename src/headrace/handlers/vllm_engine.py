"""Runs vLLM's asynchronous engine in this process; ``vllm_inference`` runs vLLM's server instead."""

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
from headrace.core.request_context import report_usage
from headrace.core.result import PredictionResult
from headrace.core.spelling import with_options_of
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
_POOLING = {"embed": "embed", "classify": "classify", "score": "classify"}
"""vLLM's names of tasks: a cross-encoder classifies with one label."""
_CUT = {"truncation": True}


class VLLMEngine(Restarted[Any]):
    """An ``AsyncLLM``, which is restarted if its process dies.

    Args:
        arguments: of ``vllm.AsyncEngineArgs``.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        ended = "the process of vLLM's engine has ended"
        super().__init__(partial(_start, arguments), lambda engine: ended if engine.errored else None, _end)
        self._arguments = arguments
        self._numbers = itertools.count()
        self._tokenizer: Any = None

    async def generate(self, prompt: Any, params: Any) -> Any:
        """The output for one prompt; EngineLostError if the engine died over it."""
        return await self._ask("generate", prompt, params)

    async def pool(self, task: str, asked: Any, args: Mapping[str, Any]) -> Any:
        """The output for a text, or a pair of texts, cut off if it is too long; as ``generate``."""
        prompt, more = self._pair(*asked) if task == "score" else (asked, {})
        output = await self._ask("encode", prompt, _params(task, {**more, **args}), tokenization_kwargs=_CUT)
        if getattr(output, "error", None) is not None:
            raise RuntimeError(f"vLLM: {output.error}")
        return output

    async def _ask(self, method: str, prompt: Any, params: Any, **more: Any) -> Any:
        name = f"headrace-{next(self._numbers)}"
        return await self.ask(partial(_answered, method, prompt, params, request_id=name, **more))

    @property
    def config(self) -> Any:
        """That of the model, by transformers."""
        return self._now.model_config.hf_config

    async def refuse_lack_of(self, task: str) -> VLLMEngine:
        """Itself; ConfigurationError if the model is not for the task."""
        able, labels = await self._now.get_supported_tasks(), self.config.num_labels
        if _POOLING[task] not in able or (task == "score" and labels != 1):
            raise ConfigurationError(
                f"task={task!r} is not for {self._arguments['model']}, which vLLM can use for {', '.join(able)}; it "
                f"has {labels} labels, and a cross-encoder, which scores, has one. Give another task or model."
            )
        return self

    def tokens_of(self, messages: Any) -> list[int]:
        """The tokens of a conversation, by the model's chat template."""
        tokenizer = self._own_tokenizer()
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def _pair(self, query: str, document: str) -> tuple[Any, dict[str, Any]]:
        """A prompt and parameters, as ``LLM.score`` makes them."""
        config = self._now.model_config
        texts = (query, document) if getattr(config, "use_sep_token", True) else (query + document,)
        found = self._own_tokenizer()(*texts, truncation=True, max_length=config.max_model_len)
        types = found.get("token_type_ids")
        more = {} if types is None else {"extra_kwargs": {"compressed_token_type_ids": types.count(0)}}
        return {"prompt_token_ids": list(found["input_ids"])}, more

    def _own_tokenizer(self) -> Any:
        if self._tokenizer is None:
            import transformers  # noqa: PLC0415 - vLLM brings it, and single texts need none

            name = self._arguments.get("tokenizer") or self._arguments["model"]
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        return self._tokenizer


async def _answered(method: str, prompt: Any, params: Any, engine: Any, **more: Any) -> Any:
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError  # noqa: PLC0415 - as in load_model

    try:
        outputs = [one async for one in getattr(engine, method)(prompt, params, **more)]
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


def _end(engine: Any) -> None:
    """Ends an ``AsyncLLM``; first its task, which takes any other end for a failure, and logs it with a traceback."""
    task = getattr(engine, "output_handler", None)
    if task is not None:
        with contextlib.suppress(RuntimeError):  # its loop is closed
            task.get_loop().call_soon_threadsafe(task.cancel)
    engine.shutdown()


class VLLMEngineModelHandler(GenerationModelHandler[VLLMEngine]):
    """Continues prompts, and conversations, with vLLM's engine; or embeds, classifies or scores texts.

    Examples, predictions, ``model_uri``, ``prompt``, ``task`` and errors are those of ``GenerationModelHandler``. Where
    nothing is generated, ``RunInference(inference_args={...})`` are arguments of ``vllm.PoolingParams``, such as
    ``{"dimensions": 256}``, and ``top_k`` to classify.

    Args:
        engine_args: further arguments of ``vllm.AsyncEngineArgs``, such as ``{"max_model_len": 4096}``.
        sampling_args: arguments of ``vllm.SamplingParams``, such as ``{"max_tokens": 100, "temperature": 0.0}``;
            ``RunInference(inference_args={...})`` overrides them. ``max_tokens`` is 256 by default. A dict as
            ``structured_outputs`` has the arguments of ``StructuredOutputsParams``: ``{"json": schema}``.
    """

    gen_ai = ("text_completion", "vllm")
    _metrics_namespace = "BeamML_vLLM"

    @with_options_of(GenerationModelHandler)
    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        *,
        engine_args: Mapping[str, Any] | None = None,
        sampling_args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model_uri, **options)
        self._refuse_options_of_generation(sampling_args=sampling_args)
        self._engine_args = dict(engine_args or {})
        if "model" in self._engine_args:
            raise ConfigurationError("engine_args name the model a second time; leave it out there.")
        defaults = {"max_tokens": _MAX_TOKENS} if self._task == "generate" else {}
        self._sampling_args = {**defaults, **(sampling_args or {})}
        self.validate_inference_args(None)

    def load_model(self) -> Any:
        """Starts the engine, in a process that ends with this one; has to be awaited unless the task is to generate.

        Raises:
            ConfigurationError: the ``sampling_args`` are wrong, or the model is not for the task.
        """
        with extra_required("vllm"):
            import vllm  # noqa: F401, PLC0415 - takes seconds, and a machine that makes pipelines may not have it
        if self._task != "generate":
            engine = VLLMEngine({"model": self._model_uri, "runner": "pooling", **self._engine_args})
            return engine.refuse_lack_of(self._task)
        _params(self._task, self._sampling_args)
        return VLLMEngine({"model": self._model_uri, **self._engine_args})

    async def submit(
        self, example: Prompt, model: VLLMEngine, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Does the task for one example; raises what vLLM raises that refuses it."""
        asked = self.asked(example)
        if self._task != "generate":
            args = inference_args or {}
            output = await model.pool(self._task, asked, args)
            report_usage(self._model_uri, input_tokens=len(output.prompt_token_ids))
            return PredictionResult(example, self._pooled(output.outputs.data, model, args), self._model_uri)
        messages = as_messages(asked)
        prompt = asked if messages is None else {"prompt_token_ids": model.tokens_of(messages)}
        params = _params(self._task, {**self._sampling_args, **(inference_args or {})})
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

    def _pooled(self, data: Any, model: VLLMEngine, args: Mapping[str, Any]) -> Any:
        """The prediction in a tensor: an embedding, a score, or labels, as a pipeline of transformers has them."""
        if self._task == "embed":
            import numpy  # noqa: PLC0415 - as in load_model

            return numpy.array(data.tolist(), dtype="float32")
        if self._task == "score":
            return data.item()
        names = model.config.id2label
        found = [{"label": names[place], "score": score} for place, score in enumerate(data.tolist())]
        found.sort(key=lambda one: -one["score"])
        return found[: args["top_k"]] if "top_k" in args else found[0]

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Raises ConfigurationError if vLLM is installed, and refuses them for its parameters of a request."""
        given = {**self._sampling_args, **(inference_args or {})}
        if given.get("n", 1) != 1:
            raise ConfigurationError("a prompt gets one answer: leave out n.")
        if find_spec("vllm") is not None:  # else it is asked in the worker
            _params(self._task, given)


def _params(task: str, given: Mapping[str, Any]) -> Any:
    """Parameters of a request; raises ConfigurationError if vLLM refuses them."""
    import vllm.sampling_params  # noqa: PLC0415 - as in load_model

    kind = "SamplingParams"
    try:
        if task != "generate":
            kind = "PoolingParams"
            own = {name: value for name, value in given.items() if (task, name) != ("classify", "top_k")}
            return vllm.PoolingParams(task=_POOLING[task], **own)
        structured = given.get("structured_outputs")
        if isinstance(structured, Mapping):
            given = {**given, "structured_outputs": vllm.sampling_params.StructuredOutputsParams(**structured)}
        return vllm.SamplingParams(**given, output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY)
    except Exception as error:  # vLLM has classes of its own for them, others in each version
        raise ConfigurationError(f"vllm.{kind}: {error}") from error

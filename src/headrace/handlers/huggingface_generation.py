"""Runs models of transformers in an engine in this process: it batches requests continuously, or by length."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping
from typing import Any

from headrace.core.errors import ConfigurationError, as_type_name, extra_required
from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult
from headrace.core.spelling import with_options_of
from headrace.handlers.generation import Generated, GenerationModelHandler, Prompt, as_messages

with extra_required("huggingface"):
    import torch
    import transformers

    from headrace.handlers.huggingface_engines import (
        BatchedEngine,
        ContinuousEngine,
        HandlerEngine,
        ends_of,
        settings,
        why_not_continuous,
    )
    from headrace.handlers.huggingface_inference import HuggingFacePipelineModelHandler
    from headrace.handlers.huggingface_models import pretrained
    from headrace.handlers.torch_models import load_onto, refuse_two_devices

__all__ = ["HuggingFaceGenerationModelHandler"]

_LOGGER = logging.getLogger(__name__)

_MAX_NEW_TOKENS = 256
_BATCH_SIZE = 16
_SEVERAL = {"num_return_sequences", "num_beams", "num_beam_groups"}


class TextModel:
    """A loaded model: its tokenizer, and the engine that runs it."""

    def __init__(
        self, tokenizer: Any, engine: ContinuousEngine | BatchedEngine, config: Any, longest: int | None
    ) -> None:
        self.tokenizer = tokenizer
        self.engine = engine
        self.max_new_tokens: int = config.max_new_tokens
        self.longest = min((one for one in (longest, engine.longest) if one), default=None)
        """How many tokens a prompt and its answer may have together; None: no limit is known."""
        self.ends = ends_of(config)

    def encoded(self, prompt: Prompt, new: int) -> list[int]:
        """The tokens of a prompt; ValueError if there are none, or too many together with those to come."""
        messages = as_messages(prompt)
        if messages is None:
            ids = list(self.tokenizer(prompt)["input_ids"])
        else:
            ids = list(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
        if not ids:
            raise ValueError("the prompt is empty.")
        if self.longest is not None and len(ids) + new > self.longest:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and max_new_tokens is {new}: together more than the {self.longest} "
                "that the model takes."
            )
        return ids


class HuggingFaceGenerationModelHandler(GenerationModelHandler[TextModel | HandlerEngine]):
    """Continues prompts, and conversations, with a causal language model; or embeds, classifies or scores texts.

    Examples, predictions, ``model_uri``, ``prompt``, ``task`` and errors are those of ``GenerationModelHandler``. To
    generate, requests join and leave the running batch one by one, where transformers has that for the model, the
    device and the settings (``ContinuousBatchingManager``); else prompts of similar length go through ``generate``
    together. The other tasks put texts of similar length together, whichever bundles they are of, and are those of
    ``SentenceTransformerModelHandler``, of ``HuggingFacePipelineModelHandler`` for ``"text-classification"``, and of
    sentence-transformers' ``CrossEncoder``: ``inference_args`` go there.

    Args:
        device: ``"CPU"``, ``"GPU"`` (CUDA's), or one of PyTorch's, such as ``"cuda:1"``; if it cannot be used, the CPU,
            with a warning in the log. None: the GPU if there is one.
        generation_args: settings of ``transformers.GenerationConfig`` in place of the model's own, such as
            ``{"max_new_tokens": 100, "do_sample": False}``. ``max_new_tokens`` is 256 by default;
            ``RunInference(inference_args={"max_new_tokens": ...})`` overrides it.
        continuous: whether to batch continuously. None: if that is possible; else the log says why not. True: an error
            when the model is loaded, if it is not possible.
        continuous_args: arguments of ``transformers.ContinuousBatchingConfig``.
        batch_size: how many prompts go together where batching is not continuous, by default 16; or how many texts of
            another task, by default as many as make about 1,024 tokens on a CPU, 16,384 elsewhere.
        load_model_args: keyword arguments for ``AutoModelForCausalLM.from_pretrained``, ``SentenceTransformer``,
            ``transformers.pipeline`` or ``CrossEncoder``; a ``device_map`` among them decides the device.
    """

    gen_ai = ("text_completion", "huggingface")
    _metrics_namespace = "BeamML_HuggingFaceGenerationModelHandler"

    @with_options_of(GenerationModelHandler)
    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        *,
        device: str | None = None,
        generation_args: Mapping[str, Any] | None = None,
        continuous: bool | None = None,
        continuous_args: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        load_model_args: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model_uri, **options)
        self._refuse_options_of_generation(
            generation_args=generation_args, continuous=continuous, continuous_args=continuous_args
        )
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise ConfigurationError(f"batch_size must be an int, at least 1, not {batch_size!r}.")
        if continuous_args and continuous is False:
            raise ConfigurationError("continuous_args have no effect with continuous=False; leave one of them out.")
        self._generation_args = {"max_new_tokens": _MAX_NEW_TOKENS, **(generation_args or {})}
        _refuse_wrong(self._generation_args)
        settings(transformers.GenerationConfig(), self._generation_args, None)
        self._continuous = continuous
        self._continuous_args = dict(continuous_args or {})
        self._batch_size = batch_size
        self._load_model_args = load_model_args or {}
        refuse_two_devices(device, self._load_model_args, "load_model_args")
        self._device = device
        self._of_batches = _handler_of_batches(self._task, self._model_uri, device, self._load_model_args)

    def load_model(self) -> TextModel | HandlerEngine:
        """Loads the model and its tokenizer, and starts the engine."""
        if self._of_batches is not None:
            handler = copy.copy(self._of_batches)
            handler.update_model_path(self._model_uri)
            return HandlerEngine(handler, self._batch_size)
        model = load_onto(self._device, self._load, self._load_model_args)
        tokenizer = transformers.AutoTokenizer.from_pretrained(self._model_uri)
        config = settings(model.generation_config, self._generation_args, tokenizer.pad_token_id)
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        return TextModel(tokenizer, self._engine(model, config), config, longest)

    async def submit(
        self, example: Prompt, model: TextModel | HandlerEngine, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Does the task for one example; to generate, raises ValueError if the prompt is empty or too long."""
        if isinstance(model, HandlerEngine):
            args = {**({"truncation": True} if self._task == "classify" else {}), **(inference_args or {})}
            return PredictionResult(example, await model.predict(self.asked(example), args), self._model_uri)
        limit = (inference_args or {}).get("max_new_tokens", model.max_new_tokens)
        ids = model.encoded(self.asked(example), limit)
        tokens = await model.engine.generate(ids, limit)
        made = Generated(
            text=model.tokenizer.decode(tokens.ids, skip_special_tokens=True),
            finish_reason="stop" if tokens.ids and tokens.ids[-1] in model.ends else "length",
            input_tokens=len(ids),
            output_tokens=len(tokens.ids),
        )
        return self._predicted(example, made, seconds=tokens.seconds, first_token_secs=tokens.first_token_secs)

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Raises ConfigurationError: to generate, for all but a positive ``max_new_tokens``, each transform's own."""
        given = inference_args or {}
        others = sorted(given.keys() - {"max_new_tokens"})
        if self._of_batches is not None:
            self._of_batches.validate_inference_args(given)
        elif others:
            raise ConfigurationError(
                f"inference_args may hold max_new_tokens, not {others}: the engine has one configuration for all "
                "requests. Give the handler generation_args={...}."
            )
        else:
            _refuse_wrong(given)

    def _engine(self, model: Any, config: Any) -> ContinuousEngine | BatchedEngine:
        size = self._batch_size or _BATCH_SIZE
        if self._continuous is False:
            return BatchedEngine(model, config, size)
        reason = why_not_continuous(model, config)
        if reason is not None and self._continuous:
            raise ConfigurationError(f"continuous=True cannot be: {reason}.")
        if reason is None:
            try:
                return ContinuousEngine(model, config, self._continuous_args)
            except Exception as error:  # transformers knows more models than it can batch continuously
                if self._continuous or self._continuous_args:
                    raise
                reason = f"{as_type_name(error)}: {error}"
        _LOGGER.warning("%s: prompts go in batches of %d: %s.", self._model_uri, size, reason)
        return BatchedEngine(model, config, size)

    def _load(self, device: torch.device | None) -> Any:
        return pretrained(transformers.AutoModelForCausalLM, self._model_uri, device, self._load_model_args)


def _handler_of_batches(
    task: str, uri: str, device: str | None, load_model_args: dict[str, Any]
) -> ModelHandler[Any, PredictionResult, Any] | None:
    """What does the task for a batch; None: it generates."""
    if task == "generate":
        return None
    if task == "classify":
        return HuggingFacePipelineModelHandler(
            "text-classification", uri, device=device, load_pipeline_args=load_model_args
        )
    from headrace.handlers import sentence_transformer_inference as of_texts  # noqa: PLC0415 - another extra

    kind = of_texts.SentenceTransformerModelHandler if task == "embed" else of_texts.CrossEncoderModelHandler
    return kind(uri, device=device, load_model_args=load_model_args)


def _refuse_wrong(generation: Mapping[str, Any]) -> None:
    limit = generation.get("max_new_tokens", 1)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigurationError(f"max_new_tokens must be an int, at least 1, not {limit!r}.")
    several = sorted(name for name in _SEVERAL & generation.keys() if generation[name] not in (None, 1))
    if several:
        raise ConfigurationError(f"a prompt gets one answer, made token by token: leave out {', '.join(several)}.")

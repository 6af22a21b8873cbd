"""Stands in for vLLM's asynchronous engine: answers with the prompt's words in capitals, one each turn of the loop.

With the runner for pooling, an embedding is the lengths of the words; a class is as likely as a word in it is long; a
pair's score is where its second text begins, and of how many tokens.

A prompt ``die`` ends the engine over all that is in flight; ``die once`` only the first engine; ``hang`` has no answer;
``fail`` meets an error that vLLM does not expect.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy
from vllm.sampling_params import RequestOutputKind, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

ENGINES = []


class AsyncLLM:
    def __init__(self, args):
        self.args = args
        self.errored = False
        self.in_flight = {}
        self.most = 0
        self.aborted = []
        self.is_shut_down = False
        labels = {0: "first", 1: "second", 2: "third"} if args.model == "some/classifier" else {0: "LABEL_0"}
        hf_config = SimpleNamespace(id2label=labels, num_labels=len(labels))
        self.model_config = SimpleNamespace(hf_config=hf_config, max_model_len=args.max_model_len)
        ENGINES.append(self)

    @classmethod
    def from_engine_args(cls, engine_args):
        return cls(engine_args)

    def shutdown(self, timeout=None):
        self.is_shut_down = True

    async def get_supported_tasks(self):
        if self.args.runner != "pooling":
            return ("generate",)
        return ("embed", "token_embed") if self.args.model == "some/embedder" else ("classify", "token_classify")

    async def encode(self, prompt, pooling_params, request_id, tokenization_kwargs):
        assert self.args.runner == "pooling"
        assert tokenization_kwargs == {"truncation": True}
        async for one in self._in_flight(prompt, request_id, self._pooled(prompt, pooling_params)):
            yield one

    async def generate(self, prompt, sampling_params, request_id):
        assert sampling_params.output_kind is RequestOutputKind.FINAL_ONLY
        async for one in self._in_flight(prompt, request_id, self._answer(prompt, sampling_params)):
            yield one

    async def _in_flight(self, prompt, request_id, answer):
        if self.errored:
            answer.close()
            raise EngineDeadError
        assert request_id not in self.in_flight
        self.in_flight[request_id] = asyncio.current_task()
        self.most = max(self.most, len(self.in_flight))
        try:
            yield await answer
        except asyncio.CancelledError:
            self.aborted.append(prompt)
            raise
        finally:
            del self.in_flight[request_id]

    async def _pooled(self, prompt, params):
        await asyncio.sleep(0)
        if isinstance(prompt, dict):
            ids = prompt["prompt_token_ids"]
            data = [params.extra_kwargs["compressed_token_type_ids"] + len(ids) / 100]
        else:
            ids = prompt.split()
            data = [float(len(word)) for word in ids][: params.dimensions]
        if self.args.model == "some/classifier":
            data = [size / sum(data) for size in data]
        error = "no room" if prompt == "no room" else None
        return SimpleNamespace(outputs=SimpleNamespace(data=numpy.array(data)), prompt_token_ids=ids, error=error)

    async def _answer(self, prompt, params):
        words = prompt.split() if isinstance(prompt, str) else [str(one) for one in prompt["prompt_token_ids"]]
        if len(words) > self.args.max_model_len:
            raise VLLMValidationError(f"the prompt is longer than {self.args.max_model_len}.")
        if words == ["fail"]:
            raise EngineGenerateError from KeyError("what vLLM did not expect")
        if words == ["hang"]:
            await asyncio.sleep(1000)
        await asyncio.sleep(0)  # others are in flight by the time that the engine dies
        if words[0] == "die" and (words[1:] != ["once"] or len(ENGINES) == 1):
            self.errored = True
        made = params.choice[:1] if params.choice else [word.upper() for word in words][: params.max_tokens]
        for _ in made:
            await asyncio.sleep(0)
            if self.errored:
                raise EngineDeadError
        reason = "length" if len(made) == params.max_tokens else "stop"
        answer = SimpleNamespace(text=" ".join(made), token_ids=[0] * len(made), finish_reason=reason)
        metrics = SimpleNamespace(first_token_latency=0.25)
        return SimpleNamespace(outputs=[answer], prompt_token_ids=[0] * len(words), metrics=metrics, finished=True)

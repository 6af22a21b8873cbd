"""Stands in for vLLM's asynchronous engine: answers with the prompt's words in capitals, one each turn of the loop.

A prompt ``die`` ends the engine over all that is in flight; ``die once`` only the first engine; ``hang`` has no answer;
``fail`` meets an error that vLLM does not expect.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind
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
        ENGINES.append(self)

    @classmethod
    def from_engine_args(cls, engine_args):
        return cls(engine_args)

    def shutdown(self, timeout=None):
        self.is_shut_down = True

    async def generate(self, prompt, sampling_params, request_id):
        if self.errored:
            raise EngineDeadError
        assert sampling_params.output_kind is RequestOutputKind.FINAL_ONLY
        assert request_id not in self.in_flight
        self.in_flight[request_id] = asyncio.current_task()
        self.most = max(self.most, len(self.in_flight))
        try:
            yield await self._answer(prompt, sampling_params)
        except asyncio.CancelledError:
            self.aborted.append(prompt)
            raise
        finally:
            del self.in_flight[request_id]

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

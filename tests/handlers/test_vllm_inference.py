"""Language models in a server of their own: asked with OpenAI's client, over HTTP, of a stand-in for vLLM's server.

The stand-in is started by the handler's own command, as a process of its own.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from pathlib import Path

import apache_beam as beam
import openai
import pytest
from apache_beam.ml.inference import vllm_inference as incumbent
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from headrace import ConfigurationError, Failure, RetryConfig, UnsupportedError, predict
from headrace.beam import RunInference
from headrace.handlers.vllm_inference import (
    OpenAIChatMessage,
    VLLMChatModelHandler,
    VLLMCompletionsModelHandler,
    VLLMServerError,
)
from headrace.testing import HandlerContract

MODEL = "someone/some-model"
PROMPTS = ["once upon", "a time", "there was", "a wheel"]
CHATS = [[OpenAIChatMessage("system", "be brief"), OpenAIChatMessage("user", prompt)] for prompt in PROMPTS]
HERE = {"placement": "process"}


@pytest.fixture(autouse=True)
def _stand_in(stand_in_vllm):
    pass


class _Here:
    """In this process: through the machine's host each test would take seconds."""

    def share_model_across_processes(self):
        return False


class CompletionsHere(_Here, VLLMCompletionsModelHandler):
    pass


class ChatHere(_Here, VLLMChatModelHandler):
    pass


def texts(predictions):
    return [prediction.inference.choices[0].text for prediction in predictions]


class TestCompletionsContract(HandlerContract):
    bad_example = "400"

    def handler(self):
        return CompletionsHere(MODEL, {"max-num-seqs": 4}, max_batch_size=4)

    def examples(self):
        return PROMPTS

    def inference_args(self):
        return {"max_tokens": 6}

    def equal(self, a, b):
        return texts([a]) == texts([b])


class TestChatContract(HandlerContract):
    bad_example = "no messages"

    def handler(self):
        return ChatHere(MODEL)

    def examples(self):
        return CHATS

    def equal(self, a, b):
        return a.inference.choices == b.inference.choices

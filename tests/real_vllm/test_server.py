"""vLLM's server answers the handlers that start it, says what it refuses, and is replaced if its engine is killed."""

from __future__ import annotations

import json
import os
import signal
import threading

import openai
import pytest

from headrace.handlers.vllm_inference import OpenAIChatMessage, VLLMChatModelHandler, VLLMCompletionsModelHandler

LONGEST = 1024
OPTIONS = {
    "max-model-len": LONGEST,
    "enforce-eager": None,
    "kv-cache-memory-bytes": 1 << 28,
    "structured-outputs-config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
GREEDY = {"max_tokens": 12, "temperature": 0.0}
PROMPTS = ["once upon", "a time", "there was"]
SCHEMA = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}},
    "required": ["sure"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def completions(saved_model):
    return VLLMCompletionsModelHandler(saved_model, OPTIONS)


@pytest.fixture(scope="module")
def chat(saved_model):
    return VLLMChatModelHandler(saved_model, None, OPTIONS)


@pytest.fixture(scope="module")
def server(completions):
    """A server that answers; both handlers ask it: it takes half a minute to start."""
    model = completions.load_model()
    yield model
    model.running().stop()


def test_prompts_are_completed_and_conversations_continued(completions, chat, server):
    found = completions.run_inference(PROMPTS, server, GREEDY)
    assert [one.example for one in found] == PROMPTS
    assert {one.inference.usage.completion_tokens for one in found} == {12}
    assert [one.inference.usage.prompt_tokens for one in found] == [len(prompt) for prompt in PROMPTS]
    (said,) = chat.run_inference([[OpenAIChatMessage("user", "Hello")]], server, GREEDY)
    assert said.inference.choices[0].message.role == "assistant"
    assert said.inference.usage.prompt_tokens == len("user:Hello\n")


def test_answers_have_the_structure_that_is_asked_for(chat, completions, server):
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    (said,) = chat.run_inference([[OpenAIChatMessage("user", "Hello")]], server, {"response_format": asked})
    assert isinstance(json.loads(said.inference.choices[0].message.content)["sure"], bool)
    asked = {"extra_body": {"structured_outputs": {"json": SCHEMA}}, "max_tokens": 30}
    (made,) = completions.run_inference(["Hello"], server, asked)
    assert isinstance(json.loads(made.inference.choices[0].text)["sure"], bool)


def test_prompts_that_are_too_long_are_refused(completions, server):
    with pytest.raises(openai.BadRequestError, match=f"maximum context length is {LONGEST}"):
        completions.run_inference([PROMPTS[0], "x" * (LONGEST + 1)], server, GREEDY)


def test_server_whose_engine_is_killed_is_replaced(completions, server, descendants):
    def kill():
        (core,) = (number for number, name in descendants().items() if name == "VLLM::EngineCore")
        os.kill(core, signal.SIGKILL)

    args = {"max_tokens": LONGEST - 20, "temperature": 0.0, "extra_body": {"ignore_eos": True}}
    first = server.running()
    killer = threading.Timer(0.5, kill)
    killer.start()
    found = completions.run_inference(PROMPTS * 10, server, args)
    killer.join()
    again = completions.run_inference(PROMPTS, server, GREEDY)
    assert [one.example for one in [*found, *again]] == PROMPTS * 11
    assert server.running() is not first

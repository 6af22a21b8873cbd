"""OpenAI's handlers ask a real server of language models: ``transformers serve``, with a tiny model made here."""

from __future__ import annotations

import os
import sys

import pytest

from headrace import EndpointError, predict
from headrace.core.events import UsageReported
from headrace.handlers.openai_inference import OpenAIChatModelHandler, OpenAICompletionsModelHandler
from http_endpoint import events_and_outcomes
from ports import new_port
from saved_models import WORDS
from waiting import answers, wait_until

pytestmark = pytest.mark.large

ARGS = {"max_tokens": 4, "temperature": 0}
PROMPTS = ["a good film", "the film is bad", "film"]


@pytest.fixture
def serving_model(popen, saved_llama):
    """The URL of the server, and the name of its model."""
    port = new_port()
    command = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    arguments = ["serve", saved_llama, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    server = popen([sys.executable, "-c", command, *arguments], env=environment)
    url = f"http://127.0.0.1:{port}"
    assert wait_until(lambda: answers(f"{url}/health") or server.poll() is not None, 240)
    assert server.poll() is None
    return f"{url}/v1", saved_llama


def test_real_server_is_asked(serving_model):
    url, name = serving_model
    chat = OpenAIChatModelHandler(name, url=url)
    events, outcomes = events_and_outcomes(chat, PROMPTS, inference_args=ARGS)
    texts = {one.example: one.inference for one in outcomes}
    assert texts.keys() == set(PROMPTS)
    assert all(set(text.split()) <= set(WORDS) for text in texts.values()), texts
    used = events.of(UsageReported)
    assert all(0 < one.output_tokens <= 4 for one in used)
    assert sorted(one.input_tokens for one in used) == [2, 4, 5]

    rows = [{"what": "film"}, {"what": None}]
    handler = OpenAICompletionsModelHandler(name, prompt="the {what} is", url=url)
    good, bad = predict(handler, rows, inference_args=ARGS, on_failure="yield")
    assert set(good.inference.split()) <= set(WORDS)
    assert "'what', which the prompt needs, is empty" in str(bad.error)

    with pytest.raises(EndpointError, match="Unexpected fields in the request"):
        list(predict(chat, PROMPTS, inference_args={"extra_body": {"no_such_field": 1}}, on_failure="yield"))

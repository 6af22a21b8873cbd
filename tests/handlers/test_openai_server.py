"""OpenAI's handlers ask a real server of language models: ``transformers serve``, with a tiny model made here."""

from __future__ import annotations

import os
import socket
import sys
import urllib.request

import pytest

from headrace import EndpointError, predict
from headrace.core.events import UsageReported
from headrace.handlers.openai_inference import OpenAIChatModelHandler, OpenAICompletionsModelHandler
from http_endpoint import events_and_outcomes
from waiting import wait_until

pytestmark = pytest.mark.large

WORDS = ["<unk>", "<s>", "</s>", "user", "assistant", "system", "once", "upon", "a", "time", "there", "was", "mill"]
TEMPLATE = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}assistant"
ARGS = {"max_tokens": 4, "temperature": 0}
PROMPTS = ["once upon a time", "there was a mill", "a mill"]


def save_model(folder):
    """Saves a small Llama with a tokenizer of few words, and a chat template."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = TEMPLATE
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), max_position_embeddings=64, bos_token_id=1, eos_token_id=None, **sizes
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def serving_model(popen, tmp_path):
    """The URL of the server, and the name of its model."""
    save_model(tmp_path)
    port = free_port()
    command = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    arguments = ["serve", str(tmp_path), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    server = popen([sys.executable, "-c", command, *arguments], env=environment)
    url = f"http://127.0.0.1:{port}"
    assert wait_until(lambda: answers(url) or server.poll() is not None)
    assert server.poll() is None
    return f"{url}/v1", str(tmp_path)


def test_real_server_is_asked(serving_model):
    url, name = serving_model
    chat = OpenAIChatModelHandler(name, url=url)
    events, outcomes = events_and_outcomes(chat, PROMPTS, inference_args=ARGS)
    texts = {one.example: one.inference for one in outcomes}
    assert texts.keys() == set(PROMPTS)
    assert all(set(text.split()) <= set(WORDS) for text in texts.values()), texts
    used = events.of(UsageReported)
    assert sum(one.output_tokens for one in used) == 12
    assert sorted(one.input_tokens for one in used) == [4, 6, 6]

    rows = [{"what": "mill"}, {"what": None}]
    handler = OpenAICompletionsModelHandler(name, prompt="there was a {what}", url=url)
    good, bad = predict(handler, rows, inference_args=ARGS, on_failure="yield")
    assert set(good.inference.split()) <= set(WORDS)
    assert "'what', which the prompt needs, is empty" in str(bad.error)

    with pytest.raises(EndpointError, match="Unexpected fields in the request"):
        list(predict(chat, PROMPTS, inference_args={"extra_body": {"no_such_field": 1}}, on_failure="yield"))

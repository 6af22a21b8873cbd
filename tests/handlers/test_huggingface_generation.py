"""Language models of transformers, batched continuously and in batches, generate what ``generate`` does."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from contextlib import nullcontext

import pytest
import torch
import transformers

from headrace import ConfigurationError, Failure, predict
from headrace.core.events import HostLost, UsageReported
from headrace.handlers import huggingface_engines
from headrace.handlers.huggingface_generation import HuggingFaceGenerationModelHandler
from headrace.testing import HandlerContract
from http_endpoint import events_and_outcomes, failures_among
from waiting import wait_until

pytestmark = pytest.mark.large

BOTH = pytest.mark.parametrize("continuous", [True, False], ids=["continuous", "batches"])
GREEDY = {"max_new_tokens": 12, "do_sample": False}


def prompts(count, seed=1):
    generator = random.Random(seed)
    return [" ".join(generator.choices("abcde", k=generator.randint(1, 30))) for _ in range(count)]


def make(folder, **options):
    return HuggingFaceGenerationModelHandler(folder, **{"device": "CPU", "generation_args": GREEDY, **options})


def texts(results):
    return [result.inference["text"] for result in results]


@pytest.fixture(scope="module")
def alone(saved_llama):
    """What ``generate`` makes of a prompt on its own: its text, its tokens, and whether the model ended it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(saved_llama).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved_llama)

    def generate(prompt, **options):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            answer = model.generate(ids, attention_mask=torch.ones_like(ids), **{**GREEDY, **options})
        made = answer[0, ids.shape[1] :].tolist()
        return tokenizer.decode(made, skip_special_tokens=True), len(made), made[-1] == 3

    return generate


class TestContract(HandlerContract):
    continuous = True
    bad_example = "a " * 60
    examples = prompts(5)
    inference_args = {"max_new_tokens": 5}
    odd_examples = ["", 7, [], [{"role": "user"}], "unknown words", [{"role": "user", "content": "a b"}]]

    def handler(self, saved_llama):
        return make(saved_llama, continuous=self.continuous)


class TestBatchesContract(TestContract):
    continuous = False


@BOTH
def test_texts_are_those_of_generate(saved_llama, alone, continuous):
    given = prompts(25)
    events, outcomes = events_and_outcomes(make(saved_llama, continuous=continuous, max_concurrent=10), given)
    found = {result.example: result.inference for result in outcomes}
    expected = {prompt: alone(prompt) for prompt in given}
    assert {prompt: (one["text"], one["output_tokens"]) for prompt, one in found.items()} == {
        prompt: one[:2] for prompt, one in expected.items()
    }
    reasons = {prompt: "stop" if one[2] else "length" for prompt, one in expected.items()}
    assert {prompt: one["finish_reason"] for prompt, one in found.items()} == reasons
    assert set(reasons.values()) == {"stop", "length"}, "the model makes texts of one kind only"
    tokens = sum(event.output_tokens for event in events.of(UsageReported))
    assert tokens == sum(expected[prompt][1] for prompt in given)
    for event in events.of(UsageReported):
        assert 0 < event.first_token_secs <= event.seconds


@BOTH
@pytest.mark.parametrize("options", [{"isolate": True}, {"placement": "machine"}], ids=["own", "shared"])
def test_engine_in_a_host_generates_the_same(saved_llama, alone, own_runtime, continuous, options):
    given = [*prompts(12), ""]
    handler = make(saved_llama, continuous=continuous)
    with own_runtime() if "placement" in options else nullcontext():
        events, outcomes = events_and_outcomes(handler, given, timeout_secs=120, **options)
    assert [str(one.error) for one in failures_among(outcomes)] == ["the prompt is empty."]
    found = {one.example: one.inference["text"] for one in outcomes if not isinstance(one, Failure)}
    assert found == {prompt: alone(prompt)[0] for prompt in given if prompt}
    assert len(events.of(UsageReported)) == 12
    assert not events.of(HostLost)


@BOTH
def test_limit_of_tokens_may_differ_by_transform(saved_llama, alone, continuous):
    given = prompts(4)
    found = predict(make(saved_llama, continuous=continuous), given, inference_args={"max_new_tokens": 3})
    assert texts(found) == [alone(one, max_new_tokens=3)[0] for one in given]


@BOTH
def test_prompts_that_are_too_long_or_no_prompts_fail_alone(saved_llama, continuous):
    bad = {"60 tokens and max_new_tokens is 12: together more than the 64": "a " * 60, "the prompt is empty": ""}
    bad |= {"a prompt is a text, or a list of messages": 7, "a dict with 'role' and 'content'": [{"text": "a"}]}
    found = list(predict(make(saved_llama, continuous=continuous), [*bad.values(), "a b"], on_failure="yield"))
    assert all(said in str(one.error) for said, one in zip(bad, failures_among(found), strict=True))


@BOTH
def test_conversations_go_through_the_chat_template(saved_llama, alone, continuous):
    chat = [{"role": "system", "content": "a b"}, {"role": "user", "content": "c d"}]
    (found,) = predict(make(saved_llama, continuous=continuous), [chat])
    assert found.inference["text"] == alone("a b c d [CLS]")[0]
    assert found.example == chat


@BOTH
def test_whatever_fails_or_ends_over_a_prompt_costs_only_the_one_at_fault(saved_llama, alone, monkeypatch, continuous):
    """The thread that batches continuously ends; a batch fails."""
    engine = huggingface_engines.ContinuousEngine if continuous else huggingface_engines.BatchedEngine
    encoded = engine.generate

    async def generate(self, ids, limit):
        return await encoded(self, [9999] if len(ids) == 1 else ids, limit)

    monkeypatch.setattr(engine, "generate", generate)
    given = [one for one in prompts(12) if len(one.split()) > 1]
    found = list(predict(make(saved_llama, continuous=continuous), [*given, "a"], on_failure="yield"))
    assert [one.element for one in failures_among(found)] == ["a"]
    assert texts(found[:-1]) == [alone(one)[0] for one in given]


def generating():
    return [thread for thread in threading.enumerate() if "generation" in thread.name or "(_run_" in thread.name]


@BOTH
def test_threads_end_with_the_model_and_delay_no_exit(saved_llama, continuous):
    before = set(generating())
    model = make(saved_llama, continuous=continuous).load_model()
    (thread,) = set(generating()) - before
    assert thread.daemon
    del model
    assert wait_until(lambda: gc.collect() is not None and not thread.is_alive())


def test_settings_that_continuous_batching_would_ignore_are_not_ignored(saved_llama, alone, caplog):
    settings = {**GREEDY, "repetition_penalty": 1.5}
    with pytest.raises(ConfigurationError, match="its continuous batching ignores repetition_penalty"):
        make(saved_llama, continuous=True, generation_args=settings).load_model()
    handler = make(saved_llama, generation_args=settings)
    assert texts(predict(handler, ["a b"])) == [alone("a b", repetition_penalty=1.5)[0]]
    assert "prompts go in batches of 16: its continuous batching ignores repetition_penalty" in caplog.text


def test_models_that_cannot_be_batched_continuously_go_in_batches(saved_llama, alone, caplog, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("Invalid layer type: mamba")

    monkeypatch.setattr(transformers.LlamaForCausalLM, "init_continuous_batching", refuse)
    with pytest.raises(ValueError, match="mamba"):
        make(saved_llama, continuous=True).load_model()
    assert texts(predict(make(saved_llama), ["a b"])) == [alone("a b")[0]]
    assert "prompts go in batches of 16: ValueError: Invalid layer type: mamba" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an int, at least 1"),
        ({"continuous": False, "continuous_args": {"page_size": 8}}, "no effect with continuous=False"),
        ({"generation_args": {"max_new_tokens": 0}}, "max_new_tokens must be an int"),
        ({"generation_args": {"num_beams": 4}}, "one answer, made token by token: leave out num_beams"),
        ({"generation_args": {"max_new_token": 3}}, "GenerationConfig has no settings.*max_new_token"),
        ({"device": "TPU"}, "device must be 'CPU', 'GPU'"),
        ({"max_batch_size": 8}, "takes elements one by one"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make("some/model", **options)


def test_inference_args_are_checked_beforehand(saved_llama):
    with pytest.raises(ConfigurationError, match=r"not \['temperature'\].*generation_args="):
        predict(make(saved_llama), [], inference_args={"temperature": 1.0})


@pytest.mark.parametrize(("raised", "seen"), [(SystemExit, SystemExit), (StopIteration, RuntimeError)])
def test_whatever_is_raised_over_one_prompt_leaves_no_other_waiting(raised, seen):
    class Model:
        device = "cpu"

        def generate(self, input_ids, **options):
            if 13 in input_ids:
                raise raised("13")
            return torch.cat([input_ids, torch.full((len(input_ids), 1), 5)], dim=1)

    async def generated(engine, token):
        try:
            return (await engine.generate([token], 1)).ids
        except BaseException as error:
            return type(error)

    async def ask():
        engine = huggingface_engines.BatchedEngine(Model(), transformers.GenerationConfig(pad_token_id=0), 8)
        first = await asyncio.gather(*(generated(engine, token) for token in (11, 12, 13, 14)))
        return [*first, await generated(engine, 15)]

    assert asyncio.run(ask()) == [[5], [5], seen, [5], [5]]

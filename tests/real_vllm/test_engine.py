"""vLLM's asynchronous engine generates through Headrace, and what dies, or does not fit, costs no other request."""

from __future__ import annotations

import json
import os
import signal
import threading
from multiprocessing import active_children

import pytest

from headrace import predict
from headrace.core.event_loop import close_loop, open_loop
from headrace.core.events import UsageReported
from headrace.handlers.vllm_engine import VLLMEngineModelHandler
from http_endpoint import events_and_outcomes, failures_among
from waiting import wait_until

LONGEST = 1024
ENGINE_ARGS = {"max_model_len": LONGEST, "enforce_eager": True, "kv_cache_memory_bytes": 1 << 28}
ENGINE_ARGS["structured_outputs_config"] = {"backend": "xgrammar", "disable_any_whitespace": True}
GREEDY = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
PROMPTS = ["once upon", "a time", "there was", "a wheel", "once upon a"]
SCHEMA = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "word": {"enum": ["yes", "no"]}},
    "required": ["sure", "word"],
    "additionalProperties": False,
}
STRUCTURE = {"structured_outputs": {"json": SCHEMA}}


class Loaded(VLLMEngineModelHandler):
    """Gives every transform the engine that runs already."""

    engine = None

    def load_model(self):
        return type(self).engine


@pytest.fixture(scope="module")
def handler(saved_model):
    """Makes handlers that have one engine: it takes half a minute to start."""
    open_loop()  # the engine belongs to the first loop that it is used in, which would end with the first transform
    Loaded.engine = VLLMEngineModelHandler(saved_model, engine_args=ENGINE_ARGS).load_model()
    yield lambda **sampling: Loaded(saved_model, engine_args=ENGINE_ARGS, sampling_args={**GREEDY, **sampling})
    Loaded.engine = None
    close_loop()
    assert wait_until(lambda: not active_children()), active_children()  # which reaps the one that vLLM has killed


def unfinished():
    return Loaded.engine.running().get_num_unfinished_requests()


def texts(results):
    return [result.inference["text"] for result in results]


@pytest.fixture(scope="module")
def expected(handler):
    """What each prompt becomes, by itself."""
    return {prompt: texts(predict(handler(), [prompt]))[0] for prompt in PROMPTS}


def test_prompts_are_continued_in_order(handler, expected):
    events, outcomes = events_and_outcomes(handler(), PROMPTS * 20)
    assert len(set(expected.values())) > 1
    assert texts(outcomes) == [expected[prompt] for prompt in PROMPTS * 20]
    kept = {name: value for name, value in outcomes[0].inference.items() if name != "text"}
    assert kept == {"finish_reason": "length", "input_tokens": len(PROMPTS[0]), "output_tokens": 12}
    used = events.of(UsageReported)
    assert [sum(event.output_tokens for event in used), len(used)] == [100 * 12, 100]
    assert all(0 < event.first_token_secs <= event.seconds for event in used)


def test_sampling_follows_its_arguments(handler, expected):
    prompt = PROMPTS[0]
    (shorter,) = predict(handler(), [prompt], inference_args={"max_tokens": 3})
    assert shorter.inference["output_tokens"] == 3
    stop = expected[prompt][4]
    (stopped,) = predict(handler(stop=[stop]), [prompt])
    assert stopped.inference["finish_reason"] == "stop"
    assert stopped.inference["text"] == expected[prompt].partition(stop)[0]
    warm = {"temperature": 1.5, "seed": 7}
    assert texts(predict(handler(**warm), [prompt] * 2)) == texts(predict(handler(**warm), [prompt])) * 2


def test_conversations_go_through_the_chat_template(handler):
    (said,) = predict(handler(), [[{"role": "user", "content": "Hello"}]])
    assert texts([said]) == texts(predict(handler(), ["user:Hello\n"]))


def test_answers_have_the_structure_that_is_asked_for(handler):
    for text in texts(predict(handler(max_tokens=60, ignore_eos=False, **STRUCTURE), PROMPTS)):
        answer = json.loads(text)
        assert set(answer) == {"sure", "word"}
        assert isinstance(answer["sure"], bool)
        assert answer["word"] in ("yes", "no")
    choice = {"structured_outputs": {"choice": ["left", "right"]}}
    assert set(texts(predict(handler(ignore_eos=False), PROMPTS, inference_args=choice))) <= {"left", "right"}


def test_requests_that_vllm_refuses_fail_alone(handler, expected):
    long = "x" * (LONGEST + 1)
    found = list(predict(handler(), [PROMPTS[0], long, "", 7, PROMPTS[1]], on_failure="yield"))
    errors = {str(one.element)[:1]: str(one.error) for one in failures_among(found)}
    assert set(errors) == {"x", "", "7"}
    assert f"maximum context length is {LONGEST}" in errors["x"]
    assert errors[""]
    assert texts([found[0], found[-1]]) == [expected[prompt] for prompt in PROMPTS[:2]]
    wrong = {"structured_outputs": {"json": {"type": "no type"}}}
    (failed,) = predict(handler(), ["a"], inference_args=wrong, on_failure="yield")
    assert str(failed.error)


def test_time_limit_frees_the_engine_of_the_request(handler):
    slow = handler(max_tokens=LONGEST - 10)
    (late,) = predict(slow, ["late"], timeout=0.05, on_failure="yield")
    assert isinstance(late.error, TimeoutError)
    assert wait_until(lambda: unfinished() == 0)


def test_engine_that_is_killed_costs_no_request(handler, descendants):
    long = handler(max_tokens=LONGEST - 20)

    def kill():
        if wait_until(lambda: unfinished() == len(PROMPTS)):
            (core,) = (number for number, name in descendants().items() if name == "VLLM::EngineCore")
            os.kill(core, signal.SIGKILL)

    first = Loaded.engine.running()
    killer = threading.Thread(target=kill)
    killer.start()
    found = list(predict(long, PROMPTS))  # whose texts may differ: rounding depends on what is computed together
    killer.join()
    assert [one.example for one in found] == PROMPTS
    assert {one.inference["output_tokens"] for one in found} == {LONGEST - 20}
    assert Loaded.engine.running() is not first

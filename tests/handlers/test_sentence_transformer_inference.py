"""Models of sentence-transformers, saved as users save them, embed texts as they do by hand."""

from __future__ import annotations

import logging
import pickle

import apache_beam as beam
import numpy
import pytest
import sentence_transformers
import torch
import transformers
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from sentence_transformers.sentence_transformer import modules

from headrace import ConfigurationError, predict
from headrace.beam import RunInference
from headrace.handlers.sentence_transformer_inference import SentenceTransformerModelHandler
from headrace.testing import HandlerContract, nearly_equal

TEXTS = ["the film is good", "bad film", "a b c d e", "d", ""]


@pytest.fixture(scope="module")
def folder(save_bert, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("embedder"))
    words = modules.Transformer(save_bert(transformers.BertModel))
    sentence_transformers.SentenceTransformer(modules=[words, modules.Pooling(16)], device="cpu").save(folder)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    return list(sentence_transformers.SentenceTransformer(folder, device="cpu").encode(TEXTS))


class TestSentenceTransformerContract(HandlerContract):
    bad_example = None

    def handler(self, folder):
        return SentenceTransformerModelHandler(folder, max_batch_size=4)

    def examples(self):
        return TEXTS

    def inference_args(self):
        return {"normalize_embeddings": True}


def embed(handler, texts, inference_args=None):
    return [result.inference for result in handler.run_inference(texts, handler.load_model(), inference_args)]


def test_embeddings_are_those_of_the_model_in_memory_of_their_own(folder, expected):
    results = SentenceTransformerModelHandler(folder).run_inference(
        TEXTS, sentence_transformers.SentenceTransformer(folder)
    )
    assert nearly_equal([result.inference for result in results], expected)
    assert {(type(r.inference), r.inference.dtype.name, r.model_id) for r in results} == {
        (numpy.ndarray, "float32", folder)
    }
    assert all(result.inference.base is None for result in results)


def test_a_pipeline_runs_it(folder, expected):
    pipeline = beam.Pipeline(runner=FnApiRunner())
    results = pipeline | beam.Create(TEXTS) | RunInference(SentenceTransformerModelHandler(folder))
    rounded = results | beam.Map(lambda r: [round(x, 3) for x in r.inference.tolist()])
    assert_that(rounded, equal_to([[round(x, 3) for x in row.tolist()] for row in expected]))
    pipeline.run()


def test_a_host_embeds_the_same(folder, expected):
    results = predict(SentenceTransformerModelHandler(folder), TEXTS, isolate=True)
    assert nearly_equal([result.inference for result in results], expected)


def test_weights_are_mapped(folder, expected, runtime, assert_mappable):
    handler = SentenceTransformerModelHandler(folder)
    results = predict(handler, TEXTS, placement="machine")
    assert nearly_equal([result.inference for result in results], expected)
    assert_mappable(handler)


@pytest.mark.parametrize(
    ("args", "kind", "shape"),
    [
        ({"convert_to_tensor": True}, torch.Tensor, (16,)),
        ({"convert_to_numpy": False}, torch.Tensor, (16,)),
        ({"output_value": "token_embeddings"}, torch.Tensor, (4, 16)),
        ({"truncate_dim": 4}, numpy.ndarray, (4,)),
    ],
)
def test_inference_args_go_to_encode(folder, args, kind, shape):
    (embedding, _) = embed(SentenceTransformerModelHandler(folder), ["bad film", "the film is good a b"], args)
    assert (type(embedding), tuple(embedding.shape)) == (kind, shape)
    assert len(pickle.dumps(embedding)) < 1000


def test_options_of_loading(folder):
    handler = SentenceTransformerModelHandler(
        folder, max_seq_length=5, load_model_args={"device": "cpu", "truncate_dim": 8}
    )
    model = handler.load_model()
    assert (model.max_seq_length, model.truncate_dim, model.training) == (5, 8, False)
    first, second = embed(handler, ["a b c d e", "a b c"])
    assert nearly_equal(first, second)


@pytest.mark.parametrize("load_model_args", [{"device": "cpu"}, {"model_kwargs": {"device_map": "cpu"}}], ids=str)
def test_where_the_model_goes_is_said_once(folder, load_model_args, expected):
    handler = SentenceTransformerModelHandler(folder, load_model_args=load_model_args)
    assert nearly_equal(embed(handler, TEXTS), expected)
    with pytest.raises(ConfigurationError, match="load_model_args say where the model goes"):
        SentenceTransformerModelHandler(folder, device="CPU", load_model_args=load_model_args)


@pytest.mark.parametrize(("device", "warnings"), [("GPU", [logging.WARNING]), (None, [])])
def test_without_a_gpu_it_goes_to_the_cpu(folder, device, warnings, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    caplog.set_level(logging.WARNING)
    assert SentenceTransformerModelHandler(folder, device=device).load_model().device.type == "cpu"
    assert [record.levelno for record in caplog.records] == warnings


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(("",), "model_name must name a model"), (("m", "cuda"), "device must be 'CPU' or 'GPU'")],
)
def test_bad_arguments_name_their_cure(arguments, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        SentenceTransformerModelHandler(arguments[0], device=arguments[1] if arguments[1:] else None)


def test_a_row_with_one_text_is_an_example():
    handler = SentenceTransformerModelHandler("m")
    assert handler.example_from_row({"text": "bad film"}) == "bad film"
    with pytest.raises(ValueError, match=r"choose one column with the text \(--columns\), of id, text"):
        handler.example_from_row({"id": 1, "text": "bad film"})
    with pytest.raises(ValueError, match="column 'id' holds 7, which is no text"):
        handler.example_from_row({"id": 7})


def test_another_model(folder):
    handler = SentenceTransformerModelHandler("old")
    handler.update_model_path(folder)
    handler.update_model_path(None)
    assert len(embed(handler, TEXTS)) == len(TEXTS)


def test_what_is_missing_is_named_with_its_cure(said_without):
    assert said_without("headrace.handlers.sentence_transformer_inference", "sentence_transformers") == (
        "MissingExtraError: sentence_transformers is not installed; install it with: "
        "pip install 'headrace[sentence-transformers]'"
    )

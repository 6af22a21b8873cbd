"""Pipelines of Hugging Face, saved as users save them, say of each example what they say of it alone."""

from __future__ import annotations

import logging

import numpy
import pytest
import torch
import transformers
from PIL import Image

from beam_compat import BeamCompatContract
from headrace import ConfigurationError, Failure, predict
from headrace.handlers.huggingface_inference import HuggingFacePipelineModelHandler, PipelineTask
from headrace.runtime.plan import make_plan
from headrace.testing import HandlerContract, nearly_equal
from toys import infer, inferences

pytestmark = [pytest.mark.large, pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow.*")]

TEXTS = ["the film is good", "bad film", "a b c", "d e", "the the the film"]
MASKED = [f"{text} [MASK]" for text in TEXTS]
IMAGES = [Image.fromarray(numpy.full((8, 8, 3), 40 * n, numpy.uint8)) for n in range(5)]


@pytest.fixture(scope="module")
def classifier(save_bert):
    return save_bert(transformers.BertForSequenceClassification, num_labels=3)


@pytest.fixture(scope="module")
def folders(classifier, save_bert, tmp_path_factory):
    images = tmp_path_factory.mktemp("images")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    vit = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **sizes)
    transformers.ViTForImageClassification(vit).save_pretrained(images)
    transformers.ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(images)
    return {
        "text-classification": classifier,
        "fill-mask": save_bert(transformers.BertForMaskedLM),
        "token-classification": save_bert(transformers.BertForTokenClassification),
        "feature-extraction": save_bert(transformers.BertModel),
        "zero-shot-classification": save_bert(
            transformers.BertForSequenceClassification, label2id={"entailment": 0, "other": 1}
        ),
        "text-generation": save_bert(transformers.BertLMHeadModel, is_decoder=True),
        "image-classification": str(images),
    }


class TestTextClassificationContract(BeamCompatContract):
    required = ()
    beams_model_id = False
    bad_example = 7
    examples = TEXTS
    inference_args = {"top_k": None}

    def handler(self, classifier):
        return HuggingFacePipelineModelHandler("text-classification", classifier, device="CPU", max_batch_size=4)

    def beams(self, classifier, incumbent_huggingface):
        return incumbent_huggingface.HuggingFacePipelineModelHandler("text-classification", classifier, device="CPU")


class TestFillMaskContract(HandlerContract):
    bad_example = "there is nothing to fill in"
    examples = MASKED

    def handler(self, folders):
        return HuggingFacePipelineModelHandler(PipelineTask.FillMask, folders["fill-mask"])


class CountsCalls:
    """Notes with how many examples a pipeline's model is called."""

    def __init__(self, monkeypatch):
        self.sizes = []
        forward = transformers.Pipeline.forward

        def counted(pipeline, inputs, **params):
            first = next(value for value in inputs.values() if isinstance(value, torch.Tensor))
            self.sizes.append(len(first))
            return forward(pipeline, inputs, **params)

        monkeypatch.setattr(transformers.Pipeline, "forward", counted)


@pytest.fixture
def calls(monkeypatch):
    return CountsCalls(monkeypatch)


PAIRS = [{"text": text, "text_pair": "a film" * n} for n, text in enumerate(TEXTS)]
LONG = [*TEXTS, "the film is good " * 20]
TASKS = [
    ("text-classification", TEXTS, {}, dict, 5),
    ("text-classification", TEXTS, {"top_k": None}, list, 5),
    ("text-classification", PAIRS, {"top_k": 1}, list, 5),
    ("text-classification", LONG, {"top_k": 2, "truncation": True}, list, 6),
    ("fill-mask", MASKED, {}, list, 5),
    ("fill-mask", MASKED, {"top_k": 1}, list, 5),
    ("token-classification", TEXTS, {}, list, 5),
    ("token-classification", LONG, {"aggregation_strategy": "simple", "stride": 8}, list, 6),
    ("zero-shot-classification", TEXTS, {"candidate_labels": ["good", "the bad film"]}, dict, 5),
    ("zero-shot-classification", TEXTS, {"candidate_labels": ["a", "b c"], "multi_label": True}, dict, 5),
    ("image-classification", IMAGES, {}, list, 5),
    ("feature-extraction", TEXTS, {}, list, 1),
    ("feature-extraction", TEXTS, {"return_tensors": True}, torch.Tensor, 1),
    ("text-generation", TEXTS, {"max_new_tokens": 3, "do_sample": False}, list, 1),
]


@pytest.mark.parametrize(
    ("task", "examples", "args", "kind", "at_once"), TASKS, ids=[f"{t}-{n}" for n, (t, *_) in enumerate(TASKS)]
)
def test_examples_get_the_pipelines_answer_to_them_alone(task, examples, args, kind, at_once, folders, calls):
    """Many at once, where that leaves the answers alone."""
    pipeline = transformers.pipeline(task, folders[task], device="cpu")
    alone = [pipeline(example, **args) for example in examples]
    if task == "text-classification" and not args:
        alone = [answer[0] for answer in alone]  # of one text, not in a list, the pipeline gives a list of one
    handler = HuggingFacePipelineModelHandler(task, folders[task], device="CPU")
    handler.run_inference(examples[:2], pipeline, args)
    calls.sizes.clear()
    results = list(handler.run_inference(examples, pipeline, args))
    assert calls.sizes[0] == at_once
    assert nearly_equal([result.inference for result in results], alone)
    assert {type(result.inference) for result in results} == {kind}
    for example, expected in zip(examples, alone, strict=True):
        (single,) = handler.run_inference([example], pipeline, args)
        assert nearly_equal(single.inference, expected)


@pytest.mark.parametrize(
    ("of_tokenizer", "complaint"),
    [
        ({"padding_side": "left"}, "padding changes its answers"),  # BERT numbers its tokens from the left
        ({"model_input_names": ["input_ids"]}, "padding changes its answers"),  # no mask says what is padding
        ({"pad_token": None}, "tokenizer without pad_token cannot do batching"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_examples_run_one_by_one_where_padding_changes_answers(classifier, of_tokenizer, complaint, calls, caplog):
    pipeline = transformers.pipeline("text-classification", classifier, device="cpu")
    for name, value in of_tokenizer.items():
        setattr(pipeline.tokenizer, name, value)
    alone = [pipeline(text, top_k=None) for text in TEXTS]
    handler = HuggingFacePipelineModelHandler("text-classification", classifier, device="CPU")
    for _ in range(2):
        calls.sizes.clear()
        results = list(handler.run_inference(TEXTS, pipeline, {"top_k": None}))
        assert nearly_equal([result.inference for result in results], alone)
    assert calls.sizes == [1] * 5
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "runs its examples one by one" in record.getMessage()
    assert complaint in record.getMessage()


def test_images_of_different_sizes_run_one_by_one_if_the_model_takes_them_as_they_are(folders, calls):
    pipeline = transformers.pipeline("image-classification", folders["image-classification"], device="cpu")
    pipeline.image_processor.do_resize = False
    handler = HuggingFacePipelineModelHandler("image-classification", folders["image-classification"], device="CPU")
    assert len(list(handler.run_inference(IMAGES, pipeline))) == len(IMAGES)
    assert calls.sizes[-5:] == [1] * 5


@pytest.mark.parametrize(
    ("load_pipeline_args", "inference_args", "sizes"),
    [({}, {"batch_size": 2}, [2, 2, 1]), ({"batch_size": 3}, {}, [3, 2]), ({"batch_size": 3}, {"batch_size": 5}, [5])],
)
def test_batch_sizes_of_the_users_win(classifier, load_pipeline_args, inference_args, sizes, calls):
    handler = HuggingFacePipelineModelHandler("text-classification", classifier, load_pipeline_args=load_pipeline_args)
    assert len(infer(handler, TEXTS, inference_args)) == len(TEXTS)
    assert calls.sizes == sizes


def test_a_bad_example_of_a_batch_costs_itself_only(classifier, calls):
    """One is no text, and one has more tokens than the model has places for."""
    texts = [TEXTS[0], 7, *TEXTS[1:], "a " * 40]
    handler = HuggingFacePipelineModelHandler(
        "text-classification", classifier, device="CPU", min_batch_size=8, max_batch_size=8
    )
    outcomes = list(predict(handler, texts, on_failure="yield"))
    assert [isinstance(outcome, Failure) for outcome in outcomes] == [text not in TEXTS for text in texts]
    good = [outcome.inference for outcome in outcomes if not isinstance(outcome, Failure)]
    assert nearly_equal(good, inferences(infer(handler, TEXTS, {"batch_size": 1})))
    assert max(calls.sizes[-20:]) > 1


def test_tasks_are_beams(incumbent_huggingface):
    theirs = incumbent_huggingface.PipelineTask.__members__
    assert {name: task.value for name, task in PipelineTask.__members__.items()} == {
        name: task.value for name, task in theirs.items()
    }


def test_weights_of_large_models_are_mapped(folders, assert_mappable):
    assert_mappable(HuggingFacePipelineModelHandler("token-classification", folders["token-classification"]))


def test_inference_fn_gets_beams_arguments(classifier):
    handler = HuggingFacePipelineModelHandler(
        "text-classification", classifier, inference_fn=lambda batch, pipeline, args: [(pipeline.task, args)]
    )
    assert infer(handler, ["bad film"]) == [("bad film", ("text-classification", {}), classifier)]


def test_tensors_do_not_keep_their_batch(folders):
    handler = HuggingFacePipelineModelHandler("feature-extraction", folders["feature-extraction"])
    for tensor in inferences(infer(handler, TEXTS, {"return_tensors": True, "batch_size": 5})):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * 4


def test_bad_arguments_are_refused_with_the_cure():
    with pytest.raises(ConfigurationError, match="needs a task, such as 'fill-mask', or a model") as raised:
        HuggingFacePipelineModelHandler()
    assert isinstance(raised.value, RuntimeError)
    with pytest.raises(ConfigurationError, match="device must be 'CPU', 'GPU'"):
        HuggingFacePipelineModelHandler("fill-mask", device="graphics")


def test_pipelines_that_read_texts_sort_them_by_length():
    for task in (PipelineTask.TextClassification, "sentiment-analysis"):
        assert make_plan(HuggingFacePipelineModelHandler(task, "m")).batching.sorts
        assert not make_plan(HuggingFacePipelineModelHandler(task, "m", sort_by_length=False)).batching.sorts
    for task in (PipelineTask.ImageClassification, PipelineTask.TextGeneration, ""):
        assert not make_plan(HuggingFacePipelineModelHandler(task, "m")).batching.sorts

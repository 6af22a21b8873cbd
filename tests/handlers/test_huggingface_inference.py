"""Models and pipelines of transformers, saved as users save them, predict as by hand and as with Beam's handlers.

A pipeline says of each example what it says of it alone.
"""

from __future__ import annotations

import logging

import numpy
import pytest
import torch
import transformers
from PIL import Image

from beam_compat import BeamCompatContract
from headrace import ConfigurationError, NotYetHonouredWarning, PredictionCountError, PredictionResult, predict
from headrace.handlers.huggingface_inference import (
    HuggingFaceModelHandlerKeyedTensor,
    HuggingFaceModelHandlerTensor,
    HuggingFacePipelineModelHandler,
    PipelineTask,
)
from headrace.runtime.plan import make_plan
from headrace.testing import HandlerContract, nearly_equal
from toys import infer, inferences

pytestmark = [pytest.mark.large, pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow.*")]

LENGTHS = [3, 5, 3, 4, 5, 1]
TENSORS = [torch.arange(5, 9) + n for n in range(6)]
RAGGED = [torch.arange(5, 5 + length) for length in LENGTHS]
KEYED = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in TENSORS]
RAGGED_KEYED = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in RAGGED]
CLASSIFIER = transformers.AutoModelForSequenceClassification


def keyed_handler(path, model_class=CLASSIFIER, **options):
    return HuggingFaceModelHandlerKeyedTensor(path, model_class, "pt", **options)


MAKERS = pytest.mark.parametrize("make", [HuggingFaceModelHandlerTensor, keyed_handler], ids=["tensor", "keyed"])


@pytest.fixture(scope="module")
def classifier(save_bert):
    return save_bert(transformers.BertForSequenceClassification, num_labels=3)


@pytest.fixture(scope="module")
def expected(classifier):
    """What the model says of the examples, one by one."""
    model = CLASSIFIER.from_pretrained(classifier)
    with torch.no_grad():
        return [model(input_ids=ids[None]).logits[0] for ids in TENSORS + RAGGED]


class TestTensorContract(BeamCompatContract):
    required = ("model_uri", "model_class")
    bad_example = torch.tensor([99])
    inference_args = {"output_hidden_states": True}
    odd_examples = [
        *(torch.tensor([5, 6, 7], dtype=dtype) for dtype in (torch.int32, torch.uint8, torch.float32)),
        torch.tensor([5.5, 6.0, 7.0]),
        torch.tensor([True, False, True]),
        torch.tensor([]),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([[5, 6]]),
        torch.tensor(5),
        [5, 6, 7],
        *RAGGED[:2],
    ]
    examples = TENSORS

    def handler(self, classifier):
        return HuggingFaceModelHandlerTensor(classifier, CLASSIFIER, max_batch_size=4)

    def beams(self, classifier, incumbent_huggingface):
        return incumbent_huggingface.HuggingFaceModelHandlerTensor(classifier, CLASSIFIER)


class TestKeyedTensorContract(BeamCompatContract):
    required = ("model_uri", "model_class", "framework")
    examples = KEYED
    bad_example = {"input_ids": [5, 6]}

    def handler(self, classifier):
        return keyed_handler(classifier, "AutoModelForSequenceClassification")

    def beams(self, classifier, incumbent_huggingface):
        return incumbent_huggingface.HuggingFaceModelHandlerKeyedTensor(classifier, CLASSIFIER, "pt")

    def odd_examples(self):
        ids = torch.tensor([5, 6, 7])
        masks = [torch.tensor([1, 1, 0]), torch.ones(3), torch.ones(3, dtype=torch.bool), torch.ones(2)]
        return [
            {"input_ids": ids},
            {"input_ids": ids.int()},
            {"input_ids": ids.float()},
            *({"input_ids": ids, "attention_mask": mask} for mask in masks),
            {"attention_mask": masks[0], "input_ids": ids},
            {"input_ids": ids, "more": ids},
            {},
            RAGGED_KEYED[1],
        ]


def logits(results):
    return [result.inference["logits"] for result in results]


def test_handlers_predict_as_the_model_and_its_weights_are_mapped(classifier, expected, runtime, assert_mappable):
    handler = HuggingFaceModelHandlerTensor(classifier, CLASSIFIER)
    assert nearly_equal(logits(predict(handler, TENSORS + RAGGED, placement="machine")), expected)
    assert nearly_equal(logits(infer(keyed_handler(classifier), KEYED + RAGGED_KEYED)), expected)
    assert_mappable(handler)


@MAKERS
@pytest.mark.parametrize("device_map", ["cpu", {"": "cpu"}, "auto"], ids=str)
@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_device_map_places_the_model(make, device_map, device, classifier, expected, caplog, monkeypatch):
    moved = []
    monkeypatch.setattr(transformers.PreTrainedModel, "to", lambda self, *place: moved.append(place) or self)
    handler = make(classifier, CLASSIFIER, device=device, load_model_args={"device_map": device_map})
    examples = TENSORS if isinstance(handler, HuggingFaceModelHandlerTensor) else KEYED
    assert nearly_equal(logits(infer(handler, examples)), expected[:6])
    assert (moved, caplog.records) == ([], [])


@pytest.mark.parametrize(("device", "said"), [("cpu", "CPU"), ("meta", "GPU")])
def test_inference_fn_gets_the_models_device(device, said):
    def seen(batch, model, device, inference_args, model_id):
        return [PredictionResult(len(batch), (device, inference_args), model_id)] * len(batch)

    handler = HuggingFaceModelHandlerTensor("m", CLASSIFIER, inference_fn=seen)
    (result, _) = handler.run_inference(TENSORS[:2], torch.nn.Linear(1, 1, device=device), {"a": 1})
    assert result == (2, (said, {"a": 1}), "m")


def test_prediction_has_the_examples_part_of_every_output(classifier):
    outputs = {"output_hidden_states": True, "output_attentions": True, "labels": torch.zeros(6, dtype=torch.int64)}
    handler = keyed_handler(classifier, load_model_args={"attn_implementation": "eager"})
    results = infer(handler, KEYED, outputs)
    first = results[0].inference
    assert list(first) == ["logits", "hidden_states", "attentions"]  # but not the loss, of all together
    assert [state.shape for state in first["hidden_states"]] == [(4, 16)] * 3
    assert [weights.shape for weights in first["attentions"]] == [(2, 4, 4)] * 2


def test_cache_of_the_whole_batch_is_no_prediction(tmp_path):
    """Taken for rows, the layers of a cache would cut a batch down to their number, as they do with Beam."""
    config = transformers.GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=2, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    handler = HuggingFaceModelHandlerTensor(tmp_path, transformers.AutoModelForCausalLM)
    results = infer(handler, TENSORS)
    assert [list(result.inference) for result in results] == [["logits"]] * 6
    with pytest.raises(PredictionCountError, match="tuple of 2 outputs"):
        infer(handler, TENSORS, {"return_dict": False})


def test_bad_arguments_are_refused_with_the_cure():
    for complaint, arguments in {
        "needs model_uri and model_class": ("", CLASSIFIER, "pt"),
        "needs model_uri and .*model_class": ("m", None, "pt"),
        "framework must be 'pt', .* not 'tf'": ("m", CLASSIFIER, "tf"),
        "the name of one in transformers: 'AutoModell'": ("m", "AutoModell", "pt"),
        "must be a class of PyTorch models with from_pretrained": ("m", dict, "pt"),
        "device must be 'CPU', 'GPU', or .*, not 'card'": ("m", CLASSIFIER, "pt", "card"),
    }.items():
        with pytest.raises(ConfigurationError, match=complaint) as raised:
            HuggingFaceModelHandlerKeyedTensor(*arguments)
        assert isinstance(raised.value, RuntimeError) or "needs" not in complaint
    with pytest.warns(NotYetHonouredWarning, match=r"HandlerTensor\(inference_args=...\) has no effect"):
        HuggingFaceModelHandlerTensor("m", CLASSIFIER, inference_args={"output_attentions": True})


@MAKERS
def test_examples_of_similar_length_share_a_call(make, classifier):
    batches = []

    def note(batch, model, device, inference_args, model_id):
        lengths = [len(example if isinstance(example, torch.Tensor) else example["input_ids"]) for example in batch]
        batches.append(lengths)
        return lengths

    examples = RAGGED if make is HuggingFaceModelHandlerTensor else RAGGED_KEYED
    handler = make(classifier, CLASSIFIER, inference_fn=note, min_batch_size=2, max_batch_size=2)
    assert list(predict(handler, examples)) == LENGTHS
    assert batches == [[5, 5], [4, 3], [3, 1]]


@MAKERS
def test_models_of_token_ids_have_their_examples_sorted(make):
    for model_class in ("AutoModelForSequenceClassification", transformers.AutoModelForMaskedLM):
        assert make_plan(make("m", model_class)).batching.sorts
    for model_class in (transformers.ViTModel, transformers.AutoModelForAudioClassification):
        assert not make_plan(make("m", model_class)).batching.sorts


TEXTS = ["the film is good", "bad film", "a b c", "d e", "the the the film"]
MASKED = [f"{text} [MASK]" for text in TEXTS]
IMAGES = [Image.fromarray(numpy.full((8, 8, 3), 40 * n, numpy.uint8)) for n in range(5)]


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
    odd_examples = ["a " * 40]  # more tokens than the model has places for
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


@pytest.fixture
def calls(monkeypatch):
    """With how many examples each the models of pipelines were called."""
    sizes, forward = [], transformers.Pipeline.forward

    def counted(pipeline, inputs, **params):
        sizes.append(len(next(value for value in inputs.values() if isinstance(value, torch.Tensor))))
        return forward(pipeline, inputs, **params)

    monkeypatch.setattr(transformers.Pipeline, "forward", counted)
    return sizes


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
    calls.clear()
    results = list(handler.run_inference(examples, pipeline, args))
    assert calls[0] == at_once
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
        calls.clear()
        results = list(handler.run_inference(TEXTS, pipeline, {"top_k": None}))
        assert nearly_equal([result.inference for result in results], alone)
    assert calls == [1] * 5
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "runs its examples one by one" in record.getMessage()
    assert complaint in record.getMessage()


def test_images_of_different_sizes_run_one_by_one_if_the_model_takes_them_as_they_are(folders, calls):
    pipeline = transformers.pipeline("image-classification", folders["image-classification"], device="cpu")
    pipeline.image_processor.do_resize = False
    handler = HuggingFacePipelineModelHandler("image-classification", folders["image-classification"], device="CPU")
    assert len(list(handler.run_inference(IMAGES, pipeline))) == len(IMAGES)
    assert calls[-5:] == [1] * 5


@pytest.mark.parametrize(
    ("load_pipeline_args", "inference_args", "sizes"),
    [({}, {"batch_size": 2}, [2, 2, 1]), ({"batch_size": 3}, {}, [3, 2]), ({"batch_size": 3}, {"batch_size": 5}, [5])],
)
def test_batch_sizes_of_the_users_win(classifier, load_pipeline_args, inference_args, sizes, calls):
    handler = HuggingFacePipelineModelHandler("text-classification", classifier, load_pipeline_args=load_pipeline_args)
    assert len(infer(handler, TEXTS, inference_args)) == len(TEXTS)
    assert calls == sizes


def test_tasks_are_beams(incumbent_huggingface):
    theirs = incumbent_huggingface.PipelineTask
    assert [(one.name, one.value) for one in PipelineTask] == [(one.name, one.value) for one in theirs]


def test_weights_of_large_models_are_mapped(folders, assert_mappable):
    assert_mappable(HuggingFacePipelineModelHandler("token-classification", folders["token-classification"]))


def test_inference_fn_of_a_pipeline_gets_beams_arguments(classifier):
    handler = HuggingFacePipelineModelHandler(
        "text-classification", classifier, inference_fn=lambda batch, pipeline, args: [(pipeline.task, args)]
    )
    assert infer(handler, ["bad film"]) == [("bad film", ("text-classification", {}), classifier)]


def test_tensors_do_not_keep_their_batch(folders):
    handler = HuggingFacePipelineModelHandler("feature-extraction", folders["feature-extraction"])
    for tensor in inferences(infer(handler, TEXTS, {"return_tensors": True, "batch_size": 5})):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * 4


def test_bad_arguments_of_a_pipeline_are_refused_with_the_cure():
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

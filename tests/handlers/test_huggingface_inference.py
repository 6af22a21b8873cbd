"""Models of transformers, saved as users save them, predict for tensors as by hand and as with Beam's handlers."""

from __future__ import annotations

import pytest
import torch
import transformers

from beam_compat import BeamCompatContract
from headrace import ConfigurationError, NotYetHonouredWarning, PredictionCountError, PredictionResult, predict
from headrace.core.errors import UnsupportedError
from headrace.handlers.huggingface_inference import HuggingFaceModelHandlerKeyedTensor, HuggingFaceModelHandlerTensor
from headrace.runtime.plan import make_plan
from headrace.testing import nearly_equal
from toys import infer

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


class Anything:
    pass


@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        (("", CLASSIFIER, "pt"), RuntimeError, "needs model_uri and model_class"),
        (("m", None, "pt"), RuntimeError, "needs model_uri and model_class"),
        (("m", CLASSIFIER, "jax"), ConfigurationError, "framework must be 'pt', not 'jax'"),
        (("m", CLASSIFIER, "tf"), UnsupportedError, "framework='tf' is not available.*load the same model with its Py"),
        (("m", "TFAutoModel", "pt"), UnsupportedError, "model_class=TFAutoModel is not available"),
        (("m", "AutoModell", "pt"), ConfigurationError, "the name of one in transformers: 'AutoModell'"),
        (("m", Anything, "pt"), ConfigurationError, "must be a class with from_pretrained"),
        (("m", CLASSIFIER, "pt", "card"), ConfigurationError, "device must be 'CPU', 'GPU', or .*, not 'card'"),
    ],
)
def test_bad_arguments_are_refused_with_the_cure(arguments, error, complaint):
    with pytest.raises(error, match=complaint) as raised:
        HuggingFaceModelHandlerKeyedTensor(*arguments)
    assert isinstance(raised.value, ConfigurationError)
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

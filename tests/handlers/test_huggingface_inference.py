"""Models of transformers, saved as users save them, predict for tensors as by hand and as with Beam's handlers."""

from __future__ import annotations

import pytest
import torch
import transformers

from headrace import ConfigurationError, NotYetHonouredWarning, PredictionCountError, PredictionResult, predict
from headrace.core.errors import UnsupportedError
from headrace.handlers.huggingface_inference import HuggingFaceModelHandlerKeyedTensor, HuggingFaceModelHandlerTensor
from headrace.runtime.plan import make_plan
from headrace.testing import HandlerContract, nearly_equal
from pipelines import through_pipeline
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


class TestTensorContract(HandlerContract):
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
    ]
    examples = RAGGED[:3] + TENSORS[:2]

    def handler(self, classifier):
        return HuggingFaceModelHandlerTensor(classifier, CLASSIFIER, max_batch_size=4)


class TestKeyedTensorContract(HandlerContract):
    examples = RAGGED_KEYED[:3] + KEYED[:2]
    bad_example = {"input_ids": [5, 6]}

    def handler(self, classifier):
        return keyed_handler(classifier, "AutoModelForSequenceClassification")

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
        ]


def logits(results):
    return [result.inference["logits"] for result in results]


def test_handlers_predict_as_the_model(classifier, expected):
    tensors = infer(HuggingFaceModelHandlerTensor(classifier, CLASSIFIER), TENSORS + RAGGED)
    keyed = infer(keyed_handler(classifier), KEYED + RAGGED_KEYED)
    assert nearly_equal(logits(tensors), expected)
    assert nearly_equal(logits(keyed), expected)
    assert {result.model_id for result in tensors + keyed} == {classifier}


def test_pipelines_predict_as_with_beams_handlers(classifier, incumbent_huggingface):
    theirs = incumbent_huggingface
    pairs = [
        (HuggingFaceModelHandlerTensor(classifier, CLASSIFIER), TENSORS),
        (keyed_handler(classifier), KEYED),
        (theirs.HuggingFaceModelHandlerTensor(classifier, CLASSIFIER), TENSORS),
        (theirs.HuggingFaceModelHandlerKeyedTensor(classifier, CLASSIFIER, "pt"), KEYED),
    ]
    by_hand = CLASSIFIER.from_pretrained(classifier)(torch.stack(TENSORS)).logits
    for handler, examples in pairs:
        results = through_pipeline(handler, examples)
        assert nearly_equal([result.inference["logits"].detach() for result in results], list(by_hand.detach()))


@pytest.mark.parametrize(
    ("ours", "required"),
    [
        (HuggingFaceModelHandlerTensor, ["model_uri", "model_class"]),
        (HuggingFaceModelHandlerKeyedTensor, ["model_uri", "model_class", "framework"]),
    ],
)
def test_handlers_take_beams_arguments(ours, required, accepts_all_of, incumbent_huggingface):
    accepts_all_of(ours, getattr(incumbent_huggingface, ours.__name__), *required)


def test_weights_of_large_models_are_mapped(classifier, expected, runtime, assert_mappable):
    handler = HuggingFaceModelHandlerTensor(classifier, CLASSIFIER)
    assert nearly_equal(logits(predict(handler, TENSORS, placement="machine")), expected[:6])
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


def test_model_spread_over_devices_predicts(classifier, expected, tmp_path):
    """Half of it lies on the disk, from where accelerate fetches it; that is a device to it as a GPU is."""
    device_map = {"bert.embeddings": "cpu", "bert.encoder": "disk", "bert.pooler": "cpu", "classifier": "cpu"}
    arguments = {"device_map": device_map, "offload_folder": str(tmp_path)}
    handler = keyed_handler(classifier, device="GPU", load_model_args=arguments)
    assert handler.load_model().hf_device_map == device_map
    assert nearly_equal(logits(infer(handler, KEYED)), expected[:6])


@pytest.mark.parametrize(("device", "said"), [("cpu", "CPU"), ("meta", "GPU")])
def test_inference_fn_gets_the_models_device(device, said):
    def seen(batch, model, device, inference_args, model_id):
        return [PredictionResult(len(batch), (device, inference_args), model_id)] * len(batch)

    handler = HuggingFaceModelHandlerTensor("m", CLASSIFIER, inference_fn=seen)
    (result, _) = handler.run_inference(TENSORS[:2], torch.nn.Linear(1, 1, device=device), {"a": 1})
    assert result == (2, (said, {"a": 1}), "m")


def test_model_is_in_evaluation_mode(classifier):
    model = keyed_handler(classifier, load_model_args={"attn_implementation": "eager"}).load_model()
    assert model.config._attn_implementation == "eager"
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


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
    results = infer(HuggingFaceModelHandlerTensor(tmp_path, transformers.AutoModelForCausalLM), TENSORS)
    assert [list(result.inference) for result in results] == [["logits"]] * 6


@pytest.mark.parametrize("size", [1, 3])
def test_model_output_object_is_no_list_of_predictions(classifier, size):
    def raw(batch, model, device, inference_args=None, model_id=None):
        return model(torch.stack(list(batch)))

    handler = HuggingFaceModelHandlerTensor(classifier, CLASSIFIER, inference_fn=raw, max_batch_size=size)
    failures = list(predict(handler, TENSORS[:3], on_failure="yield"))
    assert [type(failure.error) for failure in failures] == [PredictionCountError] * 3
    assert "SequenceClassifierOutput with the keys 'logits'" in str(failures[0].error)


def test_tuple_of_outputs_is_refused(classifier):
    with pytest.raises(PredictionCountError, match="tuple of 1 outputs"):
        infer(HuggingFaceModelHandlerTensor(classifier, CLASSIFIER), TENSORS[:1], {"return_dict": False})


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


def test_metrics_namespace_and_num_bytes_are_those_of_the_data():
    tensor, keyed = HuggingFaceModelHandlerTensor("m", CLASSIFIER), keyed_handler("m")
    assert (tensor.get_num_bytes(TENSORS[:2]), keyed.get_num_bytes(KEYED[:2])) == (2 * 4 * 8, 2 * 2 * 4 * 8)
    assert tensor.get_metrics_namespace() == "BeamML_HuggingFaceModelHandler_Tensor"
    assert keyed.get_metrics_namespace() == "BeamML_HuggingFaceModelHandler_KeyedTensor"


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
@pytest.mark.parametrize(
    ("model_class", "sorts"),
    [
        ("AutoModelForSequenceClassification", True),
        (transformers.AutoModelForMaskedLM, True),
        (transformers.ViTModel, False),
        (transformers.AutoModelForAudioClassification, False),
    ],
    ids=str,
)
def test_models_of_token_ids_have_their_examples_sorted(make, model_class, sorts):
    assert make_plan(make("m", model_class)).batching.sorts == sorts


def test_arguments_of_the_transform_which_beam_ignores_are_a_warning(classifier):
    with pytest.warns(
        NotYetHonouredWarning, match=r"HuggingFaceModelHandlerTensor\(inference_args=...\) has no effect"
    ):
        HuggingFaceModelHandlerTensor(classifier, CLASSIFIER, inference_args={"output_attentions": True})

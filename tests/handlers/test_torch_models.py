"""Where PyTorch models go, and which dtypes a column and a model's first argument have, whatever a row holds."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch
import transformers

from headrace import BatchingConfig, ConfigurationError, Failure, predict
from headrace.handlers import torch_models
from headrace.handlers.huggingface_inference import HuggingFaceModelHandlerKeyedTensor, HuggingFaceModelHandlerTensor
from headrace.handlers.huggingface_models import settled
from headrace.handlers.pytorch_inference import PytorchModelHandlerKeyedTensor, PytorchModelHandlerTensor
from headrace.handlers.torch_models import CPU, device_named, device_of, load_onto, refuse_two_devices
from headrace.testing import nearly_equal

pytestmark = pytest.mark.large

KEYED = [
    PytorchModelHandlerKeyedTensor("m.pt", torch.nn.Identity, dtypes={"words": "int64", "half": torch.float16}),
    HuggingFaceModelHandlerKeyedTensor(
        "m", transformers.AutoModel, "pt", dtypes={"words": torch.int64, "half": "float16"}
    ),
]


class Weighted(torch.nn.Module):
    """A model of floats, whose argument has a name that says nothing."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(self.linear.weight)

    @classmethod
    def from_pretrained(cls, uri):
        return cls()

    def forward(self, numbers):
        return self.linear(numbers)


class Embedded(Weighted):
    """A model of ids, whose argument has a name that says nothing."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Embedding(10, 1)
        torch.nn.init.ones_(self.linear.weight)


class Pixels(Weighted):
    def forward(self, pixel_values):
        return self.linear(pixel_values)


class Ids(Weighted):
    def forward(self, input_ids, attention_mask=None):
        return input_ids.sum(1) if input_ids.dtype == torch.int64 else None


def outcomes(handler, examples, size):
    sizes = BatchingConfig(min_batch_size=size, max_batch_size=size)
    return [
        "failed" if isinstance(outcome, Failure) else outcome.inference.flatten().tolist()
        for outcome in predict(handler, examples, batching=sizes, on_failure="yield")
    ]


EXPECTED = {
    Weighted: [[3.0], [3.5], [1.0]],
    Pixels: [[3.0], [3.5], [1.0]],
    Embedded: [[1.0, 1.0], "failed", [1.0, 1.0]],
    Ids: [[3], "failed", [1]],
}


@pytest.mark.parametrize("model_class", EXPECTED)
@pytest.mark.parametrize("source", ["files", "tensors"])
def test_rows_predict_the_same_in_every_batch(model_class, source):
    expected = EXPECTED[model_class]
    handler = HuggingFaceModelHandlerTensor("m", model_class)
    examples = [handler.example_from_row(row) for row in ({"a": 1, "b": "2"}, {"a": 1.5, "b": 2}, {"a": True, "b": 0})]
    if source == "tensors":
        examples[::2] = [torch.tensor([1, 2]), torch.tensor([1.0, 0.0])]
    if source == "tensors" and model_class is Weighted:  # nobody knows that it takes no integers
        expected = ["failed", *expected[1:]]
    if source == "tensors" and model_class in (Embedded, Ids):
        examples[1] = torch.tensor([1.5, 2.0])
    for order in itertools.permutations(range(3)):
        for size in (1, 2, 3):
            found = outcomes(handler, [examples[place] for place in order], size)
            assert found == [expected[place] for place in order], (order, size)


def test_examples_that_do_not_fit_are_refused_with_the_cure():
    handler = HuggingFaceModelHandlerTensor("m", Ids)
    (failure,) = predict(handler, [torch.tensor([5.5])], on_failure="yield")
    assert "takes whole numbers, such as token ids, and an example holds [5.5]" in str(failure.error)


def test_model_in_half_precision_gets_its_dtype():
    assert settled(torch.tensor([[1.0, 2.0]]), Pixels().half()).dtype == torch.float16
    assert nearly_equal(settled(torch.tensor([[1.0, 2.0]]), Weighted()), torch.tensor([[1.0, 2.0]]))


COLUMNS = [
    ("input_ids", [[5, 6], [5.0, "6"], [True, 6]], torch.int64),
    ("attention_mask", [[1, 1], (1, 0.0)], torch.int64),
    ("words", [3, "4", 5.0, [6]], torch.int64),
    ("pixel_values", [[1, 2], [1.5, 2], ["3", True]], torch.float32),
    ("price", [1, 1.5, "2", False], torch.float32),
    ("half", [1, 1.5], torch.float16),
]


@pytest.mark.parametrize("handler", KEYED)
def test_a_column_has_one_dtype(handler):
    for column, value, dtype in [(column, value, dtype) for column, values, dtype in COLUMNS for value in values]:
        (tensor,) = handler.example_from_row({column: value}).values()
        assert tensor.dtype == dtype
        assert tensor.ndim == isinstance(value, list | tuple)
        assert tensor.tolist() == ([float(one) for one in value] if tensor.ndim else float(value))


@pytest.mark.parametrize("column", ["input_ids", "words", "price", "half"])
def test_a_value_that_does_not_fit_its_column_fails_its_row(column):
    of_whole_numbers = [[5.5], "x", [1, None], 2**63, float("nan"), [[1, 2]]]
    for value in of_whole_numbers if column in ("input_ids", "words") else [1e39, None, "x", "", [1, "x"], [[1]]]:
        with pytest.raises(ValueError, match=f"column '{column}' holds"):
            KEYED[0].example_from_row({column: value})


@pytest.mark.parametrize("wrong", ["integer", "complex64", int, None, "nn"])
def test_unknown_dtype_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="dtypes must map columns to dtypes, such as 'int64', not 'a' to"):
        PytorchModelHandlerKeyedTensor("m.pt", torch.nn.Identity, dtypes={"a": wrong})
    with pytest.raises(ConfigurationError, match="dtypes goes with PytorchModelHandlerKeyedTensor"):
        PytorchModelHandlerTensor("m.pt", torch.nn.Identity, dtypes={"a": "int64"})


def test_state_of_the_whole_batch_is_no_prediction_though_as_long(tmp_path):
    """XLNet's has a row for each token, and so as many as there are examples where these are as many as tokens."""
    config = transformers.XLNetConfig(vocab_size=20, d_model=8, n_layer=2, n_head=2, d_inner=8, mem_len=8)
    transformers.XLNetModel(config).save_pretrained(tmp_path)
    handler = HuggingFaceModelHandlerTensor(tmp_path, transformers.AutoModel)
    model = handler.load_model()
    for count in (1, 3, 4):
        results = handler.run_inference([torch.arange(3)] * count, model)
        assert [list(result.inference) for result in results] == [["last_hidden_state"]] * count


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_devices_are_pytorchs_in_any_case():
    names = {"CPU": "cpu", "Cpu": "cpu", "GPU": "cuda", "gpu": "cuda", "CUDA": "cuda", "GPU:1": "cuda:1", "Mps": "mps"}
    for given, device in names.items():
        assert device_named(given) == device_named(device) == device_named(torch.device(device)) == torch.device(device)
    for wrong in ("", None, "graphics", "gpu0", "cuda:"):
        with pytest.raises(ConfigurationError, match=r"device must be 'CPU', 'GPU', or .* such as 'cuda:0', not"):
            device_named(wrong)


@pytest.mark.parametrize("device", ["GPU", "cuda:7", "mps", "meta"])
def test_model_goes_to_the_cpu_without_the_device(device, no_gpu, caplog):
    assert load_onto(device, lambda place: place, {}) == CPU
    assert {(one.levelno, "cannot be used here" in one.message) for one in caplog.records} == {(logging.WARNING, True)}


def test_cpu_is_no_reason_to_warn(no_gpu, caplog):
    for device in ("cpu", None):
        assert load_onto(device, lambda place: place, {}) == CPU
    assert caplog.records == []


def test_model_that_does_not_fit_the_gpu_goes_to_the_cpu(monkeypatch, caplog):
    failures = iter([RuntimeError("CUDA out of memory")])

    def load(place):
        for failure in failures:
            raise failure
        return place

    monkeypatch.setattr(torch_models, "is_usable", lambda _: True)
    assert load_onto("GPU", load, {}) == CPU
    (record,) = caplog.records
    assert record.message == "The model did not load onto cuda and goes to the CPU: CUDA out of memory"


def test_arguments_of_the_loader_may_name_the_device():
    for where in ({"device": "cpu"}, {"device_map": "cpu"}, {"model_kwargs": {"device_map": "cpu"}}):
        assert load_onto(None, lambda place: place, where) is None
        with pytest.raises(ConfigurationError, match="load_args say where the model goes"):
            refuse_two_devices("CPU", where, "load_args")


@pytest.mark.parametrize("asked", ["CPU", "GPU"])
def test_inputs_go_where_the_model_is(asked, no_gpu):
    normal = torch.nn.BatchNorm1d(3, affine=False, device="meta")  # which has buffers only
    for model in (torch.nn.Linear(3, 2, device="meta"), normal):
        assert device_of(model, asked).type == "meta"
    for model in (torch.nn.ReLU(), len):
        assert device_of(model, asked).type == "cpu"

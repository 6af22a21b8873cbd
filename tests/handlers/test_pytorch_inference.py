"""PyTorch models, saved as users save them, predict as they do by hand and as with Beam's handlers."""

from __future__ import annotations

import pickle
import warnings
from collections import OrderedDict

import pandas
import pytest
import torch
from apache_beam.ml.inference import pytorch_inference as incumbent

from beam_compat import BeamCompatContract, ColumnsContract
from headrace import ConfigurationError, PredictionResult, predict
from headrace.handlers.pytorch_inference import (
    PytorchModelHandlerKeyedTensor,
    PytorchModelHandlerTensor,
    default_keyed_tensor_inference_fn,
    default_tensor_inference_fn,
    make_tensor_model_fn,
)
from headrace.testing import nearly_equal
from toys import infer, inferences

pytestmark = [
    pytest.mark.large,
    pytest.mark.filterwarnings("ignore:.torch.jit.[a-z]+. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning:apache_beam"),
]

BATCH = torch.randn(6, 3, generator=torch.Generator().manual_seed(7))
TENSORS = list(BATCH)
KEYED = [{"left": row, "right": row[0]} for row in BATCH]
LINEAR = {"model_class": torch.nn.Linear, "model_params": {"in_features": 3, "out_features": 2}}
HANDLERS = [PytorchModelHandlerTensor, PytorchModelHandlerKeyedTensor]


class Scaled(torch.nn.Module):
    """A linear layer whose result is scaled by an argument of the call; with dropout, which must be off."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, inputs: torch.Tensor, scale: float = 1.0):
        return self.dropout(self.linear(inputs)) * scale

    @torch.jit.export
    def both(self, inputs: torch.Tensor, scale: float = 1.0):
        result = self(inputs, scale)
        return {"value": result, "sign": result.sign()}


class Pair(torch.nn.Module):
    """A vector and a number in, their product out."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, left, right, scale=1.0):
        return self.linear(left) * right.unsqueeze(1) * scale


def save_state(model, path) -> str:
    torch.save(model.state_dict(), path)
    return str(path)


@pytest.fixture(scope="module")
def scaled():
    return Scaled().eval()


@pytest.fixture(scope="module")
def state_path(scaled, folder):
    return save_state(scaled, folder / "scaled.pt")


@pytest.fixture(scope="module")
def script_path(scaled, folder):
    path = str(folder / "scripted.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(scaled), path, _extra_files={"note": "made by a test"})
    return path


@pytest.fixture(scope="module")
def pair_path(folder):
    return save_state(Pair(), folder / "pair.pt")


class TensorContract(BeamCompatContract):
    required = ()
    bad_example = torch.zeros(2)
    odd_examples = (
        *(torch.tensor([1, 0, 2], dtype=dtype) for dtype in (torch.int64, torch.bool, torch.float64, torch.float16)),
        torch.tensor([0.0, float("nan"), 0.0]),
        torch.zeros(1, 3),
        torch.tensor([]),
        [1.0, 2.0, 3.0],
    )
    examples = TENSORS
    inference_args = {"scale": 2.0}


class TestStateDictContract(TensorContract, ColumnsContract):
    frame = pandas.DataFrame(BATCH.numpy(), columns=["a", "b", "c"])

    def handler(self, state_path):
        return PytorchModelHandlerTensor(state_path, Scaled, max_batch_size=4)

    def beams(self, state_path):
        return incumbent.PytorchModelHandlerTensor(state_path, Scaled)


class TestTorchScriptContract(TensorContract):
    def handler(self, script_path):
        return PytorchModelHandlerTensor(torch_script_model_path=script_path)

    def beams(self, script_path):
        return incumbent.PytorchModelHandlerTensor(torch_script_model_path=script_path)


class TestMethodContract(TensorContract):
    def handler(self, state_path):
        return PytorchModelHandlerTensor(state_path, Scaled, inference_fn=make_tensor_model_fn("both"))

    def beams(self, state_path):
        both = incumbent.make_tensor_model_fn("both")
        return incumbent.PytorchModelHandlerTensor(state_path, Scaled, inference_fn=both)


def one_by_one(batch, model, device, inference_args, model_id):
    return [PredictionResult(row, model(row[None])[0].detach(), model_id) for row in batch]


@pytest.mark.parametrize("function", [make_tensor_model_fn("forward"), one_by_one])
def test_columns_go_to_an_inference_fn_as_a_tensor(state_path, scaled, function):
    handler = PytorchModelHandlerTensor(state_path, Scaled, inference_fn=function)
    for columns in (BATCH, BATCH.numpy()):
        found = handler.run_columns(columns, scaled)
        assert nearly_equal(list(found.inference), list(scaled(BATCH).detach()))
        assert found.model_id == state_path


class TestKeyedContract(BeamCompatContract):
    required = ()
    examples = KEYED
    bad_example = {"left": torch.zeros(3)}

    def handler(self, pair_path):
        return PytorchModelHandlerKeyedTensor(pair_path, Pair)

    def beams(self, pair_path):
        return incumbent.PytorchModelHandlerKeyedTensor(pair_path, Pair)

    def odd_examples(self):
        odd = [torch.tensor([1, 0, 2]), torch.zeros(3).double(), torch.zeros(2), torch.tensor([float("nan")] * 3)]
        numbers = [torch.tensor(1), torch.tensor(True), torch.tensor(1.0).double(), torch.zeros(1)]
        return [
            *({**KEYED[0], "left": left} for left in odd),
            *({**KEYED[0], "right": right} for right in numbers),
            {"right": torch.tensor(1.0), "left": torch.zeros(3)},
            {**KEYED[0], "more": torch.zeros(3)},
        ]


class Unsafe(OrderedDict):
    """What torch does not unpickle unless told to."""


def test_load_model_args_go_to_the_loader(folder, script_path):
    files = {"note": ""}
    PytorchModelHandlerTensor(torch_script_model_path=script_path, load_model_args={"_extra_files": files}).load_model()
    assert files == {"note": b"made by a test"}
    path = str(folder / "unsafe.pt")
    torch.save(Unsafe(torch.nn.Linear(3, 2).state_dict()), path)
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        PytorchModelHandlerTensor(path, **LINEAR).load_model()
    assert PytorchModelHandlerTensor(path, **LINEAR, load_model_args={"weights_only": False}).load_model()


def test_inference_fn_gets_beams_arguments(state_path):
    def seen(batch, model, device, inference_args, model_id):
        return [PredictionResult(len(batch), (type(model), device, inference_args), model_id)] * len(batch)

    for handler_class in HANDLERS:
        handler = handler_class(state_path, Scaled, inference_fn=seen)
        (result, _) = infer(handler, TENSORS[:2])
        assert result == (2, (Scaled, torch.device("cpu"), {}), state_path)


@pytest.mark.parametrize("handler_class", HANDLERS)
def test_arguments_that_name_no_model_or_two_are_refused(handler_class):
    for complaint, names in (
        ("state_dict_path needs model_class", ["state_dict_path"]),
        ("model_class needs state_dict_path", ["model_class"]),
        ("model_class needs state_dict_path", ["torch_script_model_path", "model_class"]),
        (".* exclude each other", ["torch_script_model_path", "state_dict_path", "model_class"]),
        ("give state_dict_path and model_class, or torch_script_model_path", []),
    ):
        with pytest.raises(ConfigurationError, match=f"{handler_class.__name__}: {complaint}") as raised:
            handler_class(**{name: Scaled if name == "model_class" else "m.pt" for name in names})
        assert isinstance(raised.value, RuntimeError)


class LoadsItself(PytorchModelHandlerTensor):
    def load_model(self):
        return torch.nn.Identity()


def test_subclass_with_its_own_load_model_needs_no_file():
    assert nearly_equal(inferences(predict(LoadsItself(), TENSORS)), TENSORS)


class Outputs(torch.nn.Module):
    """Gives back its inputs, by name."""

    def forward(self, **inputs):
        return inputs


def test_prediction_does_not_keep_its_batch():
    """A view of one row, pickled on its way to the next worker, would take the memory of the whole batch along."""
    batch = list(torch.randn(1000, 10))
    results = default_tensor_inference_fn(batch, torch.nn.Flatten(), torch.device("cpu"))
    results += default_keyed_tensor_inference_fn([{"x": row} for row in batch], Outputs(), torch.device("cpu"))
    assert len(results) == 2000
    for result in results[::500]:
        tensor = result.inference if isinstance(result.inference, torch.Tensor) else result.inference["x"]
        assert tensor.untyped_storage().nbytes() == 10 * 4
        assert len(pickle.dumps(tensor)) < 2000


def test_list_has_a_prediction_for_each_example_in_memory_of_its_own():
    class Detector(torch.nn.Module):
        def forward(self, inputs):
            return [{"boxes": row, "scores": [row[:2]]} for row in inputs]

    results = default_tensor_inference_fn([torch.zeros(3), torch.ones(3)], Detector(), torch.device("cpu"))
    assert [result.inference["boxes"].tolist() for result in results] == [[0.0] * 3, [1.0] * 3]
    tensors = [tensor for one in results for tensor in (one.inference["boxes"], *one.inference["scores"])]
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("other", [{"b": torch.zeros(1)}, {}, {"a": torch.zeros(1), "b": torch.zeros(1)}])
def test_keyed_examples_pass_only_their_own_names(other):
    """Beam gives the model batches of different sizes."""

    class Sum(torch.nn.Module):
        def forward(self, a=torch.zeros(1, 1), b=torch.zeros(1, 1)):
            return a + b

    results = default_keyed_tensor_inference_fn([{"a": torch.ones(1)}, other], Sum(), torch.device("cpu"))
    assert [result.inference.tolist() for result in results] == [[1.0], [0.0]]

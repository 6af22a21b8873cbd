"""What goes into PyTorch models and what comes out: rows of files, bytes, batches, and memory that is let go."""

from __future__ import annotations

import pickle

import pytest
import torch

from headrace.handlers.pytorch_inference import (
    PytorchModelHandlerKeyedTensor,
    PytorchModelHandlerTensor,
    default_keyed_tensor_inference_fn,
    default_tensor_inference_fn,
)

pytestmark = pytest.mark.large

CPU = torch.device("cpu")
TENSOR = PytorchModelHandlerTensor("m.pt", torch.nn.Identity)
KEYED = PytorchModelHandlerKeyedTensor("m.pt", torch.nn.Identity)


class Outputs(torch.nn.Module):
    """Gives back its inputs, by name."""

    def forward(self, **inputs):
        return inputs


def test_prediction_does_not_keep_its_batch():
    """A view of one row, pickled on its way to the next worker, would take the memory of the whole batch along."""
    batch = list(torch.randn(1000, 10))
    results = default_tensor_inference_fn(batch, torch.nn.Flatten(), CPU)
    results += default_keyed_tensor_inference_fn([{"x": row} for row in batch], Outputs(), CPU)
    assert len(results) == 2000
    for result in results[::500]:
        tensor = result.inference if isinstance(result.inference, torch.Tensor) else result.inference["x"]
        assert tensor.untyped_storage().nbytes() == 10 * 4
        assert len(pickle.dumps(tensor)) < 2000


def test_batches_may_be_tensors_already():
    results = default_tensor_inference_fn(torch.ones(4, 3), torch.nn.Flatten(), CPU)
    assert [result.inference.tolist() for result in results] == [[1.0, 1.0, 1.0]] * 4


def test_list_has_a_prediction_for_each_example_in_memory_of_its_own():
    class Detector(torch.nn.Module):
        def forward(self, inputs):
            return [{"boxes": row, "scores": [row[:2]]} for row in inputs]

    results = default_tensor_inference_fn([torch.zeros(3), torch.ones(3)], Detector(), CPU)
    assert [result.inference["boxes"].tolist() for result in results] == [[0.0] * 3, [1.0] * 3]
    tensors = [tensor for one in results for tensor in (one.inference["boxes"], *one.inference["scores"])]
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("other", [{"b": torch.zeros(1)}, {}, {"a": torch.zeros(1), "b": torch.zeros(1)}])
def test_keyed_examples_pass_only_their_own_names(other):
    """Beam gives the model batches of different sizes."""

    class Sum(torch.nn.Module):
        def forward(self, a=torch.zeros(1, 1), b=torch.zeros(1, 1)):
            return a + b

    results = default_keyed_tensor_inference_fn([{"a": torch.ones(1)}, other], Sum(), CPU)
    assert [result.inference.tolist() for result in results] == [[1.0], [0.0]]


def test_row_becomes_a_tensor():
    example = TENSOR.example_from_row({"b": "1.5", "a": 2, "c": [3, "4"]})
    assert (example.tolist(), example.dtype) == ([1.5, 2.0, 3.0, 4.0], torch.float32)


@pytest.mark.parametrize("handler", [TENSOR, KEYED], ids=["tensor", "keyed"])
@pytest.mark.parametrize("value", ["blue", "", None, "nan", 1e39, [1, "blue"], [[1]]])
def test_row_without_32_bit_numbers_is_refused(handler, value):
    with pytest.raises(ValueError, match=r"column 'x' holds .*, which is not a finite number"):
        handler.example_from_row({"y": 1, "x": value})


def linear(path, **options):
    return PytorchModelHandlerTensor(
        str(path), torch.nn.Linear, {"in_features": 3, "out_features": 2}, load_model_args=options
    )


@pytest.mark.parametrize("options", [{}, {"weights_only": False}], ids=["safely", "unsafely"])
def test_file_with_a_whole_module_is_an_error_with_the_cure(tmp_path, options):
    torch.save(torch.nn.Linear(3, 2), tmp_path / "whole.pt")
    with pytest.raises(ValueError, match=r"whole\.pt holds a whole module, .* torch\.save\(model\.state_dict\(\)") as c:
        linear(tmp_path / "whole.pt", **options).load_model()
    assert "\n" not in str(c.value)


@pytest.mark.filterwarnings("ignore:.torch.load. received a zip file that looks like a TorchScript")
@pytest.mark.filterwarnings("ignore:.torch.jit.[a-z]+. is deprecated")
def test_torch_script_in_place_of_a_state_dict_is_an_error_with_the_cure(tmp_path):
    torch.jit.script(torch.nn.Linear(3, 2)).save(tmp_path / "scripted.pt")
    with pytest.raises(ValueError, match=r"scripted\.pt is a TorchScript file: give it as torch_script_model_path"):
        linear(tmp_path / "scripted.pt").load_model()

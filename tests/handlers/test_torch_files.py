"""Files of PyTorch: TorchScript and exported programs can be run, a state needs the class of its model."""

from __future__ import annotations

import warnings

import pytest

from headrace import predict
from headrace.core.errors import ConfigurationError
from headrace.core.model_files import ModelFile
from headrace.handlers.model_recognition import pytorch as recognise
from large import torch

pytestmark = pytest.mark.large


def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 2))


def exported(model, *examples, batches=True):
    names = ["input"] if len(examples) == 1 else ["age", "income"]
    shapes = {name: {0: torch.export.Dim.AUTO} for name in names} if batches else None
    return torch.export.export(model, examples, dynamic_shapes=shapes)


class Sum(torch.nn.Module if torch else object):
    def forward(self, age, income):
        return age + income


@pytest.fixture
def saved(tmp_path):
    def save(program):
        path = str(tmp_path / "model.pt2")
        torch.export.save(program, path)
        return ModelFile(path)

    return save


def test_an_exported_program_has_a_width(saved):
    known = recognise(saved(exported(net(), torch.zeros(4, 3))))
    assert (known.handler, known.width, known.path_parameter) == ("pytorch-tensor", 3, "torch_script_model_path")
    assert known.arguments == {}


def test_several_inputs_are_columns(saved):
    known = recognise(saved(exported(Sum(), torch.zeros(4), torch.zeros(4))))
    assert (known.handler, known.columns) == ("pytorch-keyed-tensor", ("age", "income"))


def test_a_program_for_single_rows_gets_single_rows(saved):
    assert recognise(saved(exported(net(), torch.zeros(1, 3), batches=False))).arguments == {"max_batch_size": 1}
    with pytest.raises(ConfigurationError, match="exported for batches of exactly 4"):
        recognise(saved(exported(net(), torch.zeros(4, 3), batches=False)))


def test_torchscript_is_recognised(tmp_path):
    path = str(tmp_path / "model.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.jit.trace(net(), torch.zeros(1, 3)).save(path)
    known = recognise(ModelFile(path))
    assert (known.handler, known.path_parameter) == ("pytorch-tensor", "torch_script_model_path")


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_a_state_needs_a_class(tmp_path, options):
    path = str(tmp_path / "model.pt")
    torch.save(net().state_dict(), path, **options)
    with pytest.raises(ConfigurationError, match=r"--handler-arg model_class=package\.module:Class"):
        recognise(ModelFile(path))


def test_an_exported_program_predicts(saved, tmp_path):
    from headrace.handlers.pytorch_inference import PytorchModelHandlerKeyedTensor, PytorchModelHandlerTensor

    model = net()
    path = saved(exported(model, torch.zeros(4, 3))).uri
    rows = list(torch.randn(5, 3))
    answers = [result.inference for result in predict(PytorchModelHandlerTensor(torch_script_model_path=path), rows)]
    with torch.no_grad():
        assert torch.allclose(torch.stack(answers), model(torch.stack(rows)))
    path = saved(exported(Sum(), torch.zeros(4), torch.zeros(4))).uri
    rows = [{"age": torch.tensor(1.0), "income": torch.tensor(2.0)}] * 3
    handler = PytorchModelHandlerKeyedTensor(torch_script_model_path=path)
    assert [result.inference.item() for result in predict(handler, rows)] == [3.0] * 3

"""Derived handlers read and set what Beam's handlers keep in private attributes, by the same names."""

from __future__ import annotations

import importlib
import warnings
from enum import Enum

import pytest
import torch
import transformers
import xgboost

from headrace.handlers.huggingface_inference import (
    HuggingFaceModelHandlerKeyedTensor,
    HuggingFaceModelHandlerTensor,
    HuggingFacePipelineModelHandler,
)
from headrace.handlers.onnx_inference import OnnxModelHandlerNumpy
from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor, default_tensor_inference_fn
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy
from headrace.testing import nearly_equal

pytestmark = [pytest.mark.large, pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")]


def infer(*_):
    return []


OF_TORCH = {"state_dict_path": "m.pt", "model_class": torch.nn.Linear, "inference_fn": infer}
OF_SKLEARN = {"model_uri": "m.pkl", "inference_fn": infer}
OF_XGBOOST = {"model_class": xgboost.Booster, "model_state": "m.json", "inference_fn": infer}
OF_VLLM = {"model_name": "m", "vllm_server_kwargs": {"max-num-seqs": "8"}, "min_batch_size": 2}


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        ("pytorch_inference", "PytorchModelHandlerTensor", OF_TORCH),
        ("pytorch_inference", "PytorchModelHandlerKeyedTensor", OF_TORCH),
        ("pytorch_inference", "PytorchModelHandlerTensor", {"torch_script_model_path": "s.pt", "inference_fn": infer}),
        ("sklearn_inference", "SklearnModelHandlerNumpy", OF_SKLEARN),
        ("sklearn_inference", "SklearnModelHandlerPandas", OF_SKLEARN),
        ("onnx_inference", "OnnxModelHandlerNumpy", {"model_uri": "m.onnx", "inference_fn": infer}),
        ("xgboost_inference", "XGBoostModelHandlerNumpy", OF_XGBOOST),
        ("vllm_inference", "VLLMCompletionsModelHandler", OF_VLLM),
        ("vllm_inference", "VLLMChatModelHandler", OF_VLLM),
    ],
)
def test_attributes_are_beams(module, name, arguments):
    ours, theirs = (
        getattr(importlib.import_module(f"{package}.{module}"), name)(**arguments)
        for package in ("headrace.handlers", "apache_beam.ml.inference")
    )
    for attribute, value in vars(theirs).items():
        if attribute not in ("_chat_file", "_dynamo_frontend_kwargs"):  # a random name; defaults of what is not there
            found = getattr(ours, attribute)
            assert _plain(found) == _plain(value), attribute
            setattr(ours, attribute, found)
            assert getattr(ours, attribute) == found


def _plain(value):
    return value.name if isinstance(value, Enum) else value


class LoadsAsPublished(PytorchModelHandlerTensor):
    """As in published pipelines, of Beam's attributes."""

    def load_model(self):
        model = self._model_class(**self._model_params).to(self._device)
        with open(self._state_dict_path, "rb") as file:
            model.load_state_dict(torch.load(file, map_location=self._device, **self._load_model_args))
        return model.eval()


class Redirected(PytorchModelHandlerTensor):
    """Replaces what it was made with, as handlers do that fetch their files first."""

    def __init__(self, replaced, **arguments):
        super().__init__(**arguments)
        self.replaced = replaced

    def load_model(self):
        for name, value in self.replaced.items():
            setattr(self, name, value)
        return super().load_model()


class WithoutBeamsConstructor(PytorchModelHandlerTensor):
    def __init__(self):
        self._device, self._inference_fn = torch.device("cpu"), default_tensor_inference_fn
        self._state_dict_path = self._torch_script_model_path = None


def test_derived_handlers_read_and_set_the_attributes(folder):
    linear, sizes = torch.nn.Linear(3, 2), {"in_features": 3, "out_features": 2}
    state, script = str(folder / "state.pt"), str(folder / "script.pt")
    torch.save(linear.state_dict(), state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.save(torch.jit.script(linear), script)
    made_with = {"state_dict_path": "gs://elsewhere", "model_class": torch.nn.Linear, "device": "cuda:7"}
    of_state = {"_state_dict_path": state, "_device": "cpu", "_model_params": sizes}
    of_script = {"_torch_script_model_path": script, "_device": torch.device("cpu")}
    examples = [torch.ones(3), torch.zeros(3)]
    for handler, path in (
        (LoadsAsPublished(state, torch.nn.Linear, sizes), state),
        (Redirected(of_state, **made_with), state),
        (Redirected(of_script, **made_with), script),
    ):
        results = list(handler.run_inference(examples, handler.load_model()))
        assert nearly_equal([result.inference for result in results], list(linear(torch.stack(examples)).detach()))
        assert {result.model_id for result in results} == {path}


def test_derived_handlers_may_leave_out_the_constructor():
    (result,) = WithoutBeamsConstructor().run_inference([torch.ones(3)], torch.nn.Identity())
    assert nearly_equal(result.inference, torch.ones(3))


@pytest.mark.parametrize("cls", [SklearnModelHandlerNumpy, OnnxModelHandlerNumpy])
def test_inference_fn_may_be_set(cls):
    handler = cls("model")
    handler._model_inference_fn = lambda model, batch, inference_args: [model + example for example in batch]
    assert [result.inference for result in handler.run_inference([1, 2], 10)] == [11, 12]


def test_attributes_of_hugging_face_handlers_are_beams():
    arguments = {"model_uri": "m", "model_class": transformers.AutoModel, "device": "gpu", "load_model_args": {"a": 1}}
    for handler in (
        HuggingFaceModelHandlerKeyedTensor(**arguments, framework="pt"),
        HuggingFaceModelHandlerTensor(**arguments),
    ):
        assert (handler._model_uri, handler._model_class, handler._device) == ("m", transformers.AutoModel, "gpu")
        assert (handler._model_config_args, handler._framework) == ({"a": 1}, "pt")
    pipeline = HuggingFacePipelineModelHandler("fill-mask", "m")
    assert (pipeline._task, pipeline._model, pipeline._framework) == ("fill-mask", "m", "pt")


def test_pipeline_is_loaded_with_what_was_set(monkeypatch):
    given = {}
    monkeypatch.setattr(transformers, "pipeline", lambda *args, **options: given.update(options, args=args))
    handler = HuggingFacePipelineModelHandler("fill-mask", "m", device="GPU")
    handler._task, handler._model, handler._load_pipeline_args["device"] = "summarization", "other", "cpu"
    handler.load_model()
    assert given == {"args": ("summarization", "other"), "device": "cpu"}

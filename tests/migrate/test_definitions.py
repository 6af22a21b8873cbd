"""What Beam and Headrace define, read from their source."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from headrace.migrate.definitions import complaint_about, private_of_beam, private_of_headrace
from headrace.migrate.names import INFERENCE

BEAM = f"Beam {version('apache-beam')}"


@pytest.mark.parametrize(
    "path",
    ["", "base", "RunInference", "base.RunInference.from_callable", "base._ModelStatus", "utils.PredictionResult"],
)
def test_names_that_beam_defines_or_imports_are_there(path):
    assert complaint_about((*INFERENCE, *filter(None, path.split(".")))) is None


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("api", "no api: correct the name, or remove it."),
        ("api.RunInference", "no api: correct the name, or remove it."),
        ("pytorch_inferense", "no pytorch_inferense; did you mean 'pytorch_inference'?"),
        ("torch_inference", "no torch_inference; did you mean 'pytorch_inference'?"),
        ("keras_inference.Keras", "no keras_inference: correct the name, or remove it."),
        ("base.KeyedModelHandelr", "no base.KeyedModelHandelr; did you mean 'KeyedModelHandler'?"),
        ("base.Nonsense.made", "no base.Nonsense: correct the name, or remove it."),
    ],
)
def test_names_that_beam_lacks_are_said(path, complaint):
    assert complaint_about((*INFERENCE, *path.split("."))) == f"{BEAM} has {complaint}"


def test_private_attributes_are_those_of_the_class_and_its_bases():
    assert {"_model_class", "_env_vars", "_large_model"} <= private_of_beam("PytorchModelHandlerTensor")
    assert "_model_class" not in private_of_beam("SklearnModelHandlerNumpy")
    assert {"_model_class", "_env_vars"} <= private_of_headrace("PytorchModelHandlerTensor")
    assert private_of_headrace("Nonsense") == private_of_beam("Nonsense") == frozenset()


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("RunInference", "_model_handler"),
        ("PytorchModelHandlerTensor", "_state_dict_path"),
        ("OnnxModelHandlerNumpy", "_model_inference_fn"),
        ("SklearnModelHandlerPandas", "_model_inference_fn"),
        ("VLLMCompletionsModelHandler", "_model_name"),
        ("KeyedModelHandler", "_unkeyed"),
    ],
)
def test_headrace_has_attributes_under_beams_names(name, attribute):
    assert attribute in private_of_beam(name)
    assert attribute in private_of_headrace(name)

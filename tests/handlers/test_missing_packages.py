"""What importing handlers says in an interpreter that lacks a package, and what they say they predict."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress

import pytest

import headrace.core
import headrace.handlers
from headrace import MissingExtraError, PredictionResult
from headrace.core.declared_type import declared_prediction_type
from headrace.core.errors import install_command, requirements
from headrace.handlers.cards import CARDS

MISSING = {
    "anthropic_inference": ["anthropic: anthropic"],
    "gemini_inference": ["google.genai: google"],
    "huggingface_generation": ["torch: huggingface", "transformers: huggingface"],
    "huggingface_inference": ["torch: huggingface", "transformers: huggingface"],
    "kserve_inference": ["numpy: kserve", "tritonclient: kserve"],
    "numpy_arrays": ["numpy: onnx"],
    "onnx_inference": ["numpy: onnx", "onnxruntime: onnx"],
    "openai_inference": ["openai: openai"],
    "pytorch_inference": ["torch: pytorch"],
    "sentence_transformer_inference": [f"{name}: sentence-transformers" for name in ("sentence_transformers", "torch")],
    "sklearn_inference": [f"{name}: sklearn" for name in ("joblib", "numpy", "pandas", "sklearn")],
    "tensorflow_inference": ["numpy: tensorflow", "tensorflow: tensorflow"],
    "tensorrt_inference": ["numpy: tensorrt"],
    "torch_arrays": ["torch: pytorch"],
    "vertex_ai_inference": ["google.cloud: vertex"],
    "vllm_inference": ["openai: vllm"],
    "xgboost_inference": ["numpy: xgboost", "pandas: xgboost", "scipy: xgboost", "xgboost: xgboost"],
}
"""By module: packages, and the extras that bring them."""
LARGE = ("huggingface", "pytorch", "sentence-transformers", "tensorflow", "torch", "vllm", "xgboost")
NEEDED = [
    pytest.param(module, *line.split(": "), marks=pytest.mark.large if line.endswith(LARGE) else ())
    for module, lines in MISSING.items()
    for line in lines
]
PACKAGES = {"google.cloud": "google-cloud-aiplatform", "google.genai": "google-genai", "sklearn": "scikit-learn"}
"""By their modules, where those have other names."""


KEPT = ("headrace.core", "headrace.core.errors", "headrace.handlers")
"""All else of Headrace is imported anew: what handlers import may need the package as well."""


def import_without(package, module):
    """Imports a module of handlers as in an interpreter that lacks a package, and has imported no handler before."""

    def are_concerned(name):
        return name == package or (name.startswith((f"{package}.", "headrace.")) and name not in KEPT)

    with suppress(ImportError):  # whatever else it needs is whole, and stays
        importlib.import_module(f"headrace.handlers.{module}")
    before = {name: loaded for name, loaded in sys.modules.items() if are_concerned(name)}
    attributes = [(vars(one), dict(vars(one))) for one in (headrace, headrace.core, headrace.handlers)]
    try:
        for name in before:
            del sys.modules[name]
        sys.modules[package] = None
        importlib.import_module(f"headrace.handlers.{module}")
    finally:
        for name in filter(are_concerned, list(sys.modules)):
            del sys.modules[name]
        sys.modules.update(before)
        for now, earlier in attributes:
            now.update(earlier)


@pytest.mark.parametrize(("module", "package", "extra"), NEEDED)
def test_missing_packages_are_named_with_the_extra(module, package, extra):
    name = PACKAGES.get(package, package)
    assert requirements(extra)
    with pytest.raises(MissingExtraError) as raised:
        import_without(package, module)
    said = f"{name} is not installed; install the extra {extra!r} with: {install_command(name, extra)}"
    assert str(raised.value) == said


def test_optional_packages_are_not_needed():
    import_without("onnx", "onnx_inference")


ELSEWHERE = ("kserve_inference", "vertex_ai_inference")
"""Their clients are in an environment of their own, as are their tests."""


@pytest.mark.large
@pytest.mark.parametrize("name", [name for name in CARDS if name.partition(".")[0] not in ELSEWHERE])
def test_handler_declares_results(name):
    module, _, cls = name.rpartition(".")
    handler = object.__new__(getattr(importlib.import_module(f"headrace.handlers.{module}"), cls))
    assert declared_prediction_type(handler) is PredictionResult

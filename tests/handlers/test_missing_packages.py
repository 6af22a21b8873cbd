"""What importing a handler says in an interpreter that lacks a package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.core.errors import install_command, requirements

MISSING = {
    "anthropic_inference": ["anthropic: anthropic"],
    "data_frames": ["pandas: sklearn"],
    "gemini_inference": ["google.genai: google"],
    "huggingface_generation": ["torch: huggingface", "transformers: huggingface"],
    "huggingface_inference": ["torch: huggingface", "transformers: huggingface"],
    "kserve_inference": ["numpy: kserve", "tritonclient: kserve"],
    "numpy_arrays": ["numpy: onnx"],
    "onnx_inference": ["numpy: onnx", "onnxruntime: onnx"],
    "openai_inference": ["openai: openai"],
    "pytorch_inference": ["torch: pytorch"],
    "sentence_transformer_inference": [
        "sentence_transformers: sentence-transformers",
        "torch: sentence-transformers",
    ],
    "sklearn_inference": ["joblib: sklearn", "numpy: sklearn", "sklearn: sklearn"],
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

WITHOUT = """
import sys
sys.modules[{package!r}] = None
try:
    import headrace.handlers.{module}
except ImportError as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


def said_without(package, module):
    command = [sys.executable, "-c", WITHOUT.format(module=module, package=package)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("module", "package", "extra"), NEEDED)
def test_missing_packages_are_named_with_the_extra(module, package, extra):
    name = PACKAGES.get(package, package)
    command = install_command(name, extra)
    assert requirements(extra)
    said = f"MissingExtraError: {name} is not installed; install the extra {extra!r} with: {command}"
    assert said_without(package, module) == said


@pytest.mark.parametrize(
    ("module", "package"),
    [("onnx_inference", "onnx"), pytest.param("sklearn_inference", "pandas", marks=pytest.mark.large)],
)
def test_optional_packages_are_not_needed(module, package):
    assert said_without(package, module) == ""

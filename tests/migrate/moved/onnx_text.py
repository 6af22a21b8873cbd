"""An ONNX model, imported where it is needed, and only if its package is there."""

import apache_beam as beam
import numpy as np
from apache_beam.ml.inference.base import RunInference

try:
    from apache_beam.ml.inference.onnx_inference import OnnxModelHandlerNumpy
except ImportError:
    OnnxModelHandlerNumpy = None


def tokens(text: str) -> np.ndarray:
    """The lengths of the first two words."""
    return np.array([len(word) for word in text.split()][:2], dtype="float32")


def label(result):
    """The rounded answer."""
    return float(np.ravel(result.inference)[0]).__round__(2)


def build(root, folder):
    """Scores of sentences."""
    if OnnxModelHandlerNumpy is None:
        raise RuntimeError("install onnxruntime")
    handler = OnnxModelHandlerNumpy(f"{folder}/numbers.onnx").with_preprocess_fn(tokens).with_postprocess_fn(label)
    return root | beam.Create(["a bc", "def gh"]) | RunInference(handler)

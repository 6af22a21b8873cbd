"""The classes of transformers that the Hugging Face handlers accept."""

from __future__ import annotations

import re
from typing import Any

from headrace.core.errors import ConfigurationError, UnsupportedError, extra_required

with extra_required("huggingface"):
    import transformers

__all__ = ["as_class", "no_tensorflow", "takes_token_ids"]

_NO_TEXT = re.compile("Image|Vision|Video|Audio|Speech|Depth|Detection|Segment|Mask(?!ed)|Keypoint|CTC|Backbone")


def as_class(model_class: Any) -> Any:
    """A class whose models run with PyTorch; a string names one in transformers."""
    name = model_class if isinstance(model_class, str) else getattr(model_class, "__name__", "")
    modules = {base.__module__.partition(".")[0] for base in getattr(model_class, "__mro__", ())}
    if name.startswith(("TF", "Flax")) or modules & {"keras", "tensorflow", "tf_keras"}:
        raise no_tensorflow(f"model_class={name}")
    found = getattr(transformers, name, None) if isinstance(model_class, str) else model_class
    if not hasattr(found, "from_pretrained"):
        raise ConfigurationError(
            f"model_class must be a class with from_pretrained, or the name of one in transformers: {model_class!r}."
        )
    return found


def takes_token_ids(model_class: Any) -> bool:
    """Whether models of the class take token ids, as far as it, or its name, says."""
    takes = getattr(model_class, "main_input_name", "input_ids")
    return takes == "input_ids" and not _NO_TEXT.search(getattr(model_class, "__name__", ""))


def no_tensorflow(asked: str) -> UnsupportedError:
    """The error for a model of TensorFlow's, with the cure."""
    return UnsupportedError(
        asked,
        "transformers 5 has no TensorFlow any more: load the same model with its PyTorch class (framework='pt'), or a "
        "TensorFlow SavedModel or Keras file with headrace.handlers.tensorflow_inference",
    )

"""What is most likely wrong when no row has a prediction: the wrong model file, or the wrong columns."""

from __future__ import annotations

import os
from collections.abc import Sequence

from headrace.cli.columns import listed, why_unexpected
from headrace.cli.handlers import handler_names

_FAMILIES = {
    ".pkl": "sklearn",
    ".pickle": "sklearn",
    ".joblib": "sklearn",
    ".onnx": "onnx",
    ".pt": "pytorch",
    ".pth": "pytorch",
    ".h5": "tensorflow",
    ".keras": "tensorflow",
    ".engine": "tensorrt",
    ".ubj": "xgboost",
}
"""The beginning of the names of the handlers that load such files, by extension."""
_TAKES = {
    "sklearn": "a pickle, or a file of joblib with --handler-arg model_file_type=joblib",
    "onnx": "an ONNX file",
    "pytorch": "a state dict with model_class, or TorchScript as torch_script_model_path",
    "tensorflow": "a SavedModel, .keras or .h5, or weights with create_model_fn",
    "xgboost": "a file of XGBoost's save_model",
    "tensorrt": "a serialized engine, built by the same version on the same kind of GPU",
    "huggingface": "a folder of save_pretrained, or an id on the hub",
    "sentence": "a folder of SentenceTransformer.save, or an id on the hub",
}
"""What the handlers load, by the beginning of their names."""


def about_model(handler: str, model: str) -> str:
    """The end of a sentence about a model file that a handler cannot load; empty if nothing is known."""
    own = handler.partition("-")[0]
    if handler not in handler_names() or own not in _TAKES:
        return ""
    family = _FAMILIES.get(os.path.splitext(model)[1].lower(), own)
    others = [name for name in handler_names() if name.startswith(f"{family}-") and family != own]
    looks = f"; by its name it is a model for {' or '.join(others)}" if others else ""
    return f"; {handler} takes {_TAKES[own]}{looks}"


def about_columns(columns: Sequence[str], *, chosen: bool) -> str:
    """A sentence about the columns that the model was given, when every row failed."""
    if not columns:
        return ""
    which = f"the {'column' if len(columns) == 1 else f'{len(columns):,} columns'} {listed(columns)}"
    cure = "if it needs others, name them with --columns" if chosen else "choose its columns with --columns"
    return f" The model was given {which}; {cure}.{why_unexpected(columns)}"

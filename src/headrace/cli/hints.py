"""What is most likely wrong when no row has a prediction: the wrong model file, or the wrong columns."""

from __future__ import annotations

import os
from collections.abc import Sequence

from headrace.cli.columns import listed
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


def about_model(handler: str, model: str) -> str:
    """The end of a sentence about a model file that a handler cannot load; empty if nothing is known."""
    extension = os.path.splitext(model)[1].lower()
    family = _FAMILIES.get(extension)
    if family is None or handler not in handler_names():
        return ""
    if not handler.startswith(f"{family}-"):
        others = [name for name in handler_names() if name.startswith(f"{family}-")]
        return f"; by its name it is a model for {' or '.join(others)}"
    if extension == ".joblib":
        return "; for files of joblib add --handler-arg model_file_type=joblib"
    return ""


def about_columns(columns: Sequence[str], *, chosen: bool) -> str:
    """A sentence about the columns that the model was given, when every row failed."""
    if not columns:
        return ""
    which = f"the {'column' if len(columns) == 1 else f'{len(columns):,} columns'} {listed(columns)}"
    cure = "if it needs others, name them with --columns" if chosen else "choose its columns with --columns"
    return f" The model was given {which}; {cure}."

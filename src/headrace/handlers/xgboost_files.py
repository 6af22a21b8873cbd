"""What a file of XGBoost's ``save_model``, or a pickle of one of its estimators, says of the model."""

from __future__ import annotations

import json
import re

from headrace.core.inert_pickle import Inert
from headrace.core.model_files import KnownModel, ModelFile

__all__ = ["recognise"]

_CLASSES = {b"classifier": "XGBClassifier", b"regressor": "XGBRegressor", b"ranker": "XGBRanker"}
_ESTIMATOR = re.compile(rb'_estimator_type\\?": ?\\?"(\w+)')
_WIDTH = re.compile(rb'num_feature(?:SL.{8}|" ?: ?")(\d+)', re.DOTALL)
_NAMES = re.compile(rb'"feature_names" ?: ?(\[(?:"(?:[^"\\]|\\.)*",? ?)*\])')
_NAMES_IN_UBJSON = re.compile(rb"feature_names\[(?:#L.{8})?", re.DOTALL)


def recognise(model: ModelFile) -> KnownModel | None:
    """The handler of frames if the model knows names, else that of arrays; with the model's class."""
    if model.head.startswith(b"{") and b"learner" in model.head:
        state = bytes(model.content)
        estimator = _ESTIMATOR.search(state)
        name = _CLASSES.get(estimator[1], "Booster") if estimator else "Booster"
        return _known("xgboost", name, {"model_class": name}, state)
    found = model.pickled
    if found is None or not isinstance(found.content, Inert) or not found.content.kind.startswith("xgboost.sklearn."):
        return None
    arguments = {"model_file_type": "joblib"} if found.needs_joblib else {}
    return _known("sklearn", found.content.kind.rpartition(".")[2], arguments, _pickled_state(found.content))


def _known(framework: str, name: str, arguments: dict[str, str], state: bytes) -> KnownModel:
    what, names, width = (
        f"an {name} of XGBoost" if name[0] == "X" else f"a {name} of XGBoost",
        _names(state),
        _WIDTH.search(state),
    )
    if names:
        return KnownModel(f"{framework}-pandas", what, arguments, columns=names)
    return KnownModel(f"{framework}-numpy", what, arguments, width=int(width[1]) if width else None)


def _pickled_state(estimator: Inert) -> bytes:
    booster = estimator.attribute("_Booster")
    handle = booster.attribute("handle") if isinstance(booster, Inert) else b""
    return bytes(handle.arguments[0] if isinstance(handle, Inert) else handle or b"")


def _names(state: bytes) -> tuple[str, ...]:
    """The model's names of features; empty if it was trained on arrays."""
    if (found := _NAMES.search(state)) is not None:
        return tuple(json.loads(found[1]))
    names: list[str] = []
    start = _NAMES_IN_UBJSON.search(state)
    place = start.end() if start else len(state)
    while state[place : place + 2] == b"SL":  # a text: its length in 8 bytes, and itself
        begin = place + 10
        place = begin + int.from_bytes(state[place + 2 : begin], "big")
        names.append(state[begin:place].decode())
    return tuple(names)

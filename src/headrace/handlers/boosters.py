"""Frames as models of XGBoost and LightGBM take them: their columns, the categories they know for text, numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace.core.conversion import column_numbers
from headrace.core.errors import extra_required

with extra_required("sklearn"):
    import pandas

_PLACES = "categorical_column", "categorical_feature"
"""LightGBM's parameters with the places of columns of categories, in a model that was fitted and in one from a file."""
_CURE = "save it with XGBoost 3.1 or later, or give it columns of pandas' type category."


def as_fitted(frame: pandas.DataFrame, model: Any) -> pandas.DataFrame:
    """A frame of the columns that a model of XGBoost or LightGBM was fitted on; text is its categories, or numbers.

    Raises:
        ValueError: two columns have one name, a value is none of the categories that XGBoost knows, or text no number.
    """
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"two columns are named {twice!r}: give the model one of each name.")
    booster = _booster_of(model)
    is_lightgbm = hasattr(booster, "pandas_categorical")
    names = list((booster.feature_name() if is_lightgbm else getattr(booster, "feature_names", None)) or ())
    own = {str(name).replace(" ", "_") if is_lightgbm else str(name): name for name in frame.columns}
    if names and names != list(own) and set(names) <= own.keys():
        frame, own = frame[[own[name] for name in names]], {name: own[name] for name in names}
    kinds = dict(zip(names or own, getattr(booster, "feature_types", None) or (), strict=False))
    known = _of_lightgbm(booster, names) if is_lightgbm else _of_xgboost(booster) if "c" in kinds.values() else {}
    fitted = frame.copy(deep=False)
    for name, column in zip(own, frame.columns, strict=True):
        if isinstance(frame[column].dtype, pandas.CategoricalDtype):
            continue
        if name in known:
            fitted[column] = _category(name, frame[column], known[name], others_are_missing=is_lightgbm)
        elif frame[column].dtype.kind == "O":
            if kinds.get(name) == "c" and frame[column].notna().any():
                raise ValueError(f"column {name!r} holds text, and the model has no names of categories; {_CURE}")
            fitted[column] = [_number(name, value) for value in frame[column]]
    return fitted


def _booster_of(model: Any) -> Any:
    return model.get_booster() if hasattr(model, "get_booster") else getattr(model, "booster_", model)


def _of_xgboost(booster: Any) -> dict[str, Any]:
    """The categories that the model knows, by column; XGBoost saves them since 3.1."""
    found = booster.get_categories(export_to_arrow=True) if hasattr(booster, "get_categories") else None
    columns = () if found is None or found.empty() else found.to_arrow()
    return {name: values.to_pandas() for name, values in columns if values is not None}


def _of_lightgbm(booster: Any, names: list[str]) -> Mapping[str, Any]:
    """As of XGBoost's; LightGBM keeps those of the frame that it was fitted on, and the places of their columns."""
    known = booster.pandas_categorical or []
    places = next((booster.params[name] for name in _PLACES if name in booster.params), ())
    if len(known) != len(places) or not all(isinstance(place, int) for place in places):
        return {}
    return {names[place]: values for place, values in zip(places, known, strict=True)}


def _category(name: str, column: pandas.Series, known: Any, *, others_are_missing: bool) -> pandas.Categorical:
    codes = pandas.Index(known).get_indexer(column)
    unknown = column[(codes < 0) & column.notna()]
    if len(unknown) and not others_are_missing:
        shown = unknown.iloc[:1].tolist()[0]
        raise ValueError(f"column {name!r} holds {shown!r}, which is none of the model's categories.")
    return pandas.Categorical.from_codes(codes, known)


def _number(column: str, value: Any) -> float:
    numbers = numbers_in(column, value)
    if len(numbers) != 1:
        raise ValueError(f"column {column!r} holds {len(numbers)} numbers; a frame takes one for each column.")
    return numbers[0]


def numbers_in(column: str, value: Any) -> list[float]:
    """The numbers in a column; NaN for a missing value, which these models accept."""
    is_missing = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
    return [math.nan] if is_missing else column_numbers(column, value)

"""Rows in data frames: many rows at once, each with the values and dtypes that it would have alone.

Numbers have 64 bits. A missing value is what pandas reads from a file: NaN among numbers and text, NaT among times.
Where it would change the dtype of a column (an integer among integers, a boolean), its rows make a frame of their own.
Models of XGBoost and LightGBM get the columns, and for text the categories, that they were fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace.core.conversion import column_numbers, predict_by_kind
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.spelling import type_option

with extra_required("sklearn"):
    import numpy
    import pandas

PredictFn = Callable[[pandas.DataFrame], Any]
"""A model's call: an array or a list with a prediction for each row of a frame."""

_TEXT: Any = "str" if int(pandas.__version__.partition(".")[0]) > 2 else object
_MOMENT = "datetime64[us]"
_MEASURED = 8
"""Of how many examples of a batch the bytes are counted, which takes a millisecond for each."""
_DTYPES: dict[Any, Any] = {int: "int64", bool: "bool", str: _TEXT, type(None): object, "unsigned": "uint64"}
_MISSING: dict[Any, Any] = {"float": float, "int": float, "str": str, "datetime": _MOMENT}
"""What a missing value is, by the type that its column is known to have."""
_KINDS = {"bool": bool | numpy.bool_, "int": int | numpy.integer, "float": float | int | numpy.number}
"""Kinds of values that are no text, the narrowest first."""
_PLAINLY = {"str": "text", "int": "numbers", "float": "numbers", "bool": "booleans"}
_PLACES = "categorical_column", "categorical_feature"
"""LightGBM's parameters with the places of columns of categories, in a model that was fitted and in one from a file."""
_CURE = "save it with XGBoost 3.1 or later, or give it columns of pandas' type category."


def as_frame(columns: Any) -> pandas.DataFrame:
    """Columns of many rows as a frame: those of an Arrow table or record batch, or a mapping of names to arrays."""
    return columns.to_pandas() if hasattr(columns, "to_pandas") else pandas.DataFrame(columns)


def examples_of(batch: Sequence[Any], *, rows_too: bool) -> Sequence[Any]:
    """A batch of frames of one row each, as rows (mappings, named tuples or Beam's) become unless ``rows_too``."""
    for frame in batch:
        if isinstance(frame, pandas.DataFrame) and len(frame) != 1:
            raise ValueError(
                f"an example must be a DataFrame with a single row; this one's shape is {frame.shape}: "
                "split it, one frame for each row, for example with frame.iloc[[i]]."
            )
    return batch if rows_too else list(map(_frame_of, batch))


def predict_examples(examples: Sequence[Any], predict: PredictFn, model: Any = None) -> Any:
    """The predictions for examples.

    Args:
        examples: data frames; or rows, as mappings, named tuples or Beam's; or a single Arrow record batch. A row may
            have an attribute ``types``, which says what its columns hold (``"float"``, ``"str"``, ...): missing values
            are then of that type.
        predict: the model's call.
        model: what its encoders were fitted on is the type of missing values in rows that do not say.
    """
    if hasattr(examples[0], "num_rows"):
        return _predict_batch(examples[0], predict)
    rows = list(map(as_row, examples))
    known = [row for row in rows if row is not None]
    if len(known) == len(rows):
        types = {column: _kind_of_values(values) for column, values in _categories(model, ())}
        kinds = [_kinds(row, types) for row in known]
        return predict_by_kind(known, kinds, lambda alike: predict(frame_of_rows(alike, types)))
    frames = list(map(_frame_of, examples))
    return predict_by_kind(frames, map(_kind_of_frame, frames), lambda alike: predict(_joined(alike)))


def as_row(example: Any) -> Mapping[str, Any] | None:
    """A mapping, a named tuple or a row of Beam's as a mapping; None if it is none."""
    if isinstance(example, pandas.DataFrame | Mapping):
        return None if isinstance(example, pandas.DataFrame) else example
    make = getattr(example, "_asdict", None) or getattr(example, "as_dict", None)
    row: Mapping[str, Any] | None = make() if callable(make) else None
    return row


def _frame_of(example: Any) -> Any:
    row = as_row(example)
    return example if row is None else frame_of_rows([row])


def _joined(frames: Sequence[pandas.DataFrame]) -> pandas.DataFrame:
    return pandas.concat(frames) if len(frames) > 1 else frames[0]


def _kind_of_frame(frame: pandas.DataFrame) -> tuple[Any, ...]:
    """What frames must share to be concatenated: otherwise pandas fills, reorders and converts columns."""
    manager: Any = getattr(frame, "_mgr", None)  # frame.dtypes makes a Series, which takes twenty times as long
    dtypes = manager.get_dtypes() if hasattr(manager, "get_dtypes") else frame.dtypes
    return (*frame.columns.tolist(), *dtypes.tolist())


def _predict_batch(batch: Any, predict: PredictFn) -> Any:
    """The predictions for the rows of an Arrow record batch of numbers, booleans, text, days and times."""
    changed = ("int64", "bool")  # types that have another dtype in pandas where values are missing
    missing = [one.is_null() for one in batch.columns if one.null_count and str(one.type) in changed]
    if not missing:
        return predict(_frame_of_batch(batch))
    patterns = zip(*(column.to_pylist() for column in missing), strict=True)
    places: Any = list(range(batch.num_rows))
    return predict_by_kind(places, patterns, lambda alike: predict(_frame_of_batch(batch.take(alike))))


def bytes_of(examples: Sequence[Any]) -> int:
    """Bytes of frames, their indexes and strings included; of many examples estimated from some of them."""
    some = examples[:: max(1, len(examples) // _MEASURED)]
    total = sum(int(numpy.sum(_frame_of(one).memory_usage(deep=True))) for one in some)
    return total * len(examples) // max(1, len(some))


def _kinds(row: Mapping[str, Any], types: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    types = getattr(row, "types", types)
    return tuple([(name, _kind(value, types.get(name))) for name, value in row.items()])


def _kind(value: Any, declared: Any) -> Any:
    """What values must share to make one column."""
    kind = type(value)
    if declared == "float" and kind is int:
        return float
    if value is None or (declared == "str" and kind is float and math.isnan(value)):
        return _MISSING.get(declared, kind)
    if kind is int and not -(2**63) <= value < 2**63:
        return "unsigned" if 0 <= value < 2**64 else object
    if isinstance(value, datetime):
        return _MOMENT if value.tzinfo is None else (kind, value.tzinfo)
    return kind


def frame_of_rows(rows: Sequence[Mapping[str, Any]], types: Mapping[str, Any] | None = None) -> pandas.DataFrame:
    """Rows of the same columns and kinds of values as a frame; ``types`` as a row's own."""
    kinds = _kinds(rows[0], types or {})
    return pandas.DataFrame({name: _column([row[name] for row in rows], kind) for name, kind in kinds})


def _column(values: list[Any], kind: Any) -> pandas.Series:
    if kind is float:
        return pandas.Series([math.nan if value is None else value for value in values], dtype="float64")
    if kind == _MOMENT:
        return pandas.Series(values, dtype=_MOMENT)
    found = pandas.Series(values, dtype=_DTYPES.get(kind))
    return found.dt.as_unit("us") if isinstance(found.dtype, pandas.DatetimeTZDtype) else found


def _frame_of_batch(batch: Any) -> pandas.DataFrame:
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return pandas.DataFrame({name: _series(column) for name, column in columns}, copy=False)


def _series(column: Any) -> pandas.Series:
    found: pandas.Series = column.to_pandas()
    is_text = str(column.type) in ("string", "large_string")
    return found.astype(_TEXT) if is_text and found.dtype == object else found  # of an older pyarrow


def refuse_other_kinds(model: Any, types: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for a column of text where an encoder was fitted on numbers, or the reverse.

    ``types`` says what the columns hold: names such as ``"str"`` and ``"int"``, or dtypes; others are not judged.
    """
    for column, categories in _categories(model, ()):
        fitted, given = _kind_of_values(categories), _kind_of_type(types.get(column))
        if fitted and given and (fitted == "str") is not (given == "str"):
            shown = ", ".join(repr(getattr(value, "item", lambda value=value: value)()) for value in categories[:3])
            raise ConfigurationError(
                f"column {str(column)!r} holds {_PLAINLY[given]}, and the model was fitted on {_PLAINLY[fitted]} there "
                f"({shown}, ...). For CSV, add {type_option(str(column), fitted)}; elsewhere convert the column."
            )


def _categories(estimator: Any, columns: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of a column and the categories that an encoder within the estimator knows of it."""
    columns = list(getattr(estimator, "feature_names_in_", columns))
    places = getattr(estimator, "_transformer_to_input_indices", None)
    if places is not None:
        for name, inner, _ in estimator.transformers_ if columns else ():
            yield from _categories(inner, [columns[place] for place in places.get(name, ())])
        return
    found = getattr(estimator, "categories_", ())
    if len(found) == len(columns):
        yield from zip(columns, found, strict=True)
    for inner in _parts(estimator):
        yield from _categories(inner, columns)


def _parts(estimator: Any) -> Iterator[Any]:
    """The estimators that another one gives its own columns to."""
    for _, step in getattr(estimator, "steps", ()):
        yield step
        if hasattr(step, "transformers_"):  # what follows sees other columns
            return
    for name in ("best_estimator_", "estimator_", "regressor_", "_preprocessor"):  # the last one boosts histograms
        if (inner := getattr(estimator, name, None)) is not None:
            yield inner
    yield from (inner for _, inner in getattr(estimator, "transformer_list", ()))
    yield from (inner.estimator for inner in getattr(estimator, "calibrated_classifiers_", ()))
    several = getattr(estimator, "estimators_", ())
    if isinstance(several, list) and not hasattr(estimator, "estimators_features_"):  # of bagging: some columns each
        yield from several


def _kind_of_values(values: Any) -> str | None:
    some = [value for value in values if not pandas.isna(value)]
    if not some or all(isinstance(value, str) for value in some):
        return "str" if some else None
    return next((name for name, kind in _KINDS.items() if all(isinstance(value, kind) for value in some)), None)


def _kind_of_type(given: Any) -> str | None:
    if given is None or isinstance(given, str):
        return given if given in _PLAINLY else None
    if isinstance(given, pandas.CategoricalDtype):
        return _kind_of_values(given.categories)
    tests = pandas.api.types
    if tests.is_object_dtype(given):
        return None
    names = {"bool": tests.is_bool_dtype, "float": tests.is_numeric_dtype, "str": tests.is_string_dtype}
    return next((name for name, is_of in names.items() if is_of(given)), None)


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

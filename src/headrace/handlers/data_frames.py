"""Rows in data frames: many rows at once, each with the values and dtypes that it would have alone.

Numbers have 64 bits. A missing value is what pandas reads from a file: NaN among numbers and text, NaT among times.
Where it would change the dtype of a column (an integer among integers, a boolean), its rows make a frame of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace.core.conversion import predict_by_kind
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
    if known:
        examples = list(map(_frame_of, examples))
    if _are_alike(examples):
        return predict(pandas.concat(examples) if len(examples) > 1 else examples[0])
    return predict_by_kind(examples, map(_kind_of_frame, examples), lambda alike: predict(pandas.concat(alike)))


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


def _are_alike(frames: Sequence[pandas.DataFrame]) -> bool:
    """Whether frames have the same columns and dtypes, in a fraction of the time that concatenating them takes."""
    first, dtypes = frames[0], _dtypes(frames[0])
    return all(one.columns.equals(first.columns) and _dtypes(one) == dtypes for one in frames)


def _kind_of_frame(frame: pandas.DataFrame) -> tuple[Any, ...]:
    """What frames must share to be concatenated: otherwise pandas fills, reorders and converts columns."""
    return (*frame.columns, *_dtypes(frame))


def _dtypes(frame: pandas.DataFrame) -> list[Any]:
    manager: Any = getattr(frame, "_mgr", None)  # frame.dtypes makes a Series, which takes twenty times as long
    dtypes: list[Any] = (manager.get_dtypes() if hasattr(manager, "get_dtypes") else frame.dtypes).tolist()
    return dtypes


def _predict_batch(batch: Any, predict: PredictFn) -> Any:
    """The predictions for the rows of an Arrow record batch of numbers, booleans, text, days and times."""
    changed = ("int64", "bool")  # types that have another dtype in pandas where values are missing
    missing = [one.is_null() for one in batch.columns if one.null_count and str(one.type) in changed]
    if not missing:
        return predict(_frame_of_batch(batch))
    patterns = numpy.stack([column.to_numpy(zero_copy_only=False) for column in missing], axis=1)
    _, numbers = numpy.unique(patterns, axis=0, return_inverse=True)
    groups = [numpy.flatnonzero(numbers == number) for number in range(numbers.max() + 1)]
    return _in_order(groups, [predict(_frame_of_batch(batch.take(places))) for places in groups])


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


def _in_order(groups: Sequence[Any], answers: Sequence[Any]) -> Any:
    """The answers for all rows, in order: an array if all are of one dtype. A wrong number of them stays wrong."""
    order = numpy.argsort(numpy.concatenate(groups))
    are_alike = all(isinstance(one, numpy.ndarray) for one in answers) and len({one.dtype for one in answers}) == 1
    found: Any = numpy.concatenate(answers) if are_alike else [row for answer in answers for row in answer]
    if len(found) != len(order):
        return found
    return found[order] if are_alike else [found[place] for place in order]


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

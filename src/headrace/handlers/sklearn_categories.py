"""Which kinds of values a fitted scikit-learn model knows of its columns: those of its encoders' categories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.spelling import type_option

with extra_required("sklearn"):
    import numpy
    import pandas

_TEXT = "str"
_NUMBERS = {"bool": bool | numpy.bool_, "int": int | numpy.integer, "float": float | int | numpy.number}
"""Kinds of values that are no text, the narrowest first."""
_PLAINLY = {"str": "text", "int": "numbers", "float": "numbers", "bool": "booleans"}
_PASSED = ("drop", "passthrough")


def refuse_other_kinds(model: Any, types: Mapping[str, Any]) -> None:
    """Refuses columns of text where an encoder of the model was fitted on numbers, or the other way round.

    Args:
        model: a fitted estimator.
        types: by column ``"str"``, ``"int"``, ``"float"``, ``"bool"``, or a dtype; other types are not judged.

    Raises:
        ConfigurationError: such a column.
    """
    for column, categories in _categories(model, list(getattr(model, "feature_names_in_", ()))):
        fitted, given = _kind_of_values(categories), _kind_of_type(types.get(column))
        if fitted and given and (fitted == _TEXT) is not (given == _TEXT):
            shown = ", ".join(repr(getattr(value, "item", lambda value=value: value)()) for value in categories[:3])
            raise ConfigurationError(
                f"column {str(column)!r} holds {_PLAINLY[given]}, and the model was fitted on {_PLAINLY[fitted]} there "
                f"({shown}, ...). For CSV, add {type_option(str(column), fitted)}; elsewhere convert the column."
            )


def _categories(estimator: Any, columns: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of a column and the categories that an encoder within the estimator knows of it."""
    if hasattr(estimator, "transformers_"):
        for _, inner, chosen in estimator.transformers_:
            if inner not in _PASSED:
                yield from _categories(inner, _names(chosen, columns))
        return
    for _, inner in getattr(estimator, "steps", ()):
        yield from _categories(inner, columns)
        if hasattr(inner, "transformers_"):
            return  # what follows sees other columns
    for inner in _alternatives(estimator):
        yield from _categories(inner, list(getattr(inner, "feature_names_in_", columns)))
    found = getattr(estimator, "categories_", ())
    if len(found) == len(columns):
        yield from zip(getattr(estimator, "feature_names_in_", columns), found, strict=True)


def _alternatives(estimator: Any) -> Iterator[Any]:
    """The estimators that another one gives its own columns to."""
    for name in ("best_estimator_", "estimator_", "regressor_", "_preprocessor"):  # the last one boosts histograms
        if (inner := getattr(estimator, name, None)) is not None:
            yield inner
    yield from (inner for _, inner in getattr(estimator, "transformer_list", ()))
    yield from (inner.estimator for inner in getattr(estimator, "calibrated_classifiers_", ()))
    several = getattr(estimator, "estimators_", ())
    if isinstance(several, list) and not hasattr(estimator, "estimators_features_"):  # of bagging: some columns each
        yield from several


def _names(chosen: Any, columns: Sequence[Any]) -> list[Any]:
    """The names of the columns that a ColumnTransformer gives to one of its transformers."""
    if isinstance(chosen, str):
        return [chosen]
    if isinstance(chosen, slice):
        by_name = isinstance(chosen.start, str) or isinstance(chosen.stop, str)
        return list(columns[pandas.Index(columns).slice_indexer(chosen.start, chosen.stop) if by_name else chosen])
    if callable(chosen):
        return []
    some = list(numpy.atleast_1d(chosen))
    if some and isinstance(some[0], bool | numpy.bool_):
        return [name for name, taken in zip(columns, some, strict=False) if taken]
    return [one if isinstance(one, str) else columns[one] for one in some] if columns else some


def _kind_of_values(values: Any) -> str | None:
    some = [value for value in values if value is not None and value == value]  # noqa: PLR0124 - not NaN
    if not some or all(isinstance(value, str) for value in some):
        return _TEXT if some else None
    fitting = (name for name, kind in _NUMBERS.items() if all(isinstance(value, kind) for value in some))
    return next(fitting, None)


def _kind_of_type(given: Any) -> str | None:
    if given is None or isinstance(given, str):
        return given if given in _PLAINLY else None
    if isinstance(given, pandas.CategoricalDtype):
        return _kind_of_values(given.categories)
    if pandas.api.types.is_bool_dtype(given):
        return "bool"
    if pandas.api.types.is_numeric_dtype(given):
        return "float"
    if pandas.api.types.is_object_dtype(given):
        return None
    return _TEXT if pandas.api.types.is_string_dtype(given) else None

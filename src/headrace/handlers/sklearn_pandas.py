"""Runs scikit-learn models on pandas frames; arguments as ``apache_beam.ml.inference``'s handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.core.columns import Form, Takes
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.result import PredictionResult
from headrace.core.spelling import type_option
from headrace.handlers.cards import CARDS

with extra_required("sklearn"):
    import numpy
    import pandas

from headrace.handlers.data_frames import as_row, bytes_of, frame_of_rows, predict_examples
from headrace.handlers.sklearn_models import BaseEstimator, SklearnModelHandler, asked

__all__ = ["SklearnModelHandlerPandas"]

_TEXT = "str"
_NUMBERS = {"bool": bool | numpy.bool_, "int": int | numpy.integer, "float": float | int | numpy.number}
"""Kinds of values that are no text, the narrowest first."""
_PLAINLY = {"str": "text", "int": "numbers", "float": "numbers", "bool": "booleans"}
_PASSED = ("drop", "passthrough")

PandasInferenceFn = Callable[
    [BaseEstimator, Sequence[pandas.DataFrame], "dict[str, Any] | None"], "tuple[Any, Iterable[pandas.DataFrame]]"
]


def _predict_frames(
    model: BaseEstimator,
    batch: Sequence[Any],
    inference_args: dict[str, Any] | None = None,
    method: str = "predict",
    *,
    named: bool = False,
) -> tuple[Any, Sequence[Any]]:
    names = list(getattr(model, "feature_names_in_", ()))

    def predict(frame: pandas.DataFrame) -> Any:
        if names and names != list(frame.columns) and set(names) <= set(frame.columns):
            frame = frame[names]
        return asked(model, frame, inference_args, method, named=named)

    return predict_examples(batch, predict), batch


class SklearnModelHandlerPandas(SklearnModelHandler[pandas.DataFrame]):
    """Predicts for pandas frames: an example is a DataFrame with one row, a dict, a named tuple or a ``beam.Row``.

    All rows of a batch go to the model in one frame, and columns that it was not fitted on are left out.

    Args:
        inference_fn: ``(model, batch, inference_args)`` returns a pair: the predictions, one for each example of the
            batch or a dict of such sequences, and the examples to put beside them. By default ``model.predict`` gets
            the concatenated frames, with ``inference_args`` as its keyword arguments.
        options: those of ``headrace.ModelHandler``. All others, and errors, are those of ``SklearnModelHandlerNumpy``.
    """

    card = CARDS["sklearn_inference.SklearnModelHandlerPandas"]

    takes = Takes(Form.FRAME)

    _default_inference_fn = staticmethod(_predict_frames)

    def refuse_types(self, model: BaseEstimator, types: Mapping[str, Any]) -> None:
        """Refuses columns that hold text where the model was fitted on numbers, or the other way round.

        Args:
            model: the model, whose encoders know the categories that they were fitted on.
            types: what the columns hold: names such as ``"str"`` and ``"int"``, or dtypes.

        Raises:
            ConfigurationError: such a column; names it.
        """
        refuse_other_kinds(model, types)

    def run_columns(
        self, columns: Any, model: BaseEstimator, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Predicts for all rows of a data frame, of an Arrow record batch, or of columns that make a frame.

        An ``inference_fn`` gets one frame as the batch's only example.
        """
        frame = columns
        if not (self.columns_equal_rows() and hasattr(columns, "num_rows")):
            frame = columns.to_pandas() if hasattr(columns, "to_pandas") else pandas.DataFrame(columns)
        predictions, _ = self._inference_fn(model, [frame], inference_args)
        return PredictionResult(columns, predictions, self._model_uri)

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Bytes of the frames, their indexes and strings included; of a large batch estimated from some of them."""
        return bytes_of(batch)

    def example_from_row(self, row: Mapping[str, Any]) -> pandas.DataFrame:
        """A row as a frame with the same columns, and values of the same types: text stays text.

        In a column that is known to hold numbers, a missing one is NaN, and in one of floats an integer is a float.
        """
        return frame_of_rows([row])

    def _predict(self, model: BaseEstimator, batch: Any, inference_args: dict[str, Any] | None) -> tuple[Any, Any]:
        _refuse_several_rows(batch)
        if not self.columns_equal_rows():
            batch = [one if (row := as_row(one)) is None else self.example_from_row(row) for one in batch]
        answer: tuple[Any, Any] = self._inference_fn(model, batch, inference_args)
        return answer


def _refuse_several_rows(batch: Sequence[Any]) -> None:
    for frame in batch:
        if isinstance(frame, pandas.DataFrame) and len(frame) != 1:
            raise ValueError(
                f"an example must be a DataFrame with a single row; this one's shape is {frame.shape}: "
                "split it, one frame for each row, for example with frame.iloc[[i]]."
            )


def refuse_other_kinds(model: Any, types: Mapping[str, Any]) -> None:
    """As ``SklearnModelHandlerPandas.refuse_types``; types of other names are not judged."""
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
    places = getattr(estimator, "_transformer_to_input_indices", None)
    if places is not None:
        for name, inner, _ in estimator.transformers_ if columns else ():
            if inner not in _PASSED:
                yield from _categories(inner, [columns[place] for place in places.get(name, ())])
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

"""Runs XGBoost models on arrays, frames or sparse matrices; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, TypeVar

from headrace.core.answer import predictions_of, with_model_id
from headrace.core.beam_compat import with_beams_attributes
from headrace.core.columns import Form, Takes
from headrace.core.conversion import predict_by_kind, to_matrix, to_results
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.files import open_uri
from headrace.core.result import PredictionResult
from headrace.handlers.base import EstimatorHandler, TakesColumns, refuse_lack_of

with extra_required("xgboost"):
    import numpy
    import pandas
    import scipy.sparse
    import xgboost

from headrace.handlers.array_batches import ArrayExamples, with_names
from headrace.handlers.data_frames import as_fitted, as_frame, as_row, bytes_of, numbers_in

__all__ = [
    "XGBoostModelHandler",
    "XGBoostModelHandlerDatatable",
    "XGBoostModelHandlerNumpy",
    "XGBoostModelHandlerPandas",
    "XGBoostModelHandlerSciPy",
    "default_xgboost_inference_fn",
]


ExampleT = TypeVar("ExampleT")

XGBoostInferenceFn = Callable[[Sequence[Any], Any, "dict[str, Any] | None"], Iterable[PredictionResult]]


def default_xgboost_inference_fn(
    batch: Sequence[Any],
    model: Any,
    inference_args: dict[str, Any] | None = None,
    method: str = "predict",
    *,
    named: bool = False,
) -> Iterable[PredictionResult]:
    """Predicts for each example's rows, with one call of ``predict`` for all examples of one kind.

    Args:
        batch: matrices or frames of rows of features; or 1-D arrays or series, for single rows.
        model: a Booster or an estimator. A ``predict`` that is not XGBoost's is called for each
            example, since it may do anything with the rows.
        inference_args: keyword arguments of ``predict``. With ``base_margin``, which belongs to the rows of one call,
            ``predict`` is called for each example.
        method: the model's, in place of ``predict``.
        named: whether several values for a row have the names of the model's classes, in a structured array.

    Raises:
        ValueError: an example has fewer columns than a Booster has features.
    """
    arguments = inference_args or {}
    matrices = [_matrix(example) for example in batch]

    def predict(alike: Sequence[Any]) -> list[Any]:
        answer, ends = ask(_together(alike)), accumulate((matrix.shape[0] for matrix in alike), initial=0)
        return [answer[start:stop].copy() for start, stop in pairwise(ends)]  # each in memory of its own

    def ask(matrix: Any) -> Any:
        matrix = as_fitted(matrix, model) if isinstance(matrix, pandas.DataFrame) else matrix
        answer = _predict(model, matrix, arguments, method)
        return with_names(answer, getattr(model, "classes_", ())) if named else answer

    own = getattr(type(model), method, None)
    is_by_row = getattr(own, "__module__", "").partition(".")[0] == "xgboost"
    if is_by_row and "base_margin" not in arguments:
        answers = predict_by_kind(matrices, map(_kind, matrices), predict)
    else:
        answers = list(map(ask, matrices))
    return [
        PredictionResult(example, answer[0] if _is_row(example) else answer)
        for example, answer in zip(batch, answers, strict=True)
    ]


@with_beams_attributes
class XGBoostModelHandler(EstimatorHandler[ExampleT, Any]):
    """Loads the model. Use one of the subclasses, which know their examples.

    Args:
        model_class: the model's class, such as ``xgboost.Booster`` or ``xgboost.XGBClassifier``, or a function that
            makes the model.
        model_state: path or URI of the JSON or UBJSON file that the model's ``save_model`` wrote.
        inference_fn: ``(batch, model, inference_args)`` returns a PredictionResult for each example.
        method: what the model is asked for: ``"predict"`` or, of an estimator, ``"predict_proba"``.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: ``model_class`` cannot be called, or does not have the ``method``.
    """

    mappable = False

    model_parameter: ClassVar[str] = "model_state"
    """The parameter that ``--model`` on the command line sets."""

    _metrics_namespace = "BeamML_XGBoost"
    _default_inference_fn = staticmethod(default_xgboost_inference_fn)

    def __init__(
        self,
        model_class: Callable[..., Any] | type[Any] | str,
        model_state: str | os.PathLike[str],
        inference_fn: XGBoostInferenceFn = default_xgboost_inference_fn,
        method: str = "predict",
        **options: Any,
    ) -> None:
        self._require_package()
        super().__init__(model_state, inference_fn, method, **options)
        self._model_class = _as_class(model_class)
        if method != "predict" and isinstance(self._model_class, type):
            refuse_lack_of(method, self._model_class)

    def load_model(self) -> Any:
        """Makes the model and loads its state from the file; ConfigurationError if it lacks the ``method``."""
        with open_uri(self._model_uri) as file:
            state = bytearray(file.read())
        model = self._model_class()
        if self._method != "predict":
            refuse_lack_of(self._method, model)
        model.load_model(state)
        return model

    def _require_package(self) -> None:
        """Raises MissingExtraError if the examples' package is not installed."""

    def _called(self, batch: Any, model: Any, inference_args: dict[str, Any] | None) -> Iterable[PredictionResult]:
        found = predictions_of(self._inference_fn(batch, model, inference_args), "inference_fn")
        return with_model_id(found, self._model_uri)

    def _answer(self, rows: Any, model: Any, inference_args: dict[str, Any] | None) -> Any:
        (result,) = self._inference_fn([rows], model, inference_args)
        return result.inference


class XGBoostModelHandlerNumpy(
    ArrayExamples, XGBoostModelHandler["numpy.ndarray[Any, Any]"], TakesColumns["numpy.ndarray[Any, Any]", Any]
):
    """Predicts for numpy arrays: an example is a matrix of rows of features, or a 1-D array for a single row.

    Args and errors are those of ``XGBoostModelHandler``.
    """

    takes = Takes(missing=True)

    def _rows_of(self, columns: Any) -> Any:
        return to_matrix(columns, numpy, "float32")

    def example_from_row(self, row: Mapping[str, Any]) -> numpy.ndarray[Any, Any]:
        """A row's columns, in their order, as a 1-D array of 64-bit floats; missing values are NaN."""
        return numpy.array([number for column, value in row.items() for number in numbers_in(column, value)])


class XGBoostModelHandlerPandas(XGBoostModelHandler[pandas.DataFrame], TakesColumns[pandas.DataFrame, Any]):
    """Predicts for pandas frames: an example is a DataFrame; or a row: a Series, dict, named tuple or ``beam.Row``.

    Columns that the model was not fitted on are left out. Text becomes its categories where it was fitted on some, else
    numbers. Args and errors are those of ``XGBoostModelHandler``.
    """

    takes = Takes(Form.FRAME)

    def _called(self, batch: Any, model: Any, inference_args: dict[str, Any] | None) -> Iterable[PredictionResult]:
        rows = list(map(as_row, batch))
        known = [row for row in rows if row is not None]
        if len(known) < len(rows) or not self.columns_equal_rows():
            pairs = zip(batch, rows, strict=True)
            examples = [given if row is None else self.example_from_row(row) for given, row in pairs]
            return super()._called(examples, model, inference_args)

        def predict(alike: Sequence[Mapping[str, Any]]) -> Any:
            frame = pandas.DataFrame({name: [row[name] for row in alike] for name in alike[0]})
            return self._answer(frame, model, inference_args)

        return to_results(batch, predict_by_kind(known, map(tuple, known), predict), self._model_uri)

    def _rows_of(self, columns: Any) -> pandas.DataFrame:
        return as_frame(columns)

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Bytes of the frames, their indexes and strings included; of a large batch estimated from some of them."""
        return bytes_of(batch)

    def example_from_row(self, row: Mapping[str, Any]) -> pandas.Series:
        """A row as a Series by column."""
        return pandas.Series(dict(row))


class XGBoostModelHandlerSciPy(XGBoostModelHandler[Any]):
    """Predicts for SciPy's sparse matrices of rows of features; XGBoost treats elements that are not stored as missing.

    Args and errors are those of ``XGBoostModelHandler``.
    """


class XGBoostModelHandlerDatatable(XGBoostModelHandler[Any]):
    """Predicts for datatable's frames; XGBoost, which no longer knows them, gets pandas frames.

    Args and errors are those of ``XGBoostModelHandler``; MissingExtraError if datatable is not installed.
    """

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Bytes of the frames."""
        return sum(map(sys.getsizeof, batch))

    def _require_package(self) -> None:
        with extra_required("datatable"):
            import datatable  # noqa: F401, PLC0415 - only one handler needs it


def _as_class(given: Any) -> Callable[..., Any]:
    found = getattr(xgboost, given, None) if isinstance(given, str) else given
    if not callable(found):
        raise ConfigurationError(
            f"model_class must be a class of XGBoost's, such as xgboost.Booster or xgboost.XGBClassifier, or a "
            f"function that makes the model, not {given!r}."
        )
    return found  # type: ignore[no-any-return]


def _is_row(example: Any) -> bool:
    return getattr(example, "ndim", 2) == 1


def _matrix(example: Any) -> Any:
    """An example as rows of a type that XGBoost takes."""
    if isinstance(example, pandas.Series):
        return example.to_frame().T.infer_objects()
    if type(example).__module__.partition(".")[0] == "datatable":
        return example.to_pandas()
    if not hasattr(example, "shape"):  # to XGBoost a text would be the name of a file
        example = numpy.asarray(example, dtype=float)
    return example.reshape(1, -1) if _is_row(example) else example


def _kind(matrix: Any) -> tuple[Any, ...]:
    """What matrices must share to be concatenated: XGBoost looks at columns and their types, pandas converts them."""
    if isinstance(matrix, pandas.DataFrame):
        return (pandas.DataFrame, *matrix.columns, *matrix.dtypes)
    if scipy.sparse.issparse(matrix) or type(matrix) is numpy.ndarray:
        return type(matrix), matrix.dtype, matrix.shape[1:]
    return type(matrix), id(matrix)


def _together(alike: Sequence[Any]) -> Any:
    first = alike[0]
    if len(alike) == 1:
        return first
    if scipy.sparse.issparse(first):
        return scipy.sparse.vstack(alike, format="csr")
    return pandas.concat(alike) if isinstance(first, pandas.DataFrame) else numpy.concatenate(alike)


def _predict(model: Any, matrix: Any, arguments: dict[str, Any], method: str) -> Any:
    if not isinstance(model, xgboost.Booster):
        return getattr(model, method)(matrix, **arguments)
    data = xgboost.DMatrix(matrix, enable_categorical=True)
    few = not scipy.sparse.issparse(matrix) and data.num_col() < model.num_features()
    if few and arguments.get("validate_features", True):  # XGBoost would treat the last ones as missing
        raise ValueError(f"an example has {data.num_col()} columns, and the model {model.num_features()} features.")
    return model.predict(data, **arguments)

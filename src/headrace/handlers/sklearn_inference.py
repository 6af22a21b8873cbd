"""Runs scikit-learn models on numpy arrays or pandas frames; arguments as ``apache_beam.ml.inference``'s handlers.

Only the handler of frames imports pandas.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.columns import Form, Takes
from headrace.core.conversion import only_text, to_matrix, to_numbers
from headrace.core.errors import extra_required
from headrace.core.result import PredictionResult
from headrace.handlers.cards import CARDS

with extra_required("sklearn"):
    import numpy

from headrace.handlers.array_batches import ArrayExamples, stacked_alike
from headrace.handlers.sklearn_models import BaseEstimator, ModelFileType, SklearnModelHandler, asked

if TYPE_CHECKING:
    from headrace.handlers.sklearn_pandas import SklearnModelHandlerPandas

__all__ = ["ModelFileType", "SklearnModelHandlerNumpy", "SklearnModelHandlerPandas"]


NumpyInferenceFn = Callable[[BaseEstimator, Sequence["numpy.ndarray[Any, Any]"], "dict[str, Any] | None"], Any]


def __getattr__(name: str) -> Any:
    if name != "SklearnModelHandlerPandas":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("headrace.handlers.sklearn_pandas").SklearnModelHandlerPandas


def _predict_arrays(
    model: BaseEstimator,
    batch: Any,
    inference_args: dict[str, Any] | None = None,
    method: str = "predict",
    *,
    named: bool = False,
) -> Any:
    return stacked_alike(batch, lambda rows: asked(model, rows, inference_args, method, named=named))


class SklearnModelHandlerNumpy(ArrayExamples, SklearnModelHandler["numpy.ndarray[Any, Any]"]):
    """Predicts for numpy arrays: an example is an array of any shape (usually one row of features, 1-D).

    Args:
        model_uri: path or URI of the model's file.
        model_file_type: whether the file was written with pickle, joblib or skops.
        inference_fn: ``(model, batch, inference_args)`` returns one prediction for each example of the batch, or a
            dict of such sequences; by default ``model.predict`` gets the stacked arrays, with ``inference_args`` as its
            keyword arguments.
        method: what the model is asked for: ``"predict"``, ``"predict_proba"``, ``"decision_function"`` or
            ``"transform"``.
        takes_texts: whether the model takes texts, as a vectorizer does: a row of a file is the text in its only
            column, an example an array without axes, ``numpy.array(text, dtype=object)``.
        trusted: of a file of skops, the types that may be loaded besides those that skops itself trusts.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: ``model_file_type`` is not a ModelFileType, or is not skops and types are ``trusted``;
            ``method`` is none of these, or goes with an ``inference_fn``.
    """

    card = CARDS["sklearn_inference.SklearnModelHandlerNumpy"]

    _default_inference_fn = staticmethod(_predict_arrays)
    _takes_texts = False

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        model_file_type: ModelFileType = ModelFileType.PICKLE,
        *,
        inference_fn: NumpyInferenceFn | None = None,
        method: str = "predict",
        takes_texts: bool = False,
        trusted: str | Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(
            model_uri, model_file_type, inference_fn=inference_fn, method=method, trusted=trusted, **options
        )
        self._takes_texts = takes_texts

    @property
    def takes(self) -> Takes:
        """A matrix, or texts."""
        return Takes(Form.TEXTS if self._takes_texts else Form.MATRIX)

    def run_columns(
        self, columns: Any, model: BaseEstimator, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Predicts for all rows of a matrix, or of columns that make one of 64-bit floats; or of an array of texts.

        An ``inference_fn`` gets the matrix as its batch.
        """
        rows = columns if self._takes_texts else to_matrix(columns, numpy, "float64")
        predictions, _ = self._predict(model, rows, inference_args)
        return PredictionResult(columns, predictions, self._model_uri)

    def example_from_row(self, row: Mapping[str, Any]) -> numpy.ndarray[Any, Any]:
        """A row's columns, in their order, as a 1-D array of 64-bit floats; or with ``takes_texts`` its text.

        Raises:
            ValueError: a value is not a finite number, or not a text; names the column and the value.
        """
        return numpy.array(only_text(row), dtype=object) if self._takes_texts else numpy.array(to_numbers(row))

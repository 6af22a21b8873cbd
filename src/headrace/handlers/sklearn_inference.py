"""Runs scikit-learn models on numpy arrays or pandas frames; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, BinaryIO, TypeVar

from headrace.core.beam_compat import with_beams_attributes
from headrace.core.columns import Form, Takes
from headrace.core.conversion import only_text, single_output, to_matrix, to_numbers, to_results
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.files import open_uri
from headrace.core.result import PredictionResult
from headrace.handlers.base import EstimatorHandler, TakesColumns, as_member, refuse_lack_of

with extra_required("sklearn"):
    import joblib
    import numpy
    import pandas
    from sklearn.base import BaseEstimator

from headrace.handlers.array_batches import ArrayPredictions, predict_arrays, with_names
from headrace.handlers.data_frames import (
    as_fitted,
    as_frame,
    bytes_of,
    examples_of,
    frame_of_rows,
    predict_examples,
    refuse_other_kinds,
)

__all__ = ["ModelFileType", "SklearnModelHandlerNumpy", "SklearnModelHandlerPandas"]

ArrayT = TypeVar("ArrayT")


NumpyInferenceFn = Callable[[BaseEstimator, Sequence["numpy.ndarray[Any, Any]"], "dict[str, Any] | None"], Any]
PandasInferenceFn = Callable[
    [BaseEstimator, Sequence[pandas.DataFrame], "dict[str, Any] | None"], tuple[Any, Iterable[pandas.DataFrame]]
]


class ModelFileType(Enum):
    """How a model was written to its file."""

    PICKLE = 1
    JOBLIB = 2
    SKOPS = 3


@with_beams_attributes
class SklearnModelHandler(EstimatorHandler[ArrayT, BaseEstimator]):
    """Loads the model from its file; subclasses know their examples."""

    mappable = True

    _metrics_namespace = "BeamML_Sklearn"

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        model_file_type: ModelFileType = ModelFileType.PICKLE,
        *,
        inference_fn: Callable[..., Any] | None = None,
        method: str = "predict",
        takes_texts: bool = False,
        trusted: str | Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(model_uri, inference_fn, method, **options)
        self._takes_texts = takes_texts
        if takes_texts and isinstance(self, SklearnModelHandlerPandas):
            raise ConfigurationError("takes_texts goes with SklearnModelHandlerNumpy.")
        self._model_file_type = as_member(ModelFileType, model_file_type, "model_file_type")
        self._trusted = [trusted] if isinstance(trusted, str) else list(trusted)
        if self._trusted and self._model_file_type is not ModelFileType.SKOPS:
            raise ConfigurationError("trusted goes with model_file_type=ModelFileType.SKOPS.")

    def load_model(self) -> BaseEstimator:
        """The model in the file; ConfigurationError if it lacks the ``method``, or has types that are not trusted."""
        with open_uri(self._model_uri) as file:
            if self._model_file_type is ModelFileType.SKOPS:
                model = _of_skops(file, self._trusted)
            else:
                model = (pickle if self._model_file_type is ModelFileType.PICKLE else joblib).load(file)
        if self._method != "predict":  # the user's inference_fn may need none
            refuse_lack_of(self._method, model)
        return model


_BOOSTERS = "lightgbm.", "xgboost."
"""Packages whose models take categories, and no text."""


def _predict_arrays(
    model: BaseEstimator,
    batch: Any,
    inference_args: dict[str, Any] | None = None,
    method: str = "predict",
    *,
    named: bool = False,
) -> Any:
    return predict_arrays(batch, lambda rows: _asked(model, rows, inference_args, method, named=named))


class SklearnModelHandlerNumpy(ArrayPredictions, SklearnModelHandler["numpy.ndarray[Any, Any]"]):
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

    _default_inference_fn = staticmethod(_predict_arrays)

    @property
    def takes(self) -> Takes:
        """A matrix, or texts."""
        return Takes(Form.TEXTS if self._takes_texts else Form.MATRIX)

    def _rows_of(self, columns: Any) -> Any:
        return columns if self._takes_texts else to_matrix(columns, numpy, "float64")

    def example_from_row(self, row: Mapping[str, Any]) -> numpy.ndarray[Any, Any]:
        """A row's columns, in their order, as a 1-D array of 64-bit floats; or with ``takes_texts`` its text."""
        return numpy.array(only_text(row), dtype=object) if self._takes_texts else numpy.array(to_numbers(row))


def _predict_frames(
    model: BaseEstimator,
    batch: Any,
    inference_args: dict[str, Any] | None = None,
    method: str = "predict",
    *,
    named: bool = False,
) -> tuple[Any, Sequence[Any]]:
    names = list(getattr(model, "feature_names_in_", getattr(model, "feature_names_", ())))  # the latter of CatBoost

    def predict(frame: pandas.DataFrame) -> Any:
        if names and names != list(frame.columns) and set(names) <= set(frame.columns):
            frame = frame[names]
        if type(model).__module__.startswith(_BOOSTERS):
            frame = as_fitted(frame, model)
        return _asked(model, frame, inference_args, method, named=named)

    return predict_examples(batch, predict, model), batch


class SklearnModelHandlerPandas(SklearnModelHandler[pandas.DataFrame], TakesColumns[pandas.DataFrame, BaseEstimator]):
    """Predicts for pandas frames: an example is a DataFrame with one row, a dict, a named tuple or a ``beam.Row``.

    All rows of a batch go to the model in one frame, and columns that it was not fitted on are left out.

    Args:
        inference_fn: ``(model, batch, inference_args)`` returns a pair: the predictions, one for each example of the
            batch or a dict of such sequences, and the examples to put beside them. By default ``model.predict`` gets
            the concatenated frames, with ``inference_args`` as its keyword arguments.
        options: those of ``headrace.ModelHandler``. All others, and errors, are those of ``SklearnModelHandlerNumpy``,
            without ``takes_texts``.
    """

    takes = Takes(Form.FRAME)

    _default_inference_fn = staticmethod(_predict_frames)

    def refuse_types(self, model: BaseEstimator, types: Mapping[str, Any]) -> None:
        """Raises ConfigurationError for a column of text where an encoder was fitted on numbers, or the reverse.

        ``types`` says what the columns hold: names such as ``"str"`` and ``"int"``, or dtypes.
        """
        refuse_other_kinds(model, types)

    def _called(self, batch: Any, model: Any, inference_args: dict[str, Any] | None) -> Iterable[PredictionResult]:
        batch = examples_of(batch, rows_too=self.columns_equal_rows())
        predictions, examples = self._inference_fn(model, batch, inference_args)
        return to_results(examples, predictions, self._model_uri)

    def _rows_of(self, columns: Any) -> Any:
        is_batch = self.columns_equal_rows() and hasattr(columns, "num_rows")
        return columns if is_batch else as_frame(columns)

    def _answer(self, rows: Any, model: BaseEstimator, inference_args: dict[str, Any] | None) -> Any:
        predictions, _ = self._inference_fn(model, [rows], inference_args)
        return predictions

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Bytes of the frames, their indexes and strings included; of a large batch estimated from some of them."""
        return bytes_of(batch)

    def example_from_row(self, row: Mapping[str, Any]) -> pandas.DataFrame:
        """A row as a frame with the same columns, and values of the same types: text stays text.

        In a column that is known to hold numbers, a missing one is NaN, and in one of floats an integer is a float.
        """
        return frame_of_rows([row])


def _of_skops(file: BinaryIO, trusted: Sequence[str]) -> BaseEstimator:
    with extra_required("skops"):
        from skops import io  # noqa: PLC0415 - an extra of its own
        from skops.io.exceptions import UntrustedTypesFoundException  # noqa: PLC0415 - as above
    try:
        return io.load(file, trusted=trusted)
    except UntrustedTypesFoundException as error:
        said = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"{said} If you trust the author of the model, name them: trusted=[...], on the command line --handler-arg "
            "trusted='[\"...\"]'."
        ) from error


def _asked(
    model: BaseEstimator, rows: Any, inference_args: dict[str, Any] | None, method: str, *, named: bool = False
) -> Any:
    """What the model's ``method`` says of each row; ``named``: values have the model's names in a structured array."""
    answer = single_output(getattr(model, method)(rows, **(inference_args or {})))
    if method != "predict":
        if isinstance(answer, list):  # an array for each output of the model
            return [list(row) for row in zip(*answer, strict=True)]
        answer = answer.toarray() if hasattr(answer, "toarray") else numpy.asarray(answer)
    return with_names(answer, _names(model, method)) if named else answer


def _names(model: BaseEstimator, method: str) -> Sequence[Any]:
    with suppress(Exception):  # a model that has no names, or cannot tell them
        if method == "transform":
            return list(model.get_feature_names_out())
        if method == "predict_proba" or "ovo" not in model.get_params().values():  # those are pairs of classes
            return list(model.classes_) if method != "predict" else ()
    return ()

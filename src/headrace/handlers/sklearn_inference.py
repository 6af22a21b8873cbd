"""Runs scikit-learn models on numpy arrays or pandas frames; arguments as ``apache_beam.ml.inference``'s handlers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from headrace.core.card import HandlerCard
from headrace.core.conversion import in_groups, parsed, single_output, to_matrix, to_numbers, to_results
from headrace.core.errors import ConfigurationError, MissingExtraError
from headrace.core.files import open_uri
from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult

try:
    import joblib
except ImportError as error:
    raise MissingExtraError("joblib", "sklearn") from error
try:
    import numpy
except ImportError as error:
    raise MissingExtraError("numpy", "sklearn") from error
try:
    import pandas
except ImportError as error:
    raise MissingExtraError("pandas", "sklearn") from error
try:
    from sklearn.base import BaseEstimator
except ImportError as error:
    raise MissingExtraError("scikit-learn", "sklearn") from error

from headrace.handlers.array_batches import stacked_alike

__all__ = ["ModelFileType", "SklearnModelHandlerNumpy", "SklearnModelHandlerPandas"]

_WEIGHTS = "mapped; trees and forests copy their nodes in each process"
_THREADS = "safe"

ArrayT = TypeVar("ArrayT")

NumpyInferenceFn = Callable[[BaseEstimator, Sequence["numpy.ndarray[Any, Any]"], "dict[str, Any] | None"], Any]
PandasInferenceFn = Callable[
    [BaseEstimator, Sequence[pandas.DataFrame], "dict[str, Any] | None"], "tuple[Any, Iterable[pandas.DataFrame]]"
]


class ModelFileType(Enum):
    """How a model was written to its file."""

    PICKLE = 1
    JOBLIB = 2


class _SklearnModelHandler(ModelHandler[ArrayT, PredictionResult, BaseEstimator]):
    """What the two handlers have in common: the file."""

    _default_inference_fn: Callable[..., Any]

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        model_file_type: ModelFileType = ModelFileType.PICKLE,
        *,
        inference_fn: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._model_uri = os.fspath(model_uri)
        self._model_file_type = _as_file_type(model_file_type)
        self._inference_fn = inference_fn or self._default_inference_fn

    def load_model(self) -> BaseEstimator:
        """The model in the file."""
        with open_uri(self._model_uri) as file:
            return pickle.load(file) if self._model_file_type is ModelFileType.PICKLE else joblib.load(file)

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` read another file; ``None`` leaves it as it is."""
        self._model_uri = model_path or self._model_uri

    def columns_equal_rows(self) -> bool:
        """Whether ``run_columns`` predicts what ``run_inference`` does: an ``inference_fn`` may need single rows."""
        return self._inference_fn is self._default_inference_fn

    def get_metrics_namespace(self) -> str:
        """Beam's for scikit-learn."""
        return "BeamML_Sklearn"


def _predict_arrays(model: BaseEstimator, batch: Any, inference_args: dict[str, Any] | None = None) -> Any:
    return stacked_alike(batch, lambda rows: single_output(model.predict(rows, **(inference_args or {}))))


def _predict_frames(
    model: BaseEstimator, batch: Sequence[pandas.DataFrame], inference_args: dict[str, Any] | None = None
) -> tuple[Any, Sequence[pandas.DataFrame]]:
    names = getattr(model, "feature_names_in_", None)

    def predict(frames: Sequence[pandas.DataFrame]) -> Any:
        return single_output(model.predict(_concatenated(frames, names), **(inference_args or {})))

    return in_groups(batch, _kind, predict), batch


class SklearnModelHandlerNumpy(_SklearnModelHandler["numpy.ndarray[Any, Any]"]):
    """Predicts for numpy arrays: an example is an array of any shape (usually one row of features, 1-D).

    Args:
        model_uri: path or URI of the model's file.
        model_file_type: whether the file was written with pickle or with joblib.
        inference_fn: ``(model, batch, inference_args)`` gives one prediction for each example of the batch, or a
            dict of such sequences; by default the arrays are stacked and given to ``model.predict``, with
            ``inference_args`` as its keyword arguments.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: ``model_file_type`` is no ModelFileType.
    """

    card = HandlerCard("a numpy array", "what `model.predict` says of it", _WEIGHTS, _THREADS, "sklearn")

    _default_inference_fn = staticmethod(_predict_arrays)

    def run_inference(
        self,
        batch: Sequence[numpy.ndarray[Any, Any]],
        model: BaseEstimator,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionResult]:
        """Predicts; arrays of equal dtype and shape go together."""
        return to_results(batch, self._inference_fn(model, batch, inference_args), self._model_uri)

    def run_columns(
        self, columns: Any, model: BaseEstimator, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Predicts for all rows of a matrix, or of columns that make one of 64-bit floats.

        It is the batch of an ``inference_fn``.
        """
        predictions = self._inference_fn(model, to_matrix(columns, numpy, "float64"), inference_args)
        return PredictionResult(columns, predictions, self._model_uri)

    def get_num_bytes(self, batch: Sequence[numpy.ndarray[Any, Any]]) -> int:
        """Bytes of the arrays' elements; lists of numbers count as the arrays that they become."""
        return sum(numpy.asarray(array).nbytes for array in batch)

    def example_from_row(self, row: Mapping[str, Any]) -> numpy.ndarray[Any, Any]:
        """A row's columns, in their order, as a 1-D array of 64-bit floats.

        Raises:
            ValueError: a value is no finite number; names the column and the value.
        """
        return numpy.array(to_numbers(row))


class SklearnModelHandlerPandas(_SklearnModelHandler[pandas.DataFrame]):
    """Predicts for pandas frames: an example is a DataFrame with one row.

    Args:
        model_uri: path or URI of the model's file.
        model_file_type: whether the file was written with pickle or with joblib.
        inference_fn: ``(model, batch, inference_args)`` gives the predictions, one for each example of the batch or a
            dict of such sequences, and the examples to put beside them; by default the frames are put together and
            given to ``model.predict``, with ``inference_args`` as its keyword arguments.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: ``model_file_type`` is no ModelFileType.
    """

    card = HandlerCard("a DataFrame with one row", "what `model.predict` says of it", _WEIGHTS, _THREADS, "sklearn")

    _default_inference_fn = staticmethod(_predict_frames)

    def run_inference(
        self,
        batch: Sequence[pandas.DataFrame],
        model: BaseEstimator,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionResult]:
        """Predicts for frames of one row.

        Raises:
            ValueError: a frame has more rows or none.
        """
        _refuse_several_rows(batch)
        predictions, examples = self._inference_fn(model, batch, inference_args)
        return to_results(examples, predictions, self._model_uri)

    def run_columns(
        self, columns: Any, model: BaseEstimator, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Predicts for all rows of a data frame, or of columns that make one, which is the batch's only example.

        Of what is no data frame yet, numbers become 64-bit floats, as those of a row do.
        """
        frame = columns if isinstance(columns, pandas.DataFrame) else _frame(columns)
        predictions, _ = self._inference_fn(model, [frame], inference_args)
        return PredictionResult(columns, predictions, self._model_uri)

    def get_num_bytes(self, batch: Sequence[pandas.DataFrame]) -> int:
        """Bytes of the frames, their indexes and strings included."""
        return sum(int(frame.memory_usage(deep=True).sum()) for frame in batch)

    def example_from_row(self, row: Mapping[str, Any]) -> pandas.DataFrame:
        """A row as a frame with the same columns; numbers, and strings that as a whole are numbers, as 64-bit floats.

        Whatever a row holds, its column is then of one type in all rows, and batches of them go to the model whole.
        """
        return pandas.DataFrame([{column: _as_float(parsed(value)) for column, value in row.items()}])


def _as_file_type(given: Any) -> ModelFileType:
    """By its name, so that Beam's enumeration is understood too."""
    name: Any = getattr(given, "name", None)
    if name not in ModelFileType.__members__:
        raise ConfigurationError(
            f"model_file_type must be ModelFileType.PICKLE or ModelFileType.JOBLIB, not {given!r}."
        )
    return ModelFileType[name]


def _refuse_several_rows(batch: Sequence[pandas.DataFrame]) -> None:
    for frame in batch:
        if len(frame) != 1:
            raise ValueError(
                f"an example must be a DataFrame with a single row; this one's shape is {frame.shape}: "
                "split it, one frame for each row, for example with frame.iloc[[i]]."
            )


def _as_float(value: Any) -> Any:
    is_number = isinstance(value, int | float | numpy.number) and not isinstance(value, bool)
    return float(value) if is_number else value


def _frame(columns: Any) -> pandas.DataFrame:
    """Arrow's columns, or those of a dict, with numbers as 64-bit floats."""
    frame = columns.to_pandas() if hasattr(columns, "to_pandas") else pandas.DataFrame(columns)
    numbers = frame.dtypes[[dtype.kind in "iuf" for dtype in frame.dtypes]].index
    return frame.astype(dict.fromkeys(numbers, "float64"))


def _kind(frame: pandas.DataFrame) -> tuple[Any, ...]:
    """What frames must have in common to be put together: else pandas fills columns, moves them, and converts both."""
    return (*frame.columns, *frame.dtypes)


def _concatenated(alike: Sequence[pandas.DataFrame], names: Sequence[Any] | None) -> pandas.DataFrame:
    """One frame, whose columns are in the order of ``names``, by which the model was fitted, if it knows them."""
    together = pandas.concat(alike) if len(alike) > 1 else alike[0]
    return together if names is None or set(names) != set(together.columns) else together[list(names)]

"""Runs scikit-learn models on pandas frames; arguments as ``apache_beam.ml.inference``'s handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.core.conversion import in_groups, parsed, single_output, to_results
from headrace.core.errors import MissingExtraError
from headrace.core.result import PredictionResult
from headrace.handlers.cards import CARDS

try:
    import numpy
except ImportError as error:
    raise MissingExtraError("numpy", "sklearn") from error
try:
    import pandas
except ImportError as error:
    raise MissingExtraError("pandas", "sklearn") from error

from headrace.handlers.sklearn_models import BaseEstimator, SklearnModelHandler

__all__ = ["SklearnModelHandlerPandas"]


PandasInferenceFn = Callable[
    [BaseEstimator, Sequence[pandas.DataFrame], "dict[str, Any] | None"], "tuple[Any, Iterable[pandas.DataFrame]]"
]


def _predict_frames(
    model: BaseEstimator, batch: Sequence[pandas.DataFrame], inference_args: dict[str, Any] | None = None
) -> tuple[Any, Sequence[pandas.DataFrame]]:
    names = getattr(model, "feature_names_in_", None)

    def predict(frames: Sequence[pandas.DataFrame]) -> Any:
        return single_output(model.predict(_concatenated(frames, names), **(inference_args or {})))

    return in_groups(batch, _kind, predict), batch


class SklearnModelHandlerPandas(SklearnModelHandler[pandas.DataFrame]):
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

    card = CARDS["sklearn_inference.SklearnModelHandlerPandas"]

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

"""Runs scikit-learn models on pandas frames; arguments as ``apache_beam.ml.inference``'s handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.core.columns import Form, Takes
from headrace.core.errors import extra_required
from headrace.core.result import PredictionResult
from headrace.handlers.cards import CARDS

with extra_required("sklearn"):
    import pandas

from headrace.handlers.data_frames import as_row, bytes_of, frame_of_rows, predict_examples
from headrace.handlers.sklearn_categories import refuse_other_kinds
from headrace.handlers.sklearn_models import BaseEstimator, SklearnModelHandler, asked

__all__ = ["SklearnModelHandlerPandas"]


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
        model_uri: path or URI of the model's file.
        model_file_type: whether the file was written with pickle, joblib or skops.
        inference_fn: ``(model, batch, inference_args)`` returns a pair: the predictions, one for each example of the
            batch or a dict of such sequences, and the examples to put beside them. By default ``model.predict`` gets
            the concatenated frames, with ``inference_args`` as its keyword arguments.
        method: what the model is asked for: ``"predict"``, ``"predict_proba"``, ``"decision_function"`` or
            ``"transform"``.
        trusted: of a file of skops, the types that may be loaded besides those that skops itself trusts.
        options: those of ``headrace.ModelHandler``.

    Raises:
        ConfigurationError: ``model_file_type`` is not a ModelFileType, or is not skops and types are ``trusted``;
            ``method`` is none of these, or goes with an ``inference_fn``.
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

"""Runs scikit-learn models on pandas frames; arguments as ``apache_beam.ml.inference``'s handler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.core.conversion import predict_by_kind
from headrace.core.errors import extra_required
from headrace.core.result import PredictionResult
from headrace.handlers.cards import CARDS

with extra_required("sklearn"):
    import pandas

from headrace.handlers.sklearn_categories import refuse_other_kinds
from headrace.handlers.sklearn_models import BaseEstimator, SklearnModelHandler, asked

__all__ = ["SklearnModelHandlerPandas"]


PandasInferenceFn = Callable[
    [BaseEstimator, Sequence[pandas.DataFrame], "dict[str, Any] | None"], "tuple[Any, Iterable[pandas.DataFrame]]"
]


def _predict_frames(
    model: BaseEstimator,
    batch: Sequence[pandas.DataFrame],
    inference_args: dict[str, Any] | None = None,
    method: str = "predict",
    *,
    named: bool = False,
) -> tuple[Any, Sequence[pandas.DataFrame]]:
    names = getattr(model, "feature_names_in_", None)

    def predict(frames: Sequence[pandas.DataFrame]) -> Any:
        return asked(model, _concatenated(frames, names), inference_args, method, named=named)

    return predict_by_kind(batch, _kind, predict), batch


class SklearnModelHandlerPandas(SklearnModelHandler[pandas.DataFrame]):
    """Predicts for pandas frames: an example is a DataFrame with one row.

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

    takes_frames = True
    """A one-row frame of a table is an example as it is."""

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
        """Predicts for all rows of a data frame, or of columns that make one; it is the batch's only example."""
        frame = columns.to_pandas() if hasattr(columns, "to_pandas") else pandas.DataFrame(columns)
        predictions, _ = self._inference_fn(model, [frame], inference_args)
        return PredictionResult(columns, predictions, self._model_uri)

    def get_num_bytes(self, batch: Sequence[pandas.DataFrame]) -> int:
        """Bytes of the frames, their indexes and strings included."""
        return sum(int(frame.memory_usage(deep=True).sum()) for frame in batch)

    def example_from_row(self, row: Mapping[str, Any]) -> pandas.DataFrame:
        """A row as a frame with the same columns, and values of the same types: text stays text.

        In a column that is known to hold numbers, a missing one is NaN, and in one of floats an integer is a float: so
        a batch of rows needs a single call of the model.
        """
        types = getattr(row, "types", {})
        return pandas.DataFrame([{column: _as_stated(value, types.get(column)) for column, value in row.items()}])

    def _predict(self, model: BaseEstimator, batch: Any, inference_args: dict[str, Any] | None) -> tuple[Any, Any]:
        _refuse_several_rows(batch)
        answer: tuple[Any, Any] = self._inference_fn(model, batch, inference_args)
        return answer


def _refuse_several_rows(batch: Sequence[pandas.DataFrame]) -> None:
    for frame in batch:
        if len(frame) != 1:
            raise ValueError(
                f"an example must be a DataFrame with a single row; this one's shape is {frame.shape}: "
                "split it, one frame for each row, for example with frame.iloc[[i]]."
            )


def _as_stated(value: Any, kind: str | None) -> Any:
    if value is None and kind in ("int", "float"):
        return math.nan
    return float(value) if kind == "float" and type(value) is int else value


def _kind(frame: pandas.DataFrame) -> tuple[Any, ...]:
    """What frames must share to be concatenated: otherwise pandas fills, reorders and converts columns."""
    return (*frame.columns, *frame.dtypes)


def _concatenated(alike: Sequence[pandas.DataFrame], names: Sequence[Any] | None) -> pandas.DataFrame:
    """One frame; its columns are in the order in which the model was fitted, ``names``, if they are the same."""
    together = pandas.concat(alike) if len(alike) > 1 else alike[0]
    return together if names is None or set(names) != set(together.columns) else together[list(names)]

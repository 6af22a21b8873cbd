"""Shared by the handlers of scikit-learn models: loading the model from its file."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, BinaryIO, TypeVar

from headrace.core.beam_compat import with_beams_attributes
from headrace.core.conversion import single_output, to_results
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.files import open_uri
from headrace.core.result import PredictionResult
from headrace.handlers.array_batches import with_names
from headrace.handlers.base import EstimatorHandler, as_member, refuse_lack_of

with extra_required("sklearn"):
    import joblib
    import numpy
    from sklearn.base import BaseEstimator

__all__ = ["BaseEstimator", "ModelFileType", "SklearnModelHandler", "asked"]

ArrayT = TypeVar("ArrayT")


class ModelFileType(Enum):
    """How a model was written to its file."""

    PICKLE = 1
    JOBLIB = 2
    SKOPS = 3


@with_beams_attributes
class SklearnModelHandler(EstimatorHandler[ArrayT, BaseEstimator]):
    """Loads the model from its file; subclasses know their examples.

    Args:
        model_uri: path or URI of the model's file.
        model_file_type: whether the file was written with pickle, joblib or skops.
        inference_fn: in place of the call of the model.
        method: what the model is asked for: ``"predict"``, ``"predict_proba"``, ``"decision_function"`` or
            ``"transform"``.
        trusted: of a file of skops, the types that may be loaded besides those that skops itself trusts.
        options: those of ``headrace.ModelHandler``.
    """

    mappable = True

    _metrics_namespace = "BeamML_Sklearn"

    def __init__(
        self,
        model_uri: str | os.PathLike[str],
        model_file_type: ModelFileType = ModelFileType.PICKLE,
        *,
        inference_fn: Callable[..., Any] | None = None,
        method: str = "predict",
        trusted: str | Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(model_uri, inference_fn, method, **options)
        self._model_file_type = as_member(ModelFileType, model_file_type, "model_file_type")
        self._trusted = [trusted] if isinstance(trusted, str) else list(trusted)
        if self._trusted and self._model_file_type is not ModelFileType.SKOPS:
            raise ConfigurationError("trusted goes with model_file_type=ModelFileType.SKOPS.")

    def load_model(self) -> BaseEstimator:
        """The model in the file.

        Raises:
            ConfigurationError: it does not have the ``method``, or a file of skops has objects of types that are not
                trusted.
        """
        with open_uri(self._model_uri) as file:
            model = self._in(file)
        if self._method != "predict":  # the user's inference_fn may need none
            refuse_lack_of(self._method, model)
        return model

    def _in(self, file: BinaryIO) -> BaseEstimator:
        if self._model_file_type is ModelFileType.SKOPS:
            return _of_skops(file, self._trusted)
        return pickle.load(file) if self._model_file_type is ModelFileType.PICKLE else joblib.load(file)

    def run_inference(
        self, batch: Sequence[ArrayT], model: BaseEstimator, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Predicts; arrays of equal dtype and shape, or frames of equal columns and dtypes, share a call.

        Raises:
            ValueError: a frame does not have exactly one row.
        """
        predictions, examples = self._predict(model, batch, inference_args)
        return to_results(examples, predictions, self._model_uri)

    def _predict(self, model: BaseEstimator, batch: Any, inference_args: dict[str, Any] | None) -> tuple[Any, Any]:
        """The predictions, and the examples to put beside them."""
        return self._inference_fn(model, batch, inference_args), batch


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


def asked(
    model: BaseEstimator, rows: Any, inference_args: dict[str, Any] | None, method: str, *, named: bool = False
) -> Any:
    """What a method of the model says of rows, one item for each.

    Args:
        model: has the method.
        rows: a matrix or a frame.
        inference_args: keyword arguments of the method.
        method: its name.
        named: whether the values of an item have names, where the model knows some: in a structured array.
    """
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

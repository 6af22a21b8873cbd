"""What the handlers of scikit-learn models share: the model and its file."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from headrace.core.errors import ConfigurationError, MissingExtraError
from headrace.core.files import open_uri
from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult

try:
    import joblib
except ImportError as error:
    raise MissingExtraError("joblib", "sklearn") from error
try:
    from sklearn.base import BaseEstimator
except ImportError as error:
    raise MissingExtraError("scikit-learn", "sklearn") from error

__all__ = ["BaseEstimator", "ModelFileType", "SklearnModelHandler"]

ArrayT = TypeVar("ArrayT")


class ModelFileType(Enum):
    """How a model was written to its file."""

    PICKLE = 1
    JOBLIB = 2


class SklearnModelHandler(ModelHandler[ArrayT, PredictionResult, BaseEstimator]):
    """Loads the model from its file; subclasses know their examples."""

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


def _as_file_type(given: Any) -> ModelFileType:
    """By its name, so that Beam's enumeration is understood too."""
    name: Any = getattr(given, "name", None)
    if name not in ModelFileType.__members__:
        raise ConfigurationError(
            f"model_file_type must be ModelFileType.PICKLE or ModelFileType.JOBLIB, not {given!r}."
        )
    return ModelFileType[name]

"""What handlers have in common whose model is at one path, URI or name."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, TypeVar

from headrace.core.errors import ConfigurationError
from headrace.core.handler import ExampleT, ModelHandler, ModelT
from headrace.core.result import PredictionResult
from headrace.core.spelling import did_you_mean

_METHODS = ("predict", "predict_proba", "decision_function", "transform")
"""What an estimator can be asked for."""

EnumT = TypeVar("EnumT", bound=Enum)


class NoModelError(ConfigurationError, RuntimeError):
    """Arguments that name no model, half of one, or two; also a RuntimeError, as Beam raises here."""


class UriModelHandler(ModelHandler[ExampleT, PredictionResult, ModelT]):
    """Keeps the place of the model, and the function that runs it: ``inference_fn``, or ``_default_inference_fn``.

    Args:
        model_uri: path, URI or name of the model.
        options: those of ``headrace.ModelHandler``.
    """

    _metrics_namespace: ClassVar[str] = "RunInference"
    _default_inference_fn: ClassVar[Any] = None
    """None: the handler takes no ``inference_fn``."""

    def __init__(
        self, model_uri: str | os.PathLike[str], inference_fn: Callable[..., Any] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        if inference_fn is not None and self._default_inference_fn is None:
            raise ConfigurationError(
                f"{type(self).__qualname__} has no argument 'inference_fn'; change what the model is given, and its "
                "predictions, with with_preprocess_fn and with_postprocess_fn, or in a subclass's run_inference."
            )
        self._model_uri = os.fspath(model_uri)
        self._inference_fn = inference_fn or self._default_inference_fn

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` load from another path; ``None`` leaves it as it is."""
        self._model_uri = model_path or self._model_uri

    def columns_equal_rows(self) -> bool:
        """Whether ``run_columns``, if there is one, predicts what ``run_inference`` does.

        An ``inference_fn`` of the user's may need single rows.
        """
        return getattr(self._inference_fn, "func", self._inference_fn) is self._default_inference_fn

    def get_metrics_namespace(self) -> str:
        """Beam's for this framework."""
        return self._metrics_namespace


class FrameworkHandler(UriModelHandler[ExampleT, ModelT]):
    """Computes in this process: calls the ``inference_fn`` with what its framework's take."""

    def run_inference(
        self, batch: Sequence[ExampleT], model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Predicts; examples of one kind, such as arrays of equal dtype and shape, share a call."""
        return self._called(batch, model, inference_args)

    def _called(self, batch: Any, model: Any, inference_args: dict[str, Any] | None) -> Iterable[PredictionResult]:
        """What the ``inference_fn`` makes of a batch, as results."""
        raise NotImplementedError  # each framework's handler does it


class TakesColumns(FrameworkHandler[ExampleT, ModelT]):
    """Predicts for all rows of columns at once, too."""

    def run_columns(
        self, columns: Any, model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> PredictionResult:
        """Predicts for all rows of columns, or of an array; an ``inference_fn`` gets what the model would."""
        answer = self._answer(self._rows_of(columns), model, inference_args)
        return PredictionResult(columns, answer, self._model_uri or None)

    def _rows_of(self, columns: Any) -> Any:
        """What the model takes of columns: an array with a row for each, several of them by name, or a frame."""
        raise NotImplementedError  # each framework's handler does it

    def _answer(self, rows: Any, model: Any, inference_args: dict[str, Any] | None) -> Any:
        """The predictions for such rows, as an array if possible."""
        return [result.inference for result in self._called(rows, model, inference_args)]


class EstimatorHandler(FrameworkHandler[ExampleT, ModelT]):
    """For models that can be asked for more than predictions; the default ``inference_fn`` takes the ``method``.

    Raises:
        ConfigurationError: there is no such method; or an ``inference_fn`` is given, which decides itself.
    """

    _method = "predict"

    def __init__(
        self, model_uri: str | os.PathLike[str], inference_fn: Callable[..., Any] | None, method: str, **options: Any
    ) -> None:
        super().__init__(model_uri, inference_fn, **options)
        if method not in _METHODS:
            names = f"{', '.join(_METHODS[:-1])} or {_METHODS[-1]}"
            raise ConfigurationError(f"method is {names}, not {method!r}{did_you_mean(str(method), _METHODS)}")
        if method != "predict" and not self.columns_equal_rows():
            raise ConfigurationError("an inference_fn decides what the model is asked for; leave method out.")
        self._method = method
        self._ask(named=False)

    def with_named_outputs(self) -> Any:
        """A copy: predictions of several values have the model's names for these, in a structured array."""
        other = copy.copy(self)
        other._ask(named=True)
        return other

    def _ask(self, *, named: bool) -> None:
        if self.columns_equal_rows() and (named or self._method != "predict"):
            self._inference_fn = partial(self._default_inference_fn, method=self._method, named=named)


def refuse_lack_of(method: str, model: Any) -> None:
    """Raises ConfigurationError if a model, or a class of models, does not have a method."""
    if not hasattr(model, method):
        known = [one for one in _METHODS if hasattr(model, one)]
        name = (model if isinstance(model, type) else type(model)).__name__
        raise ConfigurationError(f"method={method!r}: {name} has no {method}; it has {' and '.join(known) or 'none'}.")


def as_member(kind: type[EnumT], given: Any, argument: str) -> EnumT:
    """A member of an enumeration, found by its name, so that a member of Beam's is understood, too."""
    name: Any = getattr(given, "name", None)
    if name not in kind.__members__:
        members = " or ".join(map(str, kind))
        raise ConfigurationError(f"{argument} must be {members}, not {given!r}.")
    return kind[name]

"""What handlers have in common whose model is at one path, URI or name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, ClassVar, TypeVar

from headrace.core.answer import predictions_of
from headrace.core.errors import ConfigurationError
from headrace.core.handler import ExampleT, ModelHandler, ModelT
from headrace.core.result import PredictionResult

__all__ = ["UriModelHandler", "as_member", "with_model_id"]

EnumT = TypeVar("EnumT", bound=Enum)


class UriModelHandler(ModelHandler[ExampleT, PredictionResult, ModelT]):
    """Keeps the place of the model, and the function that runs it.

    Args:
        model_uri: path, URI or name of the model.
        inference_fn: in place of the class's ``_default_inference_fn``; None: that one.
        options: those of ``headrace.ModelHandler``.
    """

    _metrics_namespace: ClassVar[str] = "RunInference"
    _default_inference_fn: ClassVar[Any] = None
    """None: the handler takes no ``inference_fn``."""

    def __init__(
        self, model_uri: str | os.PathLike[str], inference_fn: Callable[..., Any] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._model_uri = os.fspath(model_uri)
        self._inference_fn = inference_fn or self._default_inference_fn

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` load from another path; ``None`` leaves it as it is."""
        self._model_uri = model_path or self._model_uri

    def columns_equal_rows(self) -> bool:
        """Whether ``run_columns``, if there is one, predicts what ``run_inference`` does.

        An ``inference_fn`` of the user's may need single rows.
        """
        return self._inference_fn is self._default_inference_fn

    def get_metrics_namespace(self) -> str:
        """Beam's for this framework."""
        return self._metrics_namespace


def with_model_id(results: Any, model_id: str | None) -> Iterator[Any]:
    """An ``inference_fn``'s results; those that name no model get ``model_id``."""
    for result in predictions_of(results, "inference_fn"):
        is_anonymous = isinstance(result, PredictionResult) and result.model_id is None
        yield result._replace(model_id=model_id) if is_anonymous else result


def as_member(kind: type[EnumT], given: Any, argument: str) -> EnumT:
    """A member of an enumeration, found by its name, so that a member of Beam's is understood, too.

    Raises:
        ConfigurationError: there is no member of that name; names the ``argument``.
    """
    name: Any = getattr(given, "name", None)
    if name not in kind.__members__:
        members = " or ".join(map(str, kind))
        raise ConfigurationError(f"{argument} must be {members}, not {given!r}.")
    return kind[name]

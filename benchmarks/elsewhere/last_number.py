"""A model that computes nothing, so that only the round trip takes time, with its handlers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from headrace import ModelHandler, PredictionResult
from headrace.hosts.host import RequestHandler, Response


class LastNumber:
    """The model."""

    def predict(self, batch: Sequence[np.ndarray]) -> list[float]:
        """The last number of each array."""
        return [float(one[-1]) for one in batch]


class LastNumberHandler(ModelHandler[np.ndarray, PredictionResult, LastNumber]):
    """Calls a model that may be shared once for each batch, and makes the results outside of it."""

    def load_model(self) -> LastNumber:
        """Takes no time."""
        return LastNumber()

    def run_inference(
        self, batch: Sequence[np.ndarray], model: LastNumber, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Each array with its last number."""
        return map(PredictionResult, batch, model.predict(batch))

    def get_num_bytes(self, batch: Sequence[np.ndarray]) -> int:
        """As Headrace's handlers of arrays count; by default the batch is pickled, 2 microseconds for each array."""
        return sum(one.nbytes for one in batch)


class LastNumberRequestHandler(RequestHandler):
    """Serves a bare host: only calls the handler."""

    def __init__(self) -> None:
        self._handler = LastNumberHandler()
        self._model = self._handler.load_model()

    def answer(self, head: Any, rows: list[Any], progress: Any) -> Response:
        """The rows' predictions."""
        return Response(head, list(self._handler.run_inference(rows, self._model)))

    def unreadable(self, error: Exception) -> Response:
        """Never called here."""
        raise error

    def unsendable(self, answer: Response, error: Exception) -> Response:
        """Never called here."""
        raise error

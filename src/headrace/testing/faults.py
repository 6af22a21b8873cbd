"""Handlers that go wrong, each in one way, so that a test can see what becomes of the elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace.core.result import PredictionResult
from headrace.testing.fakes import Doubler, DoublingHandler


class PoisonHandler(DoublingHandler):
    """Doubles, but raises on any batch that holds a poisonous example.

    Args:
        poison: the poisonous examples.
        error: what to raise.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, *poison: Any, error: type[Exception] = ValueError, **options: Any) -> None:
        super().__init__(**options)
        self._poison = poison
        self._error = error

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Raises ``error`` if the batch is poisoned."""
        poisoned = [example for example in batch if example in self._poison]
        if poisoned:
            raise self._error(f"poisonous examples: {poisoned}")
        return super().run_inference(batch, model, inference_args)


class MiscountingHandler(DoublingHandler):
    """Doubles, but gives too few or too many predictions.

    Args:
        surplus: how many predictions more than examples; negative for fewer.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, surplus: int, **options: Any) -> None:
        super().__init__(**options)
        self._surplus = surplus

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """The first predictions of the batch where there are to be fewer, its last one repeated for more."""
        predictions = list(super().run_inference(batch, model, inference_args))
        kept = max(0, len(predictions) + min(0, self._surplus))
        return predictions[:kept] + predictions[-1:] * self._surplus


class NoneHandler(DoublingHandler):
    """Forgets to return its predictions."""

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Returns None."""
        super().run_inference(batch, model, inference_args)
        return None  # type: ignore[return-value]


class BrokenGeneratorHandler(DoublingHandler):
    """Gives its predictions lazily and raises on the way, after its call has returned.

    Args:
        good: how many predictions come before the error; a batch of so many or fewer goes well.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, good: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self._good = good

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterator[PredictionResult]:
        """Raises RuntimeError when asked for one prediction too many."""
        for place, prediction in enumerate(super().run_inference(batch, model, inference_args)):
            if place >= self._good:
                raise RuntimeError(f"broke after {self._good} predictions")
            yield prediction


class MemoryHungryHandler(DoublingHandler):
    """Doubles, but runs out of memory on large batches.

    Args:
        limit: the largest batch that fits, in examples.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, limit: int, **options: Any) -> None:
        super().__init__(**options)
        self._limit = limit

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Raises MemoryError above the limit."""
        if len(batch) > self._limit:
            raise MemoryError(f"out of memory: {len(batch)} examples, of which {self._limit} fit")
        return super().run_inference(batch, model, inference_args)


class BrokenLoadHandler(DoublingHandler):
    """Has a model that cannot be loaded.

    Args:
        error: what to raise.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, error: type[Exception] = OSError, **options: Any) -> None:
        super().__init__(**options)
        self._error = error

    def load_model(self) -> Doubler:
        """Raises ``error``."""
        raise self._error("the model cannot be loaded")

"""A clock, and handlers that work, without a framework: small, exact, and picklable without cloudpickle.

The handlers also take the options of ``headrace.ModelHandler``.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.core.handler import ModelHandler
from headrace.core.result import PredictionResult

Doubler = Callable[[Any], Any]

_START_NS = 1_000_000_000_000_000_000
"""Far from zero, so that a duration is not mistaken for a point in time."""
_LOADS: Counter[str] = Counter()
_LOADS_LOCK = threading.Lock()


class FakeClock:
    """A clock for ``RunInference(clock=...)``, ``BatchingConfig(clock=clock.seconds)`` and everything that takes one.

    It starts at the same time in every test and moves only by ``advance``; thread-safe. A pickled copy is another
    clock, which starts at the time of its original.
    """

    def __init__(self) -> None:
        self._now_ns = _START_NS
        self._lock = threading.Lock()

    def time_ns(self) -> int:
        """The time in nanoseconds."""
        return self._now_ns

    def seconds(self) -> float:
        """The time in seconds."""
        return self._now_ns / 1e9

    def advance(self, seconds: float) -> None:
        """Lets ``seconds`` pass, at least 0."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: advance({seconds}).")
        with self._lock:
            self._now_ns += round(seconds * 1e9)

    def sleep(self, seconds: float) -> None:
        """Advances the clock without waiting."""
        self.advance(seconds)

    def __getstate__(self) -> int:
        return self._now_ns

    def __setstate__(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()


class DoublingHandler(ModelHandler[Any, PredictionResult, Doubler]):
    """Predicts twice the example: ``3`` gives ``6``, ``"a"`` gives ``"aa"``; takes the options of a ModelHandler."""

    def load_model(self) -> Doubler:
        """Returns a function."""
        return double

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Returns a PredictionResult for each example; ``inference_args`` have no effect."""
        self._check(batch)
        return self._changed([PredictionResult(example, model(example)) for example in batch])

    def _check(self, batch: Sequence[Any]) -> None:
        """Of a subclass: looks at a batch first; it may raise, or end the process."""

    def _changed(self, predictions: list[PredictionResult]) -> Iterable[PredictionResult]:
        return predictions


class SlowHandler(DoublingHandler):
    """Doubles, and advances a fake clock by a fixed time for each batch and some time for each of its examples.

    Args:
        clock: the clock to advance: the one that measures batches, as in ``RunInference(clock=...)``.
        fixed: seconds for a batch.
        each: seconds for an example.
    """

    def __init__(self, clock: FakeClock, fixed: float = 1.0, each: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self._clock = clock
        self._fixed = fixed
        self._each = each

    def _check(self, batch: Sequence[Any]) -> None:
        self._clock.advance(self._fixed + self._each * len(batch))


class LoadCountingHandler(DoublingHandler):
    """Doubles, and counts how often its model was loaded in this process, by any thread or pickled copy.

    Args:
        token: handlers with the same token share a count; by default each new handler has its own.
    """

    def __init__(self, token: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._token = token or uuid.uuid4().hex

    @property
    def loads(self) -> int:
        """How often the model was loaded."""
        return _LOADS[self._token]

    def load_model(self) -> Doubler:
        """Counts the load."""
        with _LOADS_LOCK:
            _LOADS[self._token] += 1
        return super().load_model()


def double(example: Any) -> Any:
    """The model."""
    return example * 2

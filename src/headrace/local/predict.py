"""Runs a handler over an iterable without an engine: for notebooks, tests and tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from headrace.core.answer import SKIP
from headrace.core.config import BatchingConfig, Budget, CacheConfig, RetryConfig
from headrace.core.declared_type import PredictingHandler
from headrace.core.errors import BudgetError, ConfigurationError
from headrace.core.handler import ModelHandler, PredictionT
from headrace.core.result import Failure, Outcome, Skipped
from headrace.core.spelling import refusing_unknown
from headrace.rows.tables import elements_of, results_of_blocks, table_or_elements
from headrace.runtime.bundle import AnyBundle
from headrace.runtime.exporting import exporting
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, Placement, catching, prepare
from headrace.runtime.spec import SessionSpec
from headrace.runtime.usage_meter import end_budget, stop_requests, stoppable

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LONGEST_QUEUE = 10_000
"""How many outcomes may wait for an earlier element before incomplete batches are run."""
_DRAIN_SECS = 5.0
"""How long an interrupt waits for requests in flight."""


class PredictOptions(TypedDict, total=False):
    """The options of ``predict`` that do not change what comes out; its docstring says what they mean."""

    columns: str | Sequence[str] | None
    key: str | None
    inference_args: dict[str, Any] | None
    ordered: bool
    placement: Placement
    batching: BatchingConfig | None
    retry: RetryConfig | None
    isolate: bool
    timeout: float | None
    fallback: Any
    cache: str | CacheConfig | None
    budget: Budget | None


@overload
def predict(
    handler: ModelHandler[Any, PredictionT, Any],
    iterable: Iterable[Any],
    *,
    on_failure: Literal["raise"] = "raise",
    **options: Unpack[PredictOptions],
) -> Iterator[PredictionT]: ...
@overload
def predict(
    handler: ModelHandler[Any, PredictionT, Any],
    iterable: Iterable[Any],
    *,
    on_failure: Literal["yield"],
    **options: Unpack[PredictOptions],
) -> Iterator[PredictionT | Failure]: ...
@overload
def predict(
    handler: PredictingHandler[Any, PredictionT],
    iterable: Iterable[Any],
    *,
    on_failure: Literal["raise"] = "raise",
    **options: Unpack[PredictOptions],
) -> Iterator[PredictionT]: ...
@overload
def predict(
    handler: PredictingHandler[Any, PredictionT],
    iterable: Iterable[Any],
    *,
    on_failure: Literal["yield"],
    **options: Unpack[PredictOptions],
) -> Iterator[PredictionT | Failure]: ...
@refusing_unknown
def predict(
    handler: Any,
    iterable: Iterable[Any],
    *,
    columns: str | Sequence[str] | None = None,
    key: str | None = None,
    inference_args: dict[str, Any] | None = None,
    ordered: bool = True,
    on_failure: Literal["raise", "yield"] = "raise",
    placement: Placement = None,
    batching: BatchingConfig | None = None,
    retry: RetryConfig | None = None,
    isolate: bool = False,
    timeout: float | None = None,
    fallback: Any = None,
    cache: str | CacheConfig | None = None,
    budget: Budget | None = None,
) -> Iterator[Any]:
    """Predicts for each element of ``iterable``, lazily, exactly as ``headrace.beam.RunInference`` would.

    Args:
        handler: a model handler, Headrace's or Beam's.
        iterable: the elements, read a few batches ahead at most; of a data frame, an Arrow table or reader, its rows.
        columns: the columns of a table that the handler sees, a single one as its bare values. None: all.
        key: the column of a table that holds the key, for a handler of keyed examples; predictions come without it.
        inference_args: extra arguments for the model's call.
        ordered: whether predictions keep the order of the elements; they never do if an element holds many rows.
        on_failure: ``"raise"``: raises the first exception; ``"yield"``: yields a Failure in place of each bad element.
        placement: where the model lives.
        batching: replaces what the handler's ``batch_elements_kwargs()`` asks for.
        retry: retries a model call after a transient error; by default 3 attempts within 45 seconds.
        isolate: whether the model lives in a host: a process of its own, which may hang, crash or run out of memory.
        timeout: the longest that one operation, or loading the model, may take, in seconds; implies ``isolate``.
        fallback: another handler, for elements that the first one's model could not do; of a list each, in order.
        cache: a file of predictions that were made before: they are not asked for again.
        budget: the prices of requests, and a limit; every answer is yielded before its BudgetError is raised.

    Returns:
        An iterator over predictions (and Failures); skipped elements yield nothing. It has the model until it ends.

    Raises:
        ConfigurationError: at once, if an argument is wrong.
    """
    request = InferenceRequest(inference_args, placement, batching, retry, isolate, timeout, fallback, cache, budget)
    return _predictions(handler, iterable, request, (columns, key), ordered=ordered, on_failure=on_failure)


def _predictions(
    handler: Any,
    iterable: Iterable[Any],
    request: InferenceRequest,
    columns: tuple[Any, Any],
    *,
    ordered: bool,
    on_failure: str,
) -> Iterator[Any]:
    iterable = table_or_elements(handler, iterable, request.batching)
    found = elements_of(handler, iterable, request, columns)
    spec, elements = prepared(found.handler, found.request, on_failure), found.of(iterable)
    if found.example_of is not None:
        return _results(spec, elements, _Turns(partial(results_of_blocks, example_of=found.example_of)))
    return _results(spec, elements, _Turns(results_of, ordered=ordered and not spec.plan.has_rows_in_elements))


def prepared(handler: Any, request: InferenceRequest, on_failure: str) -> SessionSpec:
    """What a worker needs, of the arguments of ``predict``."""
    if on_failure not in ("raise", "yield"):
        raise ConfigurationError(f"on_failure must be 'raise' or 'yield', not {on_failure!r}.")
    spec = stoppable(prepare(handler, request))
    return catching(spec, Exception) if on_failure == "yield" else spec


@contextmanager
def opened(spec: SessionSpec) -> Iterator[AnyBundle]:
    """A bundle of a worker that ends with the context."""
    with exporting():
        worker = open_worker(spec)
        try:
            yield worker.bundle(FanOut())
        finally:
            worker.close()
            end_budget(spec)


def results_of(outcome: Outcome) -> Iterable[tuple[int, Any]]:
    """Pairs of an element's position, which is its tag, and its result: a prediction, a Failure or ``SKIP``."""
    if isinstance(outcome, Failure):
        return [(outcome.tag, outcome)]
    if isinstance(outcome, Skipped):
        return zip(outcome.tags, repeat(SKIP))
    return zip(outcome.tags, outcome.values, strict=True)


def _results(spec: SessionSpec, iterable: Iterable[Any], turns: _Turns) -> Iterator[Any]:
    """The results; each element is tagged with its position."""
    read = 0
    with opened(spec) as bundle:
        try:
            for place, element in enumerate(iterable):
                read = place + 1
                turns.waiting.add(place)
                yield from turns.take(bundle.add(element, place))
                if bundle.spent:
                    break
                # One slow batch may hold back many outcomes: run what is queued, rather than let them pile up.
                if len(turns.early) > _LONGEST_QUEUE:
                    yield from turns.take(bundle.finish())
            yield from turns.take(bundle.finish())
            yield from turns.rest()
        except BudgetError as error:
            yield from turns.rest()  # also what follows an element that was left out: it was paid for
            raise _with_places(error, sorted(turns.waiting), read) from None
        except KeyboardInterrupt:
            yield from turns.take(drained(spec, bundle))
            if spec.budget is not None:
                yield from turns.rest()
            raise


class _Turns:
    """Lets early results wait for those before them, if they are to be ``ordered``; ``SKIP`` is none.

    Args:
        results_of: pairs of a position and a result, of an outcome.
        ordered: whether results wait.
    """

    def __init__(self, results_of: Callable[[Any], Iterable[tuple[int, Any]]], *, ordered: bool = True) -> None:
        self._results_of = results_of
        self.waiting: set[int] = set()
        """Positions of elements without an outcome."""
        self.early: dict[int, Any] = {}
        self._due = 0
        self._ordered = ordered

    def take(self, outcomes: Iterable[Outcome]) -> Iterator[Any]:
        """Takes outcomes; gives the results whose turn it is."""
        for outcome in outcomes:
            for place, value in self._results_of(outcome):
                self.waiting.discard(place)
                self.early[place] = value
                if not self._ordered:
                    yield from self.rest()
                while self._due in self.early:
                    if (due := self.early.pop(self._due)) is not SKIP:
                        yield due
                    self._due += 1

    def rest(self) -> Iterator[Any]:
        """What is left, in order."""
        return (value for place in sorted(self.early) if (value := self.early.pop(place)) is not SKIP)


def drained(spec: SessionSpec, bundle: AnyBundle) -> Iterator[Outcome]:
    """After an interrupt, what requests in flight are answered within a few seconds: they are paid for."""
    if spec.budget is not None:
        stop_requests(spec, _DRAIN_SECS)
        with suppress(BudgetError):  # of what was not sent
            yield from bundle.finish()


def _with_places(error: BudgetError, left_out: Sequence[int], read: int) -> BudgetError:
    """The error that says which elements have no outcome; one of ``predict`` within the iterable stays as it is."""
    if error.read:
        return error
    said = f"{len(left_out):,} of the {read:,} elements that were read have no outcome; the error's left_out lists them"
    return BudgetError(f"{error} {said}.", left_out, read)

"""Runs a handler over an iterable without an engine: for notebooks, tests and tuning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from headrace.core.answer import SKIP, is_of_columns
from headrace.core.arguments import refusing_unknown
from headrace.core.budget import Budget
from headrace.core.config import BatchingConfig, CacheConfig, RetryConfig
from headrace.core.declared_type import PredictingHandler
from headrace.core.errors import BudgetError, ConfigurationError
from headrace.core.handler import ModelHandler, PredictionT
from headrace.core.result import Failure, Outcome, PredictionResult, Predictions, Skipped
from headrace.rows.examples import answer_of, over_rows, takes_frames, without_keys
from headrace.rows.frames import examples_of, frames_of, rows_of_table
from headrace.runtime.bundle import AnyBundle
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
        iterable: the elements, read a few batches ahead at most; of a data frame or an Arrow table, its rows.
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


def predict_each(
    handler: Any,
    table: Any,
    request: InferenceRequest,
    *,
    columns: str | Sequence[str] | None,
    key: str | None,
    on_failure: str,
) -> Iterator[Any]:
    """As ``predict`` for the rows of a table, in order, with ``SKIP`` for each that is skipped.

    Once the budget is spent, and failures are yielded, each row that was left out has the ``BudgetError``.
    """
    handler, elements, types = _elements(handler, table, columns, key, request.batching)
    request = replace(request, column_types=types)
    return _of_each(_prepared(handler, request, on_failure), elements, len(table), raises=on_failure == "raise")


def predict_blocks(
    handler: Any, blocks: Iterable[Any], request: InferenceRequest, *, on_failure: str
) -> Iterator[Outcome]:
    """What becomes of blocks of rows, by a handler that takes them; other arguments are those of ``predict``."""
    with _opened(_prepared(handler, request, on_failure)) as bundle:
        for block in blocks:
            yield from bundle.add(block, None)
        yield from bundle.finish()


def _predictions(
    handler: Any,
    iterable: Iterable[Any],
    request: InferenceRequest,
    columns: tuple[Any, Any],
    *,
    ordered: bool,
    on_failure: str,
) -> Iterator[Any]:
    handler, elements, types = _elements(handler, iterable, *columns, request.batching)
    spec = _prepared(handler, replace(request, column_types=types), on_failure)
    is_ordered = ordered and not spec.plan.has_rows_in_elements
    return _ordered(spec, elements) if is_ordered else _as_finished(spec, elements)


def _prepared(handler: Any, request: InferenceRequest, on_failure: str) -> SessionSpec:
    if on_failure not in ("raise", "yield"):
        raise ConfigurationError(f"on_failure must be 'raise' or 'yield', not {on_failure!r}.")
    spec = stoppable(prepare(handler, request))
    return catching(spec, Exception) if on_failure == "yield" else spec


def _elements(
    handler: Any, given: Any, columns: Any, key: str | None, batching: BatchingConfig | None
) -> tuple[Any, Iterable[Any], Mapping[str, Any]]:
    """The handler for the elements, these, and what their columns hold: of a table its rows."""
    if not is_of_columns(given):
        _refuse_what_is_no_iterable_of_elements(given)
        if columns is not None or key is not None:
            raise ConfigurationError(
                "columns and key choose from the columns of a data frame or an Arrow table; choose from other rows in "
                "with_preprocess_fn."
            )
        return handler, given, {}
    if batching is not None and batching.columnar:
        raise ConfigurationError(
            f"with BatchingConfig(columnar=True) an element is many rows: give a list of a {type(given).__name__}, or "
            "leave columnar out, and each row is an element."
        )
    examples = examples_of(given, columns, key)
    if hasattr(given, "iloc") and takes_frames(handler):
        return without_keys(handler, examples.key), frames_of(given, examples), examples.types
    return over_rows(handler, examples), rows_of_table(given), examples.types


def _refuse_what_is_no_iterable_of_elements(given: Any) -> None:
    """Refuses strings and mappings: iterating them yields characters or keys, not elements."""
    if isinstance(given, str | bytes | bytearray):
        problem = f"a {type(given).__name__}, which would be taken for its letters: put a single element into a list"
    elif isinstance(given, Mapping):
        problem = "a mapping, which would be taken for its keys: put a single element into a list"
    elif not hasattr(type(given), "__iter__") and not hasattr(type(given), "__getitem__"):
        problem = f"{given!r:.80}"
    else:
        return
    raise ConfigurationError(f"predict needs an iterable of elements, not {problem}.")


@contextmanager
def _opened(spec: SessionSpec) -> Iterator[AnyBundle]:
    worker = open_worker(spec)
    try:
        yield worker.bundle(FanOut())
    finally:
        worker.close()
        end_budget(spec)


def _as_finished(spec: SessionSpec, iterable: Iterable[Any]) -> Iterator[Any]:
    waiting: set[int] = set()
    read = 0
    with _opened(spec) as bundle:
        try:
            for place, element in enumerate(iterable):
                read = place + 1
                waiting.add(place)
                yield from _answers(bundle.add(element, place), waiting)
            yield from _answers(bundle.finish(), waiting)
        except BudgetError as error:
            raise _with_places(error, sorted(waiting), read) from None
        except KeyboardInterrupt:
            yield from _answers(_drained(spec, bundle), waiting)
            raise


def _answers(outcomes: Iterable[Outcome], waiting: set[int]) -> Iterator[Any]:
    """The results but for ``SKIP``; their positions wait no longer."""
    for place, value in _tagged(outcomes):
        waiting.discard(place)
        if value is not SKIP:
            yield value


def _ordered(spec: SessionSpec, iterable: Iterable[Any]) -> Iterator[Any]:
    """Tags each element with its position; early outcomes wait for those before them."""
    early: dict[int, Any] = {}
    due = read = 0
    with _opened(spec) as bundle:
        try:
            for place, element in enumerate(iterable):
                read = place + 1
                early.update(_tagged(bundle.add(element, place)))
                # One slow batch may hold back many outcomes: run what is queued, rather than let them pile up.
                if len(early) > _LONGEST_QUEUE and due not in early:
                    early.update(_tagged(bundle.finish()))
                while due in early:
                    if (value := early.pop(due)) is not SKIP:
                        yield value
                    due += 1
            early.update(_tagged(bundle.finish()))
            yield from _in_order(early)
        except BudgetError as error:
            left_out = [place for place in range(due, read) if place not in early]
            yield from _in_order(early)  # also what follows an element that was left out: it was paid for
            raise _with_places(error, left_out, read) from None
        except KeyboardInterrupt:
            early.update(_tagged(_drained(spec, bundle)))
            if spec.budget is not None:
                yield from _in_order(early)
            raise


def _in_order(early: dict[int, Any]) -> Iterator[Any]:
    return (value for place in sorted(early) if (value := early.pop(place)) is not SKIP)


def _drained(spec: SessionSpec, bundle: AnyBundle) -> Iterator[Outcome]:
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


def _of_each(spec: SessionSpec, elements: Iterable[Any], total: int, *, raises: bool) -> Iterator[Any]:
    """What became of each of ``total`` elements, once all is known."""
    found: dict[int, Any] = {}
    left_out: BudgetError | None = None
    with _opened(spec) as bundle:
        try:
            for place, element in enumerate(elements):
                found.update(_tagged(_named(bundle.add(element, place))))
            found.update(_tagged(_named(bundle.finish())))
        except BudgetError as error:  # what is there was paid for
            if raises:
                raise
            left_out = error
        except KeyboardInterrupt:
            found.update(_tagged(_named(_drained(spec, bundle))))  # a cache keeps it
            raise
    yield from (found.get(place, left_out) for place in range(total))


def _named(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """The outcomes; a fallback's predictions say who answered, whatever they are."""
    for outcome in outcomes:
        if isinstance(outcome, Predictions) and outcome.fallback is not None:
            answers = map(answer_of, outcome.values)
            named = [PredictionResult(None, value, model_id or outcome.fallback) for value, model_id in answers]
            yield outcome._replace(values=named)
        else:
            yield outcome


def _tagged(outcomes: Iterable[Outcome]) -> Iterator[tuple[Any, Any]]:
    """Pairs of tag and result; ``SKIP`` for an element without output."""
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            yield outcome.tag, outcome
        elif isinstance(outcome, Skipped):
            yield from zip(outcome.tags, repeat(SKIP))
        else:
            yield from zip(outcome.tags, outcome.values, strict=True)

"""Predicts for the rows of a data frame or an Arrow table, and gives it back with the predictions as columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, cast

from headrace.batching.columnar import rows_in
from headrace.core.answer import SKIP, is_of_columns
from headrace.core.config import BatchingConfig, Budget, CacheConfig, RetryConfig
from headrace.core.errors import BudgetError, ConfigurationError, as_type_name
from headrace.core.result import DeadLetter, Failure, Outcome, Predictions
from headrace.core.spelling import refusing_unknown
from headrace.local.predict import drained, opened, prepared, results_of
from headrace.rows.examples import PREDICTION, RESERVED, answer_of, exploded_all, naming_outputs, refuse_exploded
from headrace.rows.tables import elements_of, names_of, results_of_blocks
from headrace.runtime.prepare import InferenceRequest, Placement

TableT = TypeVar("TableT")
_ADDED = (*RESERVED, "outcome", "error")


@refusing_unknown
def predict_table(
    handler: Any,
    table: TableT,
    *,
    columns: str | Sequence[str] | None = None,
    key: str | None = None,
    inference_args: dict[str, Any] | None = None,
    on_failure: Literal["raise", "mark"] = "raise",
    placement: Placement = None,
    batching: BatchingConfig | None = None,
    retry: RetryConfig | None = None,
    isolate: bool = False,
    timeout: float | None = None,
    fallback: Any = None,
    cache: str | CacheConfig | None = None,
    budget: Budget | None = None,
    explode: bool = False,
) -> TableT:
    """The table with its predictions: its rows and columns as they are, and four columns more.

    - ``prediction``: the value itself; in Arrow's tables as in ``headrace run``'s Parquet. Null for a row without one.
    - ``model_id``: what answered. ``outcome``: ``"predicted"``, ``"failed"`` or ``"skipped"``. ``error``: why not.

    Args:
        handler: a model handler, Headrace's or Beam's.
        table: of pandas, Polars or Arrow; of a stream of Arrow's batches comes a RecordBatchReader, lazily.
        columns: those that the handler sees, a single one as its bare values. None: all.
        key: the column of the key, for a handler of keyed examples.
        inference_args: extra arguments for the model's call.
        on_failure: ``"raise"``: raises the first exception; ``"mark"``: a row that fails says so in its columns.
        placement: where the model lives.
        batching: replaces what the handler's ``batch_elements_kwargs()`` asks for.
        retry: repeats a model call that failed for a transient reason.
        isolate: whether the model lives in a process of its own.
        timeout: the longest that one operation may take, in seconds; implies ``isolate``.
        fallback: another handler, for rows that the first one's model could not do; of a list each, in order.
        cache: a file of predictions that were made before: they are not asked for again.
        budget: prices of requests, and a limit, after which rows fail with a BudgetError; a ``cache`` keeps the others.
        explode: whether each value of a prediction gets a column: ``prediction_0``, or ``prediction_`` and its name.

    Raises:
        ConfigurationError: an argument is wrong, or the table has one of these columns already.
    """
    request = InferenceRequest(inference_args, placement, batching, retry, isolate, timeout, fallback, cache, budget)
    return _as_given(table, partial(_opened, handler, request, (columns, key), on_failure, explode=explode))


Predicted = Callable[[Any], Any]
"""Gives a table, or each of several with the same columns, back with its predictions."""


@contextmanager
def _opened(
    handler: Any, request: InferenceRequest, columns: tuple[Any, Any], on_failure: str, table: Any, *, explode: bool
) -> Iterator[Predicted]:
    """A context with a worker for tables that have the columns of ``table``."""
    _refuse_mistakes(table, on_failure)
    raises = on_failure == "raise"
    if explode:
        refuse_exploded(names_of(table))
        handler, request = naming_outputs(handler), replace(request, fallback=naming_outputs(request.fallback))
    elements = elements_of(handler, table, request, columns, always_blocks=True)
    spec = prepared(elements.handler, elements.request, "raise" if raises else "yield")
    with opened(spec) as bundle:

        def outcomes_of(some: Any) -> Iterator[Outcome]:
            try:
                for place, element in enumerate(elements.of(some)):
                    yield from bundle.add(element, place)
                    if bundle.spent:
                        break
                yield from bundle.finish()
            except KeyboardInterrupt:
                list(drained(spec, bundle))  # a cache keeps it
                raise

        def predicted(some: Any) -> Any:
            found = _added(outcomes_of(some), rows_in(some), are_blocks=elements.example_of is not None, raises=raises)
            added = dict(zip(_ADDED, found, strict=True))
            if explode:
                added = {**exploded_all(list(added.pop(PREDICTION))), **added}
            return _with_columns(some, added, raises=raises)

        yield predicted


def _as_given(table: TableT, opened: Callable[[Any], AbstractContextManager[Predicted]]) -> TableT:
    """A table with its predictions, as one of its kind; frames of Polars go through as Arrow tables."""
    given: Any = table
    is_lazy, is_frame = hasattr(given, "collect"), type(table).__module__.partition(".")[0] == "polars"
    result: Any
    is_table = is_frame or hasattr(given, "iloc") or hasattr(given, "num_columns")
    if hasattr(given, "__arrow_c_stream__") and not is_table:
        from headrace.jobs.arrow_predictions import predicted_stream  # noqa: PLC0415 - needs pyarrow

        return cast(TableT, predicted_stream(given, opened))
    arrow = (given.collect() if is_lazy else given).to_arrow() if is_frame else given
    with opened(arrow) as predicted:
        result = predicted(arrow)
    result = sys.modules["polars"].from_arrow(result) if is_frame else result
    return cast(TableT, result.lazy() if is_frame and is_lazy else result)


def _with_columns(table: Any, added: dict[str, Any], *, raises: bool) -> Any:
    if not hasattr(table, "iloc"):
        from headrace.jobs.arrow_predictions import in_arrow  # noqa: PLC0415 - needs pyarrow

        return in_arrow(table, added, raises=raises)
    if isinstance(added["outcome"], list):
        names = [name for name in added if name.startswith(PREDICTION)]
        added = {**added, **{name: _nullable(added[name]) for name in names}}
    return table.assign(**added)


def _nullable(predictions: list[Any]) -> Any:
    """The predictions; if some rows have none, as pandas' nullable type of the others: integers stay integers."""
    known = [place for place, prediction in enumerate(predictions) if prediction is not None]
    if len(known) == len(predictions):
        return predictions
    import pandas  # noqa: PLC0415 - only a data frame needs it

    found = pandas.Series([predictions[place] for place in known], index=known)
    if found.dtype == object:
        return predictions
    if found.dtype.kind in "biu":
        found = found.convert_dtypes()
    return found.reindex(range(len(predictions))).array


def _added(outcomes: Iterable[Outcome], total: int, *, are_blocks: bool, raises: bool) -> Sequence[Any]:
    """The added columns: each a list of the rows' values, an array, or one value that all rows have."""
    found: list[Outcome] = []
    left_out: BudgetError | None = None
    try:
        for outcome in outcomes:
            found.append(outcome)  # noqa: PERF402 - what is there was paid for
    except BudgetError as error:
        if raises:
            raise
        left_out = error
    if are_blocks and (column := _one_array(found)) is not None:
        return column
    results = partial(results_of_blocks, example_of=lambda _: None) if are_blocks else results_of
    rows = {
        place: _row(result, getattr(outcome, "fallback", None))
        for outcome in found
        for place, result in results(outcome)
    }
    answers = (rows.get(place) or _row(left_out) for place in range(total))
    return [list(values) for values in zip(*answers, strict=True)] or [[] for _ in _ADDED]


def _one_array(outcomes: list[Any]) -> Sequence[Any] | None:
    """The added columns with one array of predictions; None if blocks have none, or of several types."""
    if not all(isinstance(outcome, Predictions) for outcome in outcomes):
        return None
    results = sorted((result for one in outcomes for result in one.values), key=lambda result: result.example.first)
    arrays = [result.inference for result in results]
    kinds = {(getattr(one, "ndim", 0), getattr(one, "dtype", None)) for one in arrays}
    if len(kinds) != 1 or getattr(arrays[0], "ndim", 0) != 1 or arrays[0].dtype.kind not in "biufU":
        return None
    return sys.modules["numpy"].concatenate(arrays), results[0].model_id, "predicted", None


def _row(answer: Any, fallback: str | None = None) -> tuple[Any, str | None, str, str | None]:
    if isinstance(answer, Failure):
        letter = DeadLetter.of(answer.record, answer.stage, answer.index)
        return None, letter.model_id, "failed", f"{letter.error_type}: {letter.message}"
    if isinstance(answer, BudgetError):
        return None, None, "failed", f"{as_type_name(answer)}: {answer}"
    if answer is SKIP:
        return None, None, "skipped", None
    value, model_id = answer_of(answer)
    return value, model_id or fallback, "predicted", None


def _refuse_mistakes(table: Any, on_failure: str) -> None:
    if on_failure not in ("raise", "mark"):
        raise ConfigurationError(f"on_failure must be 'raise' or 'mark', not {on_failure!r}.")
    kinds = "a pandas.DataFrame, a frame of Polars, a table or record batch of Arrow's, or a reader of such batches"
    if not is_of_columns(table) or not (hasattr(table, "iloc") or hasattr(table, "num_columns")):
        raise ConfigurationError(
            f"predict_table takes {kinds}, not a {type(table).__qualname__}; of other rows, predict yields predictions."
        )
    taken = [name for name in names_of(table) if name in _ADDED]
    if taken:
        raise ConfigurationError(
            f"the table has a column {taken[0]!r}, which predict_table adds; rename it, or leave it out."
        )

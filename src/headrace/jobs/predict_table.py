"""Predicts for the rows of a data frame or an Arrow table, and gives it back with the predictions as columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

from headrace.core.answer import SKIP, is_of_columns
from headrace.core.arguments import refusing_unknown
from headrace.core.budget import Budget
from headrace.core.config import BatchingConfig, CacheConfig, RetryConfig
from headrace.core.errors import BudgetError, ConfigurationError, as_type_name
from headrace.core.result import DeadLetter, Failure
from headrace.local.predict import predict_each
from headrace.rows.examples import RESERVED, answer_of
from headrace.rows.exploded import PREDICTION, exploded_all, naming_outputs, refuse_exploded
from headrace.rows.frames import examples_of, names_of
from headrace.runtime.prepare import InferenceRequest, Placement

TableT = TypeVar("TableT")
_AS_OF_PREDICT = {"raise": "raise", "mark": "yield"}
"""What ``predict`` calls the ways to treat a failure."""
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
        table: a frame of pandas or Polars (a lazy one is collected), an Arrow table or batch; the same kind comes back.
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
    return _as_given(table, partial(_with_predictions, handler, request, (columns, key), on_failure, explode=explode))


def _with_predictions(
    handler: Any, request: InferenceRequest, columns: tuple[Any, Any], on_failure: str, table: Any, *, explode: bool
) -> Any:
    from headrace.jobs.table_blocks import blocks_for, predicted_in_blocks  # noqa: PLC0415 - needs pyarrow

    _refuse_mistakes(table, on_failure)
    if explode:
        refuse_exploded(names_of(table))
        handler, request = naming_outputs(handler), replace(request, fallback=naming_outputs(request.fallback))
    (chosen, key), failing = columns, _AS_OF_PREDICT[on_failure]
    blocks = blocks_for(handler, table, request, examples_of(table, chosen, key))
    if blocks is None:
        added = _added(predict_each(handler, table, request, columns=chosen, key=key, on_failure=failing))
    else:
        added = dict(zip(_ADDED, predicted_in_blocks(blocks, request, failing, _row), strict=True))
    if explode:
        added = {**exploded_all(list(added.pop(PREDICTION))), **added}
    return _with_columns(table, added, raises=on_failure == "raise")


def _as_given(table: TableT, predicted: Callable[[Any], Any]) -> TableT:
    """What ``predicted`` makes of a table; of a frame of Polars, which it takes as an Arrow table, such a frame."""
    found: TableT
    if type(table).__module__.partition(".")[0] != "polars":
        found = predicted(table)
        return found
    given: Any = table
    is_lazy = hasattr(given, "collect")
    frame = sys.modules["polars"].from_arrow(predicted((given.collect() if is_lazy else given).to_arrow()))
    found = frame.lazy() if is_lazy else frame
    return found


def _with_columns(table: Any, added: dict[str, Any], *, raises: bool) -> Any:
    if hasattr(table, "iloc"):
        if isinstance(added["outcome"], list):
            predictions = {name: values for name, values in added.items() if name.startswith(PREDICTION)}
            added = {**added, **{name: _nullable(values) for name, values in predictions.items()}}
        return table.assign(**added)
    from headrace.jobs.prediction_columns import with_columns  # noqa: PLC0415 - numpy and pyarrow, for Arrow's only

    return with_columns(table, added, raises=raises)


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


def _added(answers: Iterable[Any]) -> dict[str, list[Any]]:
    """The added columns, from what ``predict_each`` yields."""
    columns: dict[str, list[Any]] = {name: [] for name in _ADDED}
    for answer in answers:
        for name, value in zip(_ADDED, _row(answer), strict=True):
            columns[name].append(value)
    return columns


def _row(answer: Any) -> tuple[Any, str | None, str, str | None]:
    if isinstance(answer, Failure):
        letter = DeadLetter.of(answer.record, answer.stage, answer.index)
        return None, letter.model_id, "failed", f"{letter.error_type}: {letter.message}"
    if isinstance(answer, BudgetError):
        return None, None, "failed", f"{as_type_name(answer)}: {answer}"
    return (None, None, "skipped", None) if answer is SKIP else (*answer_of(answer), "predicted", None)


def _refuse_mistakes(table: Any, on_failure: str) -> None:
    if on_failure not in ("raise", "mark"):
        raise ConfigurationError(f"on_failure must be 'raise' or 'mark', not {on_failure!r}.")
    kinds = "a pandas.DataFrame, a frame of Polars, a pyarrow.Table or a pyarrow.RecordBatch"
    if not is_of_columns(table) or not (hasattr(table, "iloc") or hasattr(table, "num_columns")):
        raise ConfigurationError(
            f"predict_table takes {kinds}, not a {type(table).__qualname__}; of other rows, predict yields predictions."
        )
    taken = [name for name in names_of(table) if name in _ADDED]
    if taken:
        raise ConfigurationError(
            f"the table has a column {taken[0]!r}, which predict_table adds; rename it, or leave it out."
        )

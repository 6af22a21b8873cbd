"""Predicts for the rows of a table in blocks, where the handler predicts the same from columns as from rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy

from headrace.core.result import Failure, Outcome, PredictionResult, Predictions
from headrace.local.predict import predict_blocks
from headrace.rows.blocks import Block
from headrace.rows.columns import over_blocks
from headrace.rows.examples import (
    Examples,
    answer_of,
    batching_over_columns,
    refuse_unfit,
    takes_columns,
    takes_frames,
    takes_missing,
)
from headrace.rows.fitting import Fit, fitted, has_numbers
from headrace.rows.frames import blocks_of_table
from headrace.runtime.plan import make_plan
from headrace.runtime.prepare import InferenceRequest

Added = tuple[Any, Any, Any, Any]
"""What a row, or all rows, get: prediction, model id, outcome and error."""


class TableBlocks(NamedTuple):
    """The blocks of a table, and the handler that takes them."""

    handler: Any
    blocks: Iterator[Block]
    examples: Examples


def blocks_for(handler: Any, table: Any, request: InferenceRequest, examples: Examples) -> TableBlocks | None:
    """The blocks of a table; None if the handler, the columns or an option need rows one by one.

    Args:
        handler: any.
        table: a data frame or an Arrow table.
        request: as for ``predict``.
        examples: which columns the handler sees.
    """
    refuse_unfit(handler)
    batching = request.batching or make_plan(handler).batching
    needs_rows = batching.sorts or batching.sizes_are_weights or batching.columnar or examples.key is not None
    if needs_rows or request.fallback or request.cache or request.budget or not takes_columns(handler):
        return None
    fit = Fit(examples.seen, takes_frames(handler), missing=takes_missing(handler))
    if hasattr(table, "iloc") and not (fit.frames or all(_is_of_numbers(table[name].dtype) for name in fit.names)):
        return None
    blocks = list(blocks_of_table(table, fit.names, frames=fit.frames))
    if not blocks or not (fit.frames or has_numbers(blocks[0].batch.schema, fit.names)):
        return None
    return TableBlocks(over_blocks(handler, examples), fitted(blocks, fit), examples)


def _is_of_numbers(dtype: Any) -> bool:
    return dtype.kind in "biuf" and not str(dtype).startswith("Sparse")


def predicted_in_blocks(
    table: TableBlocks, request: InferenceRequest, on_failure: str, failed: Callable[[Failure], Added]
) -> Sequence[Any]:
    """The added columns: each a list of the rows' values, an array, or one value that all rows have.

    Args:
        table: of ``blocks_for``.
        request: as for ``predict``.
        on_failure: as for ``predict``.
        failed: what a row that failed gets.
    """
    batching = batching_over_columns(request.batching or make_plan(table.handler).batching)
    request = replace(request, batching=batching, column_types=table.examples.types)
    return _joined(predict_blocks(table.handler, table.blocks, request, on_failure=on_failure), failed)


def _joined(outcomes: Iterable[Outcome], failed: Callable[[Failure], Added]) -> Sequence[Any]:
    results: list[PredictionResult] = []
    rows: dict[int, Added] = {}
    for outcome in outcomes:
        if isinstance(outcome, Predictions):
            results += outcome.values
        elif isinstance(outcome, Failure):
            rows.update((row.place, failed(outcome)) for row in outcome.element.places())
    results.sort(key=lambda result: result.example.first)
    column = None if rows else _one_array([result.inference for result in results])
    if column is not None:
        return column, results[0].model_id, "predicted", None
    for block, predictions, model_id in results:
        for place, prediction in enumerate(predictions, block.first):
            value, own_id = answer_of(prediction)
            rows[place] = value, own_id or model_id, "predicted", None
    return [list(values) for values in zip(*map(rows.__getitem__, sorted(rows)), strict=True)]


def _one_array(arrays: list[Any]) -> Any:
    """One array of arrays with a value for each row; None if they are none, or of several types."""
    kinds = {(getattr(one, "ndim", 0), getattr(one, "dtype", None)) for one in arrays}
    if len(kinds) != 1 or getattr(arrays[0], "ndim", 0) != 1 or arrays[0].dtype.kind not in "biufU":
        return None
    return numpy.concatenate(arrays)

"""The rows of a table in blocks, where the handler predicts the same from these as from rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from headrace.core.columns import Form
from headrace.rows.blocks import Block
from headrace.rows.columns import over_blocks
from headrace.rows.examples import Examples, batching_over_columns, refuse_unfit, taken_of_blocks
from headrace.rows.fitting import Fit, fitted
from headrace.rows.frames import blocks_of_table
from headrace.rows.types import types_of_schema
from headrace.rows.values import batch_of_frame
from headrace.runtime.plan import make_plan
from headrace.runtime.prepare import InferenceRequest


class TableBlocks(NamedTuple):
    """A handler that takes blocks, how it is to run, and the blocks of a table with the same columns."""

    handler: Any
    request: InferenceRequest
    of: Callable[[Any], Iterator[Block]]


def blocks_for(handler: Any, table: Any, request: InferenceRequest, examples: Examples) -> TableBlocks | None:
    """How to run a handler over the blocks of a table; None if it, the columns or an option need rows one by one."""
    refuse_unfit(handler)
    batching = request.batching or make_plan(handler).batching
    needs_rows = batching.sorts or batching.sizes_are_weights or batching.columnar or examples.key is not None
    takes = None if needs_rows or request.fallback or request.cache or request.budget else taken_of_blocks(handler)
    if takes is None:
        return None
    fit = Fit(examples.seen, takes)

    def blocks_of(some: Any) -> Iterator[Block]:
        blocks = blocks_of_table(some, fit.names)
        return blocks if takes.form is Form.FRAME else map(_of_arrays, blocks)

    seen = table if hasattr(table, "schema") else next((block.batch for block in blocks_of(table)), None)
    if seen is None or (takes.form is not Form.FRAME and not fit.has_types(types_of_schema(seen.schema))):
        return None
    request = replace(request, batching=batching_over_columns(batching), column_types=examples.types)
    return TableBlocks(over_blocks(handler, examples, fit), request, lambda some: fitted(blocks_of(some), fit))


def _of_arrays(block: Block) -> Block:
    """A block of a data frame as a record batch of the columns that a model sees, or as records."""
    if not hasattr(block.batch, "iloc"):
        return block
    seen = block.batch[list(block.names)]
    batch = batch_of_frame(seen)
    return replace(block, batch=batch, records=() if batch is not None else replace(block, batch=seen).rows())

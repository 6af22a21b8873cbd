"""Wraps a handler so that it runs over blocks: the columns of many rows in one go.

This module also runs in model hosts: it must not import Beam.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy
import pyarrow

from headrace.batching.columnar import concatenate
from headrace.core.answer import predictions_of
from headrace.core.columns import Form
from headrace.core.conversion import places_by, to_results
from headrace.core.result import PredictionResult
from headrace.rows.blocks import Block
from headrace.rows.examples import ExampleOfRow, Examples, batching_over_columns, refuse_unfit, taken_of_blocks
from headrace.rows.fitting import NAN, Fit, fitted, is_text, is_vector, numbers_of, plain, width_of
from headrace.rows.frames import blocks_of_table
from headrace.rows.types import types_of_schema
from headrace.rows.values import batch_of_frame
from headrace.runtime.plan import make_plan
from headrace.runtime.prepare import InferenceRequest

_MOMENT = pyarrow.timestamp("us")
_OF_NULLS = {"int": pyarrow.float64(), "float": pyarrow.float64(), "str": pyarrow.string(), "datetime": _MOMENT}
"""What a column without values is in a frame, by what it holds in other rows."""
_NAMES: dict[Any, tuple[str, ...]] = {
    pyarrow.int64(): ("int", "float"),
    pyarrow.float64(): ("int", "float"),
    pyarrow.bool_(): ("bool",),
    pyarrow.string(): ("str",),
    pyarrow.large_string(): ("str",),
    pyarrow.date32(): ("date",),
    _MOMENT: ("datetime",),
}
"""The names of ``headrace.rows.types`` that columns with nulls may have."""


def blocks_for(
    handler: Any, table: Any, request: InferenceRequest, examples: Examples
) -> tuple[Any, InferenceRequest, Callable[[Any], Iterator[Block]]] | None:
    """A handler of blocks, how it runs, and the blocks of a table with such columns; None: rows go one by one."""
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
    return over_blocks(handler, examples, fit), request, lambda some: fitted(blocks_of(some), fit)


def _of_arrays(block: Block) -> Block:
    """A block of a data frame as a record batch of the columns that a model sees, or as records."""
    if not hasattr(block.batch, "iloc"):
        return block
    seen = block.batch[list(block.names)]
    batch = batch_of_frame(seen)
    return replace(block, batch=batch, records=() if batch is not None else replace(block, batch=seen).rows())


def over_blocks(handler: Any, examples: Examples, fit: Fit) -> Any:
    """Wraps a handler so that its elements are blocks of rows that ``fit``.

    A preprocessing function makes the example of a row that does not fit into columns; it refuses reserved columns.
    """
    inner = make_plan(handler).handler
    over = _new(type(inner))
    vars(over).update(vars(inner))
    over.rows_as = RowsAs(ExampleOfRow(examples, inner, fit.reserved), fit.takes.form, examples.types)
    return over.with_preprocess_fn(_Prepare(over.rows_as.of_row))


class RowsAs(NamedTuple):
    """What becomes of the rows of blocks before the model."""

    of_row: ExampleOfRow
    form: Form
    types: Mapping[str, Any]
    """What the columns hold."""

    def columns(self, blocks: Sequence[Block]) -> Any:
        """What a handler takes of blocks of one kind; None: their rows, as examples."""
        if blocks[0].batch is None:
            return None
        batch = _joined(blocks)
        if hasattr(batch, "iloc"):
            return batch
        columns = dict(zip(batch.schema.names, map(plain, batch.columns), strict=True))
        if self.form is Form.FRAME:
            settled = {name: _in_frame(column, self.types.get(name)) for name, column in columns.items()}
            are_all = all(column is not None for column in settled.values())
            return pyarrow.RecordBatch.from_pydict(settled) if are_all else None
        if batch.num_rows == 1:  # of which a model may drop the axis of the rows
            return None
        arrays = {name: as_array(column) for name, column in columns.items()}
        return next(iter(arrays.values())) if self.form is Form.TEXTS else arrays


class _Prepare:
    """Adds the example to a block of one record."""

    def __init__(self, of_row: ExampleOfRow) -> None:
        self._of_row = of_row

    def __call__(self, block: Block) -> Block:
        if block.batch is None:
            return replace(block, example=self._of_row(block[0])) if len(block) == 1 else block
        if hasattr(block.batch, "schema"):
            self._of_row.refuse_reserved(block.batch.schema.names)
        return block


class _OverBlocks:
    """Mixed in before a handler's class: ``run_columns`` accepts a block or a list of blocks."""

    rows_as: RowsAs

    def run_columns(self, blocks: Any, model: Any, inference_args: dict[str, Any] | None = None) -> Any:
        """Calls the model once if all blocks have one kind, and else once for each kind."""
        if not isinstance(blocks, Block | list):  # columns: the handler's own method called this one
            handler: Any = super()
            return handler.run_columns(blocks, model, inference_args)
        blocks = [blocks] if isinstance(blocks, Block) else blocks
        together = places_by(block.kind for block in blocks)
        if len(together) == 1:
            return self._answer(blocks, model, inference_args)
        results: list[list[Any]] = [[] for _ in range(len(blocks) + 1)]
        for places in together.values():
            answer = iter(_row_by_row(self._answer([blocks[place] for place in places], model, inference_args)))
            for place in places:
                results[place] = list(islice(answer, len(blocks[place])))
            results[-1] += answer  # surplus predictions, for the count check to find
        return list(chain.from_iterable(results))

    def _answer(self, blocks: list[Block], model: Any, inference_args: dict[str, Any] | None) -> Any:
        handler: Any = super()
        columns = self.rows_as.columns(blocks)
        if columns is None:
            examples = list(chain.from_iterable(map(self._examples, blocks)))
            answer = predictions_of(handler.run_inference(examples, model, inference_args), self, len(examples))
            return [
                one._replace(inference=_of_numpy(one.inference)) if hasattr(one, "model_id") else one for one in answer
            ]
        return _as_column(handler.run_columns(columns, model, inference_args))

    def _examples(self, block: Block) -> Iterable[Any]:
        return map(self.rows_as.of_row, block.rows()) if block.example is None else [block.example]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles by the handler's class: the derived class is made at run time and cannot be imported."""
        reduced: Any = super().__reduce_ex__(protocol)
        make, arguments, *rest = reduced
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            return (_new, (type(self).__mro__[2], *arguments[1:]), *rest)
        return (make, arguments, *rest)


@cache
def _over(cls: type) -> type:
    """A derived class with the same name, which appears in error messages."""
    own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (_OverBlocks, cls), own)


def _new(cls: type, *arguments: Any) -> Any:
    over = _over(cls)
    return over.__new__(over, *arguments)


def _joined(blocks: Sequence[Block]) -> Any:
    """The model's columns of blocks of one kind, as a record batch or a data frame."""
    names = list(blocks[0].names)
    if hasattr(blocks[0].batch, "iloc"):
        return concatenate([block.batch[names] for block in blocks])
    chosen = (block.batch.select(names).columns for block in blocks)
    batches = [pyarrow.RecordBatch.from_arrays(columns, names) for columns in chosen]  # schemas may differ otherwise
    return batches[0] if len(batches) == 1 else pyarrow.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _in_frame(column: Any, kind: str | None) -> Any:
    """A column for a frame, of the type that all rows have; None if the frame takes Python's values, row by row.

    Nulls are missing values of the type that all rows have, so that has to be known, and be that of these rows.

    Args:
        column: of some rows.
        kind: what the column holds, in all rows.
    """
    of, types = column.type, pyarrow.types
    if types.is_null(of):
        return column.cast(_OF_NULLS[kind]) if kind in _OF_NULLS else column
    if kind == "float" and types.is_integer(of):
        return column.cast(pyarrow.float64(), safe=False)  # as Python rounds
    if column.null_count:
        return column if kind in _NAMES.get(of, ()) else None
    return column if of in _NAMES or (types.is_timestamp(of) and of.unit == "us") else None


def as_array(column: Any) -> Any:
    """A column of numbers as an array of int64, float64 or bool; of vectors as a matrix, of texts of objects.

    Missing numbers are NaN.
    """
    kind = column.type
    if is_text(kind):
        return numpy.array(column.to_pylist(), dtype=object)
    if column.null_count:
        column = column.cast(pyarrow.uint8()) if pyarrow.types.is_boolean(kind) else column
        return numbers_of(column.cast(pyarrow.float64(), safe=False).fill_null(NAN))
    if is_vector(kind):
        return as_array(plain(column.flatten())).reshape(len(column), width_of(column))
    return numbers_of(column.cast(pyarrow.int64()) if kind == pyarrow.uint64() else column)


def _as_column(answer: Any) -> Any:
    """The answer with its predictions as an array if possible; otherwise a list of results, one for each row."""
    predictions = _of_numpy(getattr(answer, "inference", answer))
    if isinstance(predictions, numpy.ndarray) and predictions.ndim and predictions.dtype.isnative:
        return PredictionResult(None, predictions, getattr(answer, "model_id", None))
    return _row_by_row(answer)


def _of_numpy(prediction: Any) -> Any:
    """A tensor of PyTorch's as an array or scalar of numpy's, unless numpy lacks its type, such as bfloat16."""
    with suppress(TypeError, RuntimeError):
        return prediction.detach().numpy()[()] if hasattr(prediction, "detach") else prediction
    return prediction


def _row_by_row(answer: Any) -> list[Any]:
    """One result for each row, whatever the form of the answer."""
    if isinstance(answer, list):
        return answer
    predictions, model_id = (answer.inference, answer.model_id) if hasattr(answer, "inference") else (answer, None)
    return to_results((), predictions, model_id)

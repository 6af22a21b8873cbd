"""Rows side by side, as elements of a run: what of them the model is fed, and a handler made to run over them.

This runs in model hosts, too, and so imports nothing of Beam.
"""

from __future__ import annotations

import copyreg
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy
import pyarrow

from headrace.core.answer import predictions_of
from headrace.core.config import BatchingConfig
from headrace.core.conversion import to_results
from headrace.core.result import PredictionResult
from headrace.jobs.row_ranges import place_at
from headrace.jobs.rows import BrokenLine, ExampleOfRow, Examples, Row
from headrace.jobs.values import as_rows
from headrace.runtime.plan import make_plan


@dataclass(frozen=True)
class Block:
    """Neighbouring rows of a source, in columns; or one row that is not fit for those.

    As ``headrace.batching.columnar`` wants it, it has a length and slices, and says how blocks are joined.
    """

    source: int
    """Of the job's sources, counted from 0."""
    first: int
    """Where in its source the first row is, counted from 0; lines that cannot be read count."""
    names: tuple[str, ...]
    """The columns that the model sees, in its order."""
    batch: Any = None
    """All columns: an Arrow record batch. Those of the model are of finite numbers without nulls."""
    row: Row | BrokenLine | None = None
    """The one row, where there is no batch."""
    example: Any = None
    """Made of that row."""

    @property
    def place(self) -> int:
        """Of the first row in the input."""
        return place_at(self.source, self.first)

    def __len__(self) -> int:
        return 1 if self.batch is None else int(self.batch.num_rows)

    def __getitem__(self, place: Any) -> Any:
        """A part, of a slice; the row in such a place, of a number."""
        if isinstance(place, slice):
            start, stop, _ = place.indices(len(self))
            if stop - start == len(self):
                return self
            return replace(self, first=self.first + start, batch=self.batch.slice(start, stop - start))
        return self.row if self.batch is None else as_rows(self.batch.slice(place, 1))[0]

    def rows(self) -> list[Any]:
        """The rows as they are read one by one."""
        return [self.row] if self.batch is None else as_rows(self.batch)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns; of a row, what it is worth."""
        return 64 if self.batch is None else int(self.batch.nbytes)

    @staticmethod
    def concatenated(blocks: Sequence[Block]) -> list[Block]:
        """Several for one call of the model; their rows stay where they are."""
        return list(blocks)

    @property
    def kind(self) -> Any:
        """What blocks must have in common for their rows to be one matrix."""
        return None if self.batch is None else tuple(self.batch.schema.field(name).type for name in self.names)


def over_blocks(handler: Any, examples: Examples, reserved: Collection[str] = ()) -> Any:
    """A handler with blocks for its elements, of one that ``takes_columns``.

    Making an example of a row that is not fit for columns is its preprocessing function, which refuses rows with
    columns that are ``reserved``.
    """
    inner = make_plan(handler).handler
    over = _new(type(inner))
    vars(over).update(vars(inner))
    return over.with_preprocess_fn(_Prepare(ExampleOfRow(examples, inner.example_from_row, reserved)))


def batching_over_blocks(handler: Any, sizes: Mapping[str, int]) -> BatchingConfig:
    """What ``handler`` asks for, with ``sizes`` in place of its own, in columns."""
    changes: dict[str, Any] = dict(sizes)
    return replace(make_plan(handler).batching, columnar=True, **changes)


class _Prepare:
    """A block that is one row -> one with the example of it."""

    def __init__(self, of_row: ExampleOfRow) -> None:
        self._of_row = of_row

    def __call__(self, block: Block) -> Block:
        if block.batch is None:
            assert block.row is not None
            return replace(block, example=self._of_row(block.row)[1])
        self._of_row.refuse_reserved(block.batch.schema.names)
        return block


class _OverBlocks:
    """Put before a handler's class: ``run_columns`` takes a block, or a list of them."""

    def run_columns(self, blocks: Any, model: Any, inference_args: dict[str, Any] | None = None) -> Any:
        """One call of the model where all rows go into one matrix; else one for each kind of them."""
        if not isinstance(blocks, Block | list):  # columns: a method of the handler's own calls this one
            handler: Any = super()
            return handler.run_columns(blocks, model, inference_args)
        blocks = [blocks] if isinstance(blocks, Block) else blocks
        together: dict[Any, list[int]] = {}
        for place, block in enumerate(blocks):
            together.setdefault(block.kind, []).append(place)
        if len(together) == 1:
            return self._answer(blocks, model, inference_args)
        results: list[list[Any]] = [[] for _ in range(len(blocks) + 1)]
        for places in together.values():
            answer = iter(_row_by_row(self._answer([blocks[place] for place in places], model, inference_args)))
            for place in places:
                results[place] = list(islice(answer, len(blocks[place])))
            results[-1] += answer  # too many, which whoever counts is to see
        return list(chain.from_iterable(results))

    def _answer(self, blocks: list[Block], model: Any, inference_args: dict[str, Any] | None) -> Any:
        handler: Any = super()
        if blocks[0].batch is None:
            examples = [block.example for block in blocks]
            answer = handler.run_inference(examples, model, inference_args)
            return predictions_of(answer, self, len(examples))
        return _as_column(handler.run_columns(columns_of(blocks), model, inference_args))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As of its class, which others find by name, and this one they do not."""
        reduced: Any = super().__reduce_ex__(protocol)
        make, arguments, *rest = reduced
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            return (_new, (type(self).__mro__[2], *arguments[1:]), *rest)
        return (make, arguments, *rest)


@cache
def _over(cls: type) -> type:
    """A class of the same name, since errors tell it."""
    own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (_OverBlocks, cls), own)


def _new(cls: type, *arguments: Any) -> Any:
    over = _over(cls)
    return over.__new__(over, *arguments)


def columns_of(blocks: Sequence[Block]) -> dict[str, Any]:
    """The model's columns, of blocks of one kind, as arrays of what Python has for numbers."""
    names = list(blocks[0].names)
    batches = [block.batch.select(names) for block in blocks]
    batch = batches[0]
    if len(batches) > 1:
        batch = pyarrow.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return {name: as_numbers(batch.column(index)) for index, name in enumerate(names)}


def as_numbers(column: Any) -> Any:
    """A column of numbers without nulls as an array of int64, float64 or bool."""
    kind = column.type
    if pyarrow.types.is_integer(kind):
        column = column.cast(pyarrow.int64())
    elif pyarrow.types.is_floating(kind):
        column = column.cast(pyarrow.float64())
    return column.to_numpy(zero_copy_only=False)


def _as_column(answer: Any) -> Any:
    """A model's answer with an array for its predictions; else the list that would come of rows, and its errors."""
    predictions = getattr(answer, "inference", answer)
    if hasattr(predictions, "detach"):
        with suppress(TypeError, RuntimeError):  # of what numpy does not have, as bfloat16
            predictions = predictions.detach().numpy()
    if isinstance(predictions, numpy.ndarray) and predictions.ndim and predictions.dtype.isnative:
        return PredictionResult(None, predictions, getattr(answer, "model_id", None))
    return _row_by_row(answer)


def _row_by_row(answer: Any) -> list[Any]:
    """One result for each row, whatever form they came in."""
    if isinstance(answer, list):
        return answer
    predictions, model_id = (answer.inference, answer.model_id) if hasattr(answer, "inference") else (answer, None)
    return to_results((), predictions, model_id)

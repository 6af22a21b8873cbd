"""Blocks in columns: cut to the rows that a model can take, and converted to what its handler takes of them.

This module also runs in model hosts: it must not import Beam.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from headrace.batching.columnar import concatenate
from headrace.core.answer import predictions_of
from headrace.core.columns import Form, Takes
from headrace.core.conversion import FLOAT32_MAX, places_by, to_results
from headrace.core.errors import ConfigurationError
from headrace.core.phases import Phase, during
from headrace.core.result import PredictionResult
from headrace.rows.blocks import Block, BrokenLine, Record, name_of_type, types_of_schema
from headrace.rows.examples import ExampleOfRow, Examples
from headrace.rows.values import (
    ZERO,
    as_array,
    as_values,
    is_number,
    is_text,
    is_vector,
    numbers_of,
    plain,
)
from headrace.runtime.plan import make_plan

_MOMENT = pyarrow.timestamp("us")
_OF_NULLS = {"int": pyarrow.float64(), "float": pyarrow.float64(), "str": pyarrow.string(), "datetime": _MOMENT}
"""What a column without values is in a frame, by what it holds in other rows."""
_SETTLED = [pyarrow.int64(), pyarrow.float64(), pyarrow.bool_(), pyarrow.string(), pyarrow.large_string()]
_SETTLED += [pyarrow.date32(), _MOMENT]
"""Types that a column with nulls may have."""
_LIMITS = -FLOAT32_MAX, FLOAT32_MAX
_NUMBERS = {"int", "float", "bool", "list"}
_NO_NUMBERS = "date", "time", "duration", "binary", "large_binary", "fixed_size_binary", "struct", "map"
"""How the names of types begin of which no value is a number or a text."""
_LISTS = "list<", "large_list<", "fixed_size_list<"
"""How the names of Arrow's types of lists begin."""


class Fit(NamedTuple):
    """What a model takes of blocks."""

    names: tuple[str, ...]
    """The columns that it sees, in its order."""
    takes: Takes = Takes()
    """In which form; but in a frame, columns are without nulls."""
    reserved: Collection[str] = ()
    """Columns that no row may have."""

    def has_types(self, types: Mapping[str, str]) -> bool:
        """Whether columns of these types, named as by ``types_of_schema``, may be all that the model sees."""
        form, kinds = self.takes.form, {types.get(name, "") for name in self.names}
        if form is Form.TEXTS:
            return len(self.names) == 1 and kinds == {"str"}
        known = _NUMBERS | {"str"} if form is Form.ARRAYS and self.takes.limits is None else _NUMBERS
        return form is Form.FRAME or all(kind in known or kind.startswith(_LISTS) for kind in kinds)

    def refuse_types(self, handler: Any, types: Mapping[str, str]) -> None:
        """Raises ConfigurationError if a column has no value of which a handler of Headrace's makes an example."""
        makes = getattr(type(make_plan(handler).handler), "example_from_row", None)
        is_own = getattr(makes, "__module__", "").startswith("headrace.handlers.")
        for name in self.names if is_own and self.takes.form is not Form.FRAME else ():
            if (kind := types.get(name, "")).startswith(_NO_NUMBERS):
                raise ConfigurationError(
                    f"column {name!r} holds {kind}, which {type(handler).__qualname__} cannot take; leave it out with "
                    "--columns, or convert it before."
                )

    def limits_of(self, name: str) -> tuple[float, float]:
        """The least and the largest number of a column; integers if it takes whole numbers only."""
        return _LIMITS if self.takes.limits is None else self.takes.limits(name)


@during(Phase.READING)
def fitted(blocks: Iterable[Block], fit: Fit) -> Iterator[Block]:
    """Blocks of rows that fit, and blocks of one record, in place of those that do not."""
    for block in blocks:
        unfit = _unfit(block, fit)
        if unfit is None or not unfit.any():
            yield block
            continue
        start = 0
        for place in [*numpy.flatnonzero(unfit).tolist(), len(block)]:
            if place > start:
                yield block[start:place]
            if place < len(block):
                one = block[place : place + 1]
                yield one if block.batch is None else replace(one, batch=None, records=one.rows(), typed=one.batch)
            start = place + 1


def _unfit(block: Block, fit: Fit) -> Any:
    """A boolean array of the rows that do not fit, or cannot be read; None: all do."""
    batch, needed, is_frame = block.batch, set(block.names), fit.takes.form is Form.FRAME
    if hasattr(batch, "iloc"):
        return None
    if batch is None:
        return numpy.array([not (is_frame and _is_whole(row, needed, fit.reserved)) for row in block.records])
    if not needed <= set(batch.schema.names) or not fit.has_types(types_of_schema(batch.schema)):
        return numpy.ones(len(block), bool)
    unfit = _unreadable(batch)
    for name in () if is_frame else block.names:
        column = plain(batch.column(batch.schema.get_field_index(name)))
        if is_vector(column.type):
            bad = _wrong_vectors(column, fit.limits_of(name))
        elif column.type.num_fields:  # lists of others
            return numpy.ones(len(block), bool)
        else:
            bad = _wrong(column, fit.limits_of(name), nulls=not fit.takes.missing, nan=not fit.takes.missing)
        if bad is not None:
            unfit = bad if unfit is None else unfit | bad
    return unfit


def _is_whole(row: Record, needed: AbstractSet[str], reserved: Collection[str]) -> bool:
    return isinstance(row, dict) and needed <= row.keys() and row.keys().isdisjoint(reserved)


def _unreadable(batch: Any) -> Any:
    """Which rows of a record batch contain a value that Python cannot represent; None: no row."""
    doubtful = [place for place, column in enumerate(batch.columns) if not _is_readable(column)]
    if not doubtful:
        return None
    return numpy.array([isinstance(row, BrokenLine) for row in Block(0, 0, batch=batch.select(doubtful)).rows()])


def _is_readable(column: Any) -> bool:
    if is_number(column.type) or is_vector(column.type):
        return True
    try:
        if pyarrow.types.is_dictionary(column.type):
            return _is_readable(column.dictionary)
        if is_text(column.type):
            column.validate(full=True)  # only checks UTF-8: much faster
        else:
            as_values(column)
    except Exception:  # whatever the value's type raises
        return False
    return True


def _wrong_vectors(column: Any, limits: tuple[float, float]) -> Any:
    """Marks vectors that differ in length from most, or hold a wrong number; None: there are none."""
    lengths = numbers_of(pyarrow.compute.fill_null(pyarrow.compute.list_value_length(column), -1))
    width = numpy.bincount(lengths[lengths >= 0]).argmax() if (lengths >= 0).any() else 0
    unfit = lengths != width
    numbers = column.filter(pyarrow.array(~unfit)) if unfit.any() else column
    bad = _wrong(plain(numbers.flatten()), limits, nulls=True)
    if bad is not None:
        unfit[numpy.flatnonzero(~unfit)[bad.reshape(-1, width).any(axis=1)]] = True
    return unfit if unfit.any() or not width else None


def _wrong(column: Any, limits: tuple[float, float], *, nulls: bool, nan: bool = True) -> Any:
    """Marks nulls (if ``nulls``), NaN (if ``nan``) and numbers beyond the limits; None: there are none."""
    missing = numbers_of(column.is_null()) if nulls and column.null_count else None
    kind, (least, most), whole = column.type, limits, isinstance(limits[1], int)
    if pyarrow.types.is_floating(kind):
        most = math.nextafter(most + 1, 0) if whole else most
    elif kind == pyarrow.uint64() or (limits != _LIMITS and pyarrow.types.is_integer(kind)):
        least, most = max(least, -(2**63)), min(most, 2**63 - 1)
    else:
        return missing
    values = numbers_of(column.fill_null(ZERO.cast(kind)) if column.null_count else column)
    broken = numpy.trunc(values) != values if whole and values.dtype.kind == "f" else numpy.False_
    if not len(values) or (values.max() <= most and values.min() >= least and not broken.any()):  # false if NaN
        return missing
    wrong = ~(values <= most) | ~(values >= least) | broken
    if not nan:
        wrong &= ~numpy.isnan(values)
    return wrong if missing is None else wrong | missing


def over_blocks(handler: Any, examples: Examples, fit: Fit) -> Any:
    """A copy of a handler whose elements are blocks of rows that ``fit``.

    A preprocessing function makes the example of a row that does not fit into columns; it refuses reserved columns.
    """
    inner = make_plan(handler).handler
    of_blocks = OfBlocks(ExampleOfRow(examples, inner, fit.reserved), fit.takes.form, examples.types)
    over = copy.copy(inner)
    vars(over)["runs_elements"] = of_blocks.run
    return over.with_preprocess_fn(of_blocks.prepare)


class OfBlocks(NamedTuple):
    """What becomes of blocks of rows before and behind the model."""

    of_row: ExampleOfRow
    form: Form
    types: Mapping[str, Any]
    """What the columns hold."""

    def prepare(self, block: Block) -> Block:
        """Adds the example to a block of one record."""
        if block.batch is None:
            return replace(block, example=self.of_row(block[0])) if len(block) == 1 else block
        if hasattr(block.batch, "schema"):
            self.of_row.refuse_reserved(block.batch.schema.names)
        return block

    def run(self, handler: Any, blocks: Sequence[Block], model: Any, inference_args: dict[str, Any] | None) -> Any:
        """Calls the model once if all blocks have one kind, and else once for each kind."""
        together = places_by(block.kind for block in blocks)
        if len(together) == 1:
            return self._answer(handler, blocks, model, inference_args)
        results: list[list[Any]] = [[] for _ in range(len(blocks) + 1)]
        for places in together.values():
            answer = self._answer(handler, [blocks[place] for place in places], model, inference_args)
            coming = iter(_row_by_row(answer))
            for place in places:
                results[place] = list(islice(coming, len(blocks[place])))
            results[-1] += coming  # surplus predictions, for the count check to find
        return list(chain.from_iterable(results))

    def _answer(self, handler: Any, blocks: Sequence[Block], model: Any, inference_args: dict[str, Any] | None) -> Any:
        columns = self.columns(blocks)
        if columns is not None:
            return _as_column(handler.run_columns(columns, model, inference_args))
        known = (map(self.of_row, one.rows()) if one.example is None else [one.example] for one in blocks)
        examples = list(chain.from_iterable(known))
        answer = predictions_of(handler.run_inference(examples, model, inference_args), handler, len(examples))
        return [one._replace(inference=_of_numpy(one.inference)) if hasattr(one, "model_id") else one for one in answer]

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


def _joined(blocks: Sequence[Block]) -> Any:
    """The model's columns of blocks of one kind, as a record batch or a data frame."""
    names = list(blocks[0].names)
    if hasattr(blocks[0].batch, "iloc"):
        return concatenate([block.batch[names] for block in blocks])
    chosen = (block.batch.select(names).columns for block in blocks)
    return concatenate([pyarrow.RecordBatch.from_arrays(columns, names) for columns in chosen])  # of one schema


def _in_frame(column: Any, kind: str | None) -> Any:
    """A column for a frame, of the type that all rows have; None if the frame takes Python's values, row by row.

    Nulls are missing values of the type that all rows have, ``kind``: it has to be known, and be that of these rows.
    """
    of, types = column.type, pyarrow.types
    if types.is_null(of):
        return column.cast(_OF_NULLS[kind]) if kind in _OF_NULLS else column
    if kind == "float" and types.is_integer(of):
        return column.cast(pyarrow.float64(), safe=False)  # as Python rounds
    if of not in _SETTLED:
        return column if not column.null_count and types.is_timestamp(of) and of.unit == "us" else None
    is_known = kind == name_of_type(of) or (kind == "int" and types.is_floating(of))
    return column if is_known or not column.null_count else None


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
    if isinstance(answer, list):
        return answer
    predictions, model_id = (answer.inference, answer.model_id) if hasattr(answer, "inference") else (answer, None)
    return to_results((), predictions, model_id)

"""What handlers convert: a model's answer to one result for each example, a row to numbers, columns to a matrix."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain, repeat
from typing import Any

from headrace.core.answer import predictions_of
from headrace.core.errors import PredictionCountError
from headrace.core.result import PredictionResult

FLOAT32_MAX = (2 - 2**-23) * 2.0**127
"""The largest number that a 32-bit float can hold."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_SHOWN = 80
"""How much of a wrong value an error message quotes, in characters."""


def to_results(batch: Iterable[Any], predictions: Any, model_id: str | None = None) -> list[PredictionResult]:
    """Pairs each example with its prediction.

    Args:
        batch: the examples.
        predictions: an iterable with one prediction for each example, in their order; or a mapping from names to such
            iterables, of which each example gets a dict with its own items.
        model_id: which model answered.

    Returns:
        As many results as there are predictions, never fewer, so that whoever counts them sees a model that gave too
        many: those come with ``None`` as their example.

    Raises:
        PredictionCountError: there is no list of predictions, or a mapping's differ in length.
    """
    is_by_name = isinstance(predictions, Mapping)
    rows = _transposed(predictions) if is_by_name else predictions_of(predictions, "the inference function")
    examples = chain(batch, repeat(None))
    return [PredictionResult(example, row, model_id) for example, row in zip(examples, rows, strict=False)]


def single_output(answer: Any) -> Any:
    """A model's answer, unless it is a tuple.

    Models return tuples of outputs, each for the whole batch; taken for predictions, a pair of outputs would pass for
    the predictions of any batch of two.

    Raises:
        PredictionCountError: the answer is a tuple; says what to do.
    """
    if isinstance(answer, tuple):
        raise PredictionCountError(
            f"the model returned a tuple of {len(answer)} outputs; give the handler an inference_fn that says which of "
            "them are the predictions, or returns them in a dict."
        )
    return answer


def to_numbers(row: Mapping[str, Any], largest: float = sys.float_info.max) -> list[float]:
    """The numbers in a row's columns, in their order; a column that holds a list gives all of its numbers.

    Args:
        row: values by column: numbers, booleans, strings that are numbers (as CSV gives them), or flat lists (arrays)
            of those.
        largest: the largest magnitude that the receiver can hold.

    Raises:
        ValueError: the row is empty, or a value is no finite number; names the column and the value.
    """
    if not row:
        raise ValueError("a row without columns makes no example; name at least one column.")
    numbers: list[float] = []
    for column, value in row.items():
        if type(value) is float and abs(value) <= largest:  # nearly all of them: ten times as fast
            numbers.append(value)
        else:
            numbers += column_numbers(column, value, largest)
    return numbers


def to_matrix(columns: Any, numpy: Any, dtype: str | None = None) -> Any:
    """Rows by columns, in the order of the columns, as a numpy array; an array that is given stays as it is.

    Args:
        columns: an array, a mapping of names to arrays, an Arrow record batch or table, or a data frame.
        numpy: the package.
        dtype: of a matrix that is made of columns; None: what numpy makes of theirs.

    Raises:
        ValueError: a column is not of numbers.
    """
    if isinstance(columns, numpy.ndarray):
        return columns
    if hasattr(columns, "num_columns"):  # Arrow's
        columns = {index: columns.column(index) for index in range(columns.num_columns)}
    if hasattr(columns, "iloc"):  # a data frame of several types would be an array of objects
        columns = {index: columns.iloc[:, index] for index in range(columns.shape[1])}
    if isinstance(columns, Mapping):
        columns = numpy.column_stack([numpy.asarray(column) for column in columns.values()])
    matrix = numpy.asarray(columns)
    if matrix.dtype.kind not in "biuf":
        raise ValueError(f"the columns make a matrix of {matrix.dtype}, not one of numbers.")
    if dtype and matrix.dtype.kind in "iu":  # rounded as the numbers of a row are: to Python's floats first
        matrix = matrix.astype("float64")
    return matrix.astype(dtype, copy=False) if dtype else matrix


def column_numbers(column: str, value: Any, largest: float = sys.float_info.max) -> list[float]:
    """The number, or the numbers of a list, that one column holds.

    Raises:
        ValueError: one of them is no finite number; names the column and the value.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    items = value if isinstance(value, list | tuple) else [value]
    return [_to_number(column, item, largest) for item in items]


def parsed(value: Any) -> Any:
    """A string that as a whole is a decimal number, as that number (int where it is written as one); else the value."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
        return value
    number = float(value)
    if not math.isfinite(number):
        return value
    return int(value) if set(value).isdisjoint(".eE") else number


def _to_number(column: str, value: Any, largest: float) -> float:
    number, readable = math.nan, parsed(value)
    if not isinstance(readable, str | bytes):  # of which float() would accept "nan" and "1_000" too
        with suppress(TypeError, ValueError, OverflowError):
            number = float(readable)
    if abs(number) <= largest:
        return number
    raise ValueError(f"column {column!r} holds {repr(value)[:_SHOWN]}, which is no finite number.")


def _transposed(columns: Mapping[Any, Iterable[Any]]) -> list[dict[Any, Any]]:
    lists = {name: predictions_of(column, f"output {name!r} of the model") for name, column in columns.items()}
    lengths = {name: len(column) for name, column in lists.items()}
    if len(set(lengths.values())) > 1:
        raise PredictionCountError(
            f"the model's outputs differ in length, so they cannot belong to the same examples: {lengths}"
        )
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]

"""Shared by the handlers of numpy arrays: how a batch of examples becomes arrays for the model."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from headrace.core.columns import Form, Takes
from headrace.core.conversion import (
    FLOAT32_MAX,
    arrays_in,
    by_name,
    column_numbers,
    predict_stacked,
    to_matrix,
    to_numbers,
    to_results,
)
from headrace.core.errors import extra_required
from headrace.core.result import PredictionResult
from headrace.handlers.base import TakesColumns

with extra_required("onnx"):
    import numpy

Array = numpy.ndarray[Any, Any]

_nbytes = operator.attrgetter("nbytes")


class ArrayExamples:
    """For a handler whose examples are numpy arrays, or dicts of arrays."""

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Bytes of the arrays' elements; lists of numbers count as the arrays that they become."""
        return sum(map(_nbytes, map(numpy.asarray, arrays_in(batch))))


class ArrayPredictions(ArrayExamples, TakesColumns[Any, Any]):
    """For such a handler whose ``inference_fn`` takes (model, batch, inference_args), and returns predictions."""

    def _called(self, batch: Any, model: Any, inference_args: dict[str, Any] | None) -> Iterable[PredictionResult]:
        return to_results(batch, self._answer(batch, model, inference_args), self._model_uri)

    def _answer(self, rows: Any, model: Any, inference_args: dict[str, Any] | None) -> Any:
        return self._inference_fn(model, rows, inference_args)


class InputRows(ArrayExamples):
    """For a handler whose model takes a matrix of floats or, with ``columns_are_inputs``, arrays by name."""

    _columns_are_inputs = False
    _of_rows = "float32"
    """The dtype of numbers in rows and columns, which fit 32-bit floats."""
    _of_array: ClassVar[Any] = staticmethod(lambda array: array)
    """What makes an array the framework's."""

    @property
    def takes(self) -> Takes:
        """The inputs by name, or a matrix."""
        return Takes(Form.ARRAYS if self._columns_are_inputs else Form.MATRIX)

    def example_from_row(self, row: Mapping[str, Any]) -> Any:
        """A row's columns, in their order, as a 1-D array or tensor of floats; ValueError names one that is none.

        With ``columns_are_inputs`` they are a dict of arrays.
        """
        if self._columns_are_inputs:
            return {name: _as_array(name, value) for name, value in row.items()}
        return self._of_array(numpy.array(to_numbers(row, FLOAT32_MAX), dtype=self._of_rows))

    def _rows_of(self, columns: Any) -> Any:
        """An array, or columns that make a matrix; or with ``columns_are_inputs`` columns by name."""
        if self._columns_are_inputs:
            return {name: numpy.asarray(values) for name, values in by_name(columns).items()}
        return self._of_array(to_matrix(columns, numpy, self._of_rows))


def predict_arrays(
    batch: Any,
    ask: Callable[[Any], Any],
    dtype: Any = None,
    inputs: Callable[[], Mapping[str, tuple[Any, int]]] = dict,
    rows: Callable[[Any], Any] = lambda answer: answer,
) -> Any:
    """Predicts for arrays, or arrays by the names of a model's inputs: calls the model once for those of one kind.

    Numbers are converted to the dtypes that the model takes, as ``fitted`` does, whose errors name the input.

    Args:
        batch: arrays, lists of numbers, or dicts of them; or an array, or a dict of arrays, with all rows.
        ask: calls the model on an array, or on a dict of arrays, with a row for each example.
        dtype: what the model takes of an array; None: any.
        inputs: the dtype, and the number of axes, of each input by its name; arrays of other names are left out.
        rows: turns an answer into one prediction for each row.
    """

    def ask_by_name(arrays: Mapping[str, Array]) -> Any:
        known = inputs()
        return ask({name: _fed(name, values, *known[name]) for name, values in arrays.items() if name in known})

    if isinstance(batch, Mapping):
        return rows(ask_by_name(batch))
    if isinstance(batch, numpy.ndarray):
        return rows(ask(batch if dtype is None else fitted(batch, dtype)))
    if len(batch) and isinstance(batch[0], Mapping):
        named = [{name: numpy.asarray(value) for name, value in example.items()} for example in batch]
        return predict_stacked(named, numpy.stack, ask_by_name, lambda answer, _: rows(answer))
    arrays = list(map(numpy.asarray, batch))
    if dtype is not None:
        arrays = [array if array.dtype == dtype else fitted(array, dtype) for array in arrays]
    return predict_stacked(arrays, _stacked, ask, lambda answer, _: rows(answer))


def _as_array(column: str, value: Any) -> Array:
    """A value as an array: a text as an object, numbers as they are, a list as a 1-D array."""
    if isinstance(value, str):
        return numpy.array(value, dtype=object)
    numbers = column_numbers(column, value)
    is_plain = all(isinstance(one, bool | int | float) for one in (value if isinstance(value, list) else [value]))
    return numpy.array(value if is_plain else numbers)


def _fed(name: str, values: Array, dtype: Any, axes: int) -> Array:
    """Values for an input; in a column of their own where it has two axes."""
    try:
        values = values if dtype is None else fitted(values, dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"input {name!r}: {error}") from error
    return values[:, None] if values.ndim == 1 and axes == 2 else values


def with_names(rows: Any, names: Sequence[Any]) -> Any:
    """A structured array of rows of numbers, if there is a name for each column; else the rows as they are."""
    texts = [str(name) for name in names]
    if not isinstance(rows, numpy.ndarray) or rows.ndim != 2 or rows.shape[1] != len(set(texts)) or "" in texts:
        return rows
    return numpy.ascontiguousarray(rows).view([(text, rows.dtype) for text in texts]).reshape(len(rows))


def _stacked(arrays: Sequence[Array]) -> Array:
    """As ``numpy.stack``, for arrays of one shape; for rows of numbers in a third of its time."""
    if arrays[0].ndim != 1:
        return numpy.stack(arrays)
    return numpy.concatenate(arrays).reshape(len(arrays), arrays[0].size)


def fitted(array: Array, dtype: Any) -> Array:
    """Converts an array to another dtype, if that changes no value beyond rounding a float.

    Numbers and booleans become floats, whole numbers integers or booleans; strings and objects are not converted.

    Raises:
        TypeError: the array does not hold numbers.
        ValueError: ``dtype`` cannot hold one of its numbers.
    """
    dtype = numpy.dtype(dtype)
    if array.dtype == dtype or (dtype.kind == "O" and array.dtype.kind in "OUST"):
        return array
    given = array.dtype
    if given.kind == "O" and all(isinstance(item, int | float | numpy.number) for item in array.flat):
        array = numpy.array(array.tolist())
    if array.dtype.kind not in "biuf" or dtype.kind not in "biuf":
        wanted = "texts" if dtype.kind == "O" else dtype
        raise TypeError(f"the model takes {wanted}, and an example is of {given}; convert it before.")
    with numpy.errstate(all="ignore"):
        converted = array.astype(dtype)
        finite = numpy.isfinite(array)
        fits = numpy.isfinite(converted) | ~finite if dtype.kind == "f" else (converted == array) & finite
    if not fits.all():
        wrong = array[~fits].flat[0].item()
        raise ValueError(f"the model takes {dtype}, which cannot hold {wrong!r}; convert it before.")
    return converted

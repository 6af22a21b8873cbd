"""What the handlers of numpy arrays share: how the examples of a batch become arrays for the model."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from headrace.core.conversion import answer_with_rows, in_groups
from headrace.core.errors import MissingExtraError

try:
    import numpy
except ImportError as error:
    raise MissingExtraError("numpy", "onnx") from error

__all__ = ["fitted", "stacked_alike"]

Array = numpy.ndarray[Any, Any]

_kind = operator.attrgetter("dtype", "shape")


def stacked_alike(
    batch: Any, predict: Callable[[Array], Any], dtype: Any = None, rows: Callable[[Any], Any] = lambda answer: answer
) -> Any:
    """Predictions of arrays, where ``predict`` is called once for those of one dtype and shape, stacked.

    Args:
        batch: arrays, or lists of numbers; an array with the examples as its rows stays as it is.
        predict: what the model answers to an array's rows.
        dtype: what the model takes, see ``fitted``; None: whatever it is given.
        rows: makes predictions, one for each row, of an answer.

    Raises:
        TypeError, ValueError: an example cannot be converted to ``dtype``.
    """
    if isinstance(batch, numpy.ndarray):
        return rows(predict(batch if dtype is None else fitted(batch, dtype)))
    arrays = list(map(numpy.asarray, batch))
    if dtype is not None:
        arrays = [array if array.dtype == dtype else fitted(array, dtype) for array in arrays]

    def ask(alike: Sequence[Array]) -> Any:
        return predict(numpy.stack(alike))

    return in_groups(arrays, _kind, lambda alike: rows(answer_with_rows(ask, alike)))


def fitted(array: Array, dtype: Any) -> Array:
    """An array as one of another dtype, if that changes no value by more than rounding a float.

    Numbers and booleans become floats, and whole numbers integers or booleans; strings and objects nothing but what
    they are.

    Raises:
        TypeError: the array is not of numbers.
        ValueError: it holds a number that ``dtype`` cannot.
    """
    dtype = numpy.dtype(dtype)
    if array.dtype == dtype or (dtype.kind == "O" and array.dtype.kind in "OUST"):
        return array
    values = _numbers(array)
    if values is None or dtype.kind not in "biuf":
        raise TypeError(f"the model takes {dtype}, and an example is of {array.dtype}; convert it before.")
    with numpy.errstate(all="ignore"):
        converted = values.astype(dtype)
        if dtype.kind == "f":
            fits = numpy.isfinite(converted) | ~numpy.isfinite(values)
        else:
            fits = (converted == values) & numpy.isfinite(values)
    if not fits.all():
        raise ValueError(f"the model takes {dtype}, which cannot hold {values[~fits].flat[0]!r}; convert it before.")
    return converted


def _numbers(array: Array) -> Array | None:
    """The array, if it is of numbers; of objects that are numbers, or booleans, one of these."""
    if array.dtype.kind == "O" and all(isinstance(item, int | float | numpy.number) for item in array.flat):
        array = numpy.array(array.tolist())
    return array if array.dtype.kind in "biuf" else None

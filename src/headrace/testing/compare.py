"""Equality for predictions, of any framework and without importing one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Number
from typing import Any


def nearly_equal(a: Any, b: Any, *, relative: float = 1e-4, absolute: float = 1e-5) -> bool:
    """Whether two values have the same structure and nearly the same numbers in it.

    Compares mappings, lists, tuples, arrays, tensors and data frames of any framework, and plain objects. NaN equals
    NaN; integers are compared exactly. Arrays of the same shape may differ in number type; an array never equals a
    list.

    Args:
        a: any value.
        b: any value.
        relative: largest difference between two numbers as a share of the larger one; the default allows for another
            order of a sum of 32-bit floats.
        absolute: largest difference between numbers near zero.
    """

    def same(x: Any, y: Any) -> bool:
        return nearly_equal(x, y, relative=relative, absolute=absolute)

    a, b = _opened(a), _opened(b)
    if isinstance(a, Number) and isinstance(b, Number):
        return _close(a, b, relative, absolute)
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    cls: Any = type(a)
    if cls.__eq__ is object.__eq__ and hasattr(a, "__dict__"):
        return same(vars(a), vars(b))
    return bool(a == b)


def _opened(value: Any) -> Any:
    """An array as its shape and nested lists, a frame as its columns and rows; anything else unchanged."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return value
    if hasattr(value, "tolist"):
        return value.tolist() if len(shape) == 0 else (tuple(shape), value.tolist())
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return tuple(shape), [str(column) for column in value.columns], value.to_numpy().tolist()
    for convert in ("numpy", "to_numpy", "toarray"):  # TensorFlow's tensors, datatable's frames, sparse matrices
        if hasattr(value, convert):
            return _opened(getattr(value, convert)())
    return value


def _close(a: Any, b: Any, relative: float, absolute: float) -> bool:
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return bool(a == b)
    if isinstance(a, complex) or isinstance(b, complex):
        return bool(abs(a - b) <= max(relative * max(abs(a), abs(b)), absolute))
    return math.isclose(a, b, rel_tol=relative, abs_tol=absolute) or (math.isnan(a) and math.isnan(b))

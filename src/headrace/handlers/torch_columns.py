"""Shared by the handlers of PyTorch models: columns as tensors, those of one row or of many."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.conversion import FLOAT32_MAX, by_name, column_integers, column_numbers
from headrace.core.errors import ConfigurationError, extra_required

with extra_required("pytorch"):
    import numpy
    import torch

__all__ = ["KeyedTensorExamples", "column_dtypes", "column_limits", "column_tensor", "column_tensors", "is_of_ids"]


class KeyedTensorExamples:
    """For a handler whose examples are dicts of tensors."""

    _dtypes: Mapping[str, torch.dtype]
    """Dtypes of columns whose name does not imply them."""

    def get_num_bytes(self, batch: Sequence[dict[str, torch.Tensor]]) -> int:
        """Bytes of the tensors' elements."""
        return sum(one.numel() * one.element_size() for example in batch for one in example.values())

    def example_from_row(self, row: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """A row's columns as tensors: a number without dimensions, a list as a 1-D tensor.

        The dtype depends on the column, never on the row: that in ``dtypes``; else 64-bit integers if the column is
        named like token ids and masks (``input_ids``, ``attention_mask``, ...); else 32-bit floats.

        Raises:
            ValueError: the column's dtype cannot hold a value; names the column and the value.
        """
        return {column: column_tensor(column, value, self._dtypes) for column, value in row.items()}


def column_dtypes(given: Mapping[str, Any] | None) -> dict[str, torch.dtype]:
    """The user's dtypes of columns, given as torch's own or by name.

    Raises:
        ConfigurationError: one is not a dtype of real numbers.
    """
    dtypes: dict[str, torch.dtype] = {}
    for name, asked in (given or {}).items():
        dtype = getattr(torch, str(asked).removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype) or dtype.is_complex:
            raise ConfigurationError(f"dtypes must map columns to dtypes, such as 'int64', not {name!r} to {asked!r}.")
        dtypes[name] = dtype
    return dtypes


def column_tensor(column: str, value: Any, dtypes: Mapping[str, torch.dtype]) -> torch.Tensor:
    """A row's column as a tensor: a number without dimensions, a list as a 1-D tensor.

    Its dtype depends on the column, never on the row: that in ``dtypes``; else 64-bit integers if the column is named
    like the token ids and masks of Hugging Face's models (``input_ids``, ``attention_mask``, ...); else 32-bit floats.

    Raises:
        ValueError: the dtype cannot hold a value; names the column and the value.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    dtype = _dtype_of(column, dtypes)
    if dtype.is_floating_point:
        numbers: list[Any] = column_numbers(column, value, min(torch.finfo(dtype).max, sys.float_info.max))
    else:
        numbers = column_integers(column, value, f"; its dtype is {dtype} unless dtypes={{{column!r}: ...}} says other")
    return torch.tensor(numbers if isinstance(value, list | tuple) else numbers[0], dtype=dtype)


def column_limits(dtypes: Mapping[str, torch.dtype], column: str) -> tuple[float, float]:
    """The least and the largest number of a column of many rows; integers where it takes whole numbers only."""
    dtype = _dtype_of(column, dtypes)
    if dtype.is_floating_point:
        largest = min(torch.finfo(dtype).max, FLOAT32_MAX)
        return -largest, largest
    info = torch.iinfo(torch.int64 if dtype == torch.bool else dtype)
    return info.min, info.max


def column_tensors(columns: Any, dtypes: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
    """Columns of many rows as tensors by name, of the dtypes and with the values that ``column_tensor`` gives each row.

    Args:
        columns: arrays or tensors by name, an Arrow table or record batch, or a data frame.
        dtypes: as for ``column_tensor``.
    """
    return {name: _column_of_rows(name, values, dtypes) for name, values in by_name(columns).items()}


def _column_of_rows(column: str, values: Any, dtypes: Mapping[str, torch.dtype]) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values
    dtype = _dtype_of(column, dtypes)
    numbers = numpy.asarray(values)
    if numbers.dtype.kind not in "biuf":
        raise TypeError(f"column {column!r} is of {numbers.dtype}, which holds no numbers.")
    if dtype.is_floating_point:  # round as rows do: Python floats first
        numbers = numbers.astype("float64", copy=False)
    return torch.from_numpy(numpy.require(numbers, requirements="W")).to(dtype)


def _dtype_of(column: str, dtypes: Mapping[str, torch.dtype]) -> torch.dtype:
    return dtypes.get(column) or (torch.int64 if is_of_ids(column) else torch.float32)


def is_of_ids(name: str) -> bool:
    """Whether a name is one of token ids, or of what goes with them."""
    return name.endswith(("_ids", "_mask", "_positions")) or name in ("ids", "mask")

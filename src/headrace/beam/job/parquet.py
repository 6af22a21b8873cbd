"""Rows of JSON as a Parquet file: types that hold everything that a column was seen to hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet

Rows = list[dict[str, Any]]

_LETTER = ("row", "stage", "operation", "error_type", "message", "traceback", "attempts", "model_id")
_NUMBERS = ("operation", "attempts")


class Columns:
    """The columns of rows and the type of each, wide enough for all rows seen; text where no other type is."""

    def __init__(self) -> None:
        self.types: dict[str, Any] = {}

    def see(self, rows: Rows) -> None:
        """Takes note of what the rows hold."""
        for name in dict.fromkeys(name for row in rows for name in row):
            self.widen(name, type_of([row.get(name) for row in rows]))

    def widen(self, name: str, kind: Any) -> None:
        """Takes note of what a column holds."""
        self.types[name] = _either(self.types.get(name, kind), kind)

    def table(self, rows: Rows) -> Any:
        """The rows as a table of these columns; what a row lacks is null."""
        arrays = [as_array([row.get(name) for row in rows], kind) for name, kind in self.types.items()]
        return pyarrow.Table.from_arrays(arrays, schema=self.schema)

    @property
    def schema(self) -> Any:
        """As Arrow has it."""
        return pyarrow.schema(list(self.types.items()))


def letter_columns() -> Columns:
    """Those of dead letters, which are the same whatever failed; a row is JSON."""
    columns = Columns()
    columns.types = {name: pyarrow.int64() if name in _NUMBERS else pyarrow.string() for name in _LETTER}
    return columns


def write_table(file: BinaryIO, columns: Columns, chunks: Iterable[Rows], check: Callable[[], None]) -> None:
    """Writes a Parquet file, a row group for each of the chunks; ``check`` is called before each and may raise."""
    with pyarrow.parquet.ParquetWriter(pyarrow.PythonFile(file, mode="w"), columns.schema) as writer:
        for rows in chunks:
            check()
            writer.write_table(columns.table(rows))


def type_of(values: list[Any]) -> Any:
    """The type of what JSON has for values; text where there is none that holds them all."""
    try:
        kind = pyarrow.array(values).type
    except (pyarrow.ArrowException, OverflowError):  # mixed types, or integers that 64 bits do not hold
        return pyarrow.string()
    return kind if _is_storable(kind) else pyarrow.string()


def _is_storable(kind: Any) -> bool:
    """Parquet has no objects without fields."""
    return all(_is_storable(kind.field(i).type) for i in range(kind.num_fields)) and not (
        pyarrow.types.is_struct(kind) and kind.num_fields == 0
    )


def _either(one: Any, other: Any) -> Any:
    if one == other:
        return one
    schemas = [pyarrow.schema([("", kind)]) for kind in (one, other)]
    try:
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pyarrow.ArrowException:
        return pyarrow.string()


def as_array(values: list[Any], kind: Any) -> Any:
    """Values in a type that is wide enough for them."""
    if pyarrow.types.is_string(kind):
        values = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    elif pyarrow.types.is_floating(kind):  # Arrow refuses integers that a float holds only nearly
        values = [value if value is None else float(value) for value in values]
    return pyarrow.array(values, kind)

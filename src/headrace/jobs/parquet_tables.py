"""Writes the record batches of an output as Parquet, each column with a type that represents all of its values exactly.

A column that has one type in all tables keeps it. Else the type follows from all values, regardless of their order and
of how they are cut into tables. A column without such a type (1 and "a", a 70-bit integer, [1] and {"a": 2}) becomes
text: strings unchanged, all else as JSON. Tables of one bundle may go into the output's own file while they come.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from headrace.core.phases import Phase, during
from headrace.jobs.json_lines import is_utf8, utf8
from headrace.jobs.output_batches import CANONICAL, json_value, rows_in_lines
from headrace.jobs.storage import prefetch
from headrace.rows.values import as_values, is_list, is_number, is_vector

GROUP_ROWS, GROUP_BYTES = 1 << 16, 1 << 24
"""The limits of a row group."""
_LETTER = ("row", "stage", "operation", "error_type", "message", "traceback", "attempts", "model_id", "position")
_NUMBERS = ("operation", "attempts")
_EXACT = 2**53
_FIELDS = 1000
"""A column of objects with more distinct fields holds mappings rather than records, and becomes text."""
_LEVELS = 30
_TYPES = pyarrow.types
_NULL = pyarrow.null()
_REFERENCE = b"headrace.group"


class Kind:
    """What values of JSON a column holds, null aside; those of several kinds have no type but text."""

    def __init__(self) -> None:
        self._integers: tuple[int, int] | None = None
        """The least and the largest."""
        self._has_floats = False
        self._items: Kind | None = None
        """Of arrays."""
        self._fields: dict[str, Kind] | None = None
        """Of objects; missing ones are null."""
        self._others = set[Any]()
        """Arrow's types of truths and of texts; None: of values that no type holds."""

    def add(self, values: Iterable[Any], levels: int = _LEVELS) -> Kind:
        """Takes values of JSON into account."""
        known = [value for value in values if value is not None]
        for kind in set(map(type, known)):
            some: list[Any] = [value for value in known if type(value) is kind]
            if kind is int:
                self._add_integers(min(some), max(some))
            elif kind is float:
                self._has_floats = True
            elif kind is list and levels:
                self._items = (self._items or Kind()).add(chain.from_iterable(some), levels - 1)
            elif kind is dict and levels:
                self._add_objects(some, levels - 1)
            elif kind is str and is_utf8("".join(some)):
                self._others.add(pyarrow.string())
            else:
                self._others.add(pyarrow.bool_() if kind is bool else None)
        return self

    def add_column(self, column: Any) -> Kind:
        """Takes a column of Arrow's into account."""
        if column.null_count == len(column):
            return self
        if is_list(column.type):
            self._items = (self._items or Kind()).add_column(pyarrow.compute.list_flatten(column))
        elif _TYPES.is_integer(column.type):
            ends = pyarrow.compute.min_max(column)
            self._add_integers(ends["min"].as_py(), ends["max"].as_py())
        elif _TYPES.is_floating(column.type):
            self._has_floats = True
        else:
            self._others.add(column.type if column.type in CANONICAL else None)
        return self

    @property
    def type(self) -> Any:
        """Arrow's type that holds all of the values exactly; null if there are none, None if there is none."""
        found = list(self._others)
        if self._has_floats or self._integers:
            found.append(_type_of_numbers(*(self._integers or (0, 0)), has_floats=self._has_floats))
        if self._items is not None:
            found.append(self._items.type and pyarrow.list_(self._items.type))
        if self._fields is not None:
            types = {name: kind.type for name, kind in self._fields.items()}
            is_exact = types and all(types.values())  # Parquet has no objects without fields
            found.append(pyarrow.struct(list(types.items())) if is_exact else None)
        return _NULL if not found else found[0] if len(found) == 1 else None

    def _add_integers(self, least: int, most: int) -> None:
        before = self._integers or (least, most)
        self._integers = min(least, before[0]), max(most, before[1])

    def _add_objects(self, values: list[dict[str, Any]], levels: int) -> None:
        names = dict.fromkeys(chain(self._fields or (), chain.from_iterable(values)))
        if len(names) > _FIELDS or not is_utf8("".join(names)):
            self._others.add(None)
            return
        fields = self._fields or {}
        self._fields = {
            name: fields.get(name, Kind()).add([value.get(name) for value in values], levels) for name in names
        }


def type_of_values(values: Iterable[Any]) -> Any:
    """Arrow's type for a column of JSON's values; text if none holds them exactly."""
    return Kind().add(values).type or pyarrow.string()


def write_parquet(
    file: BinaryIO,
    tables: Callable[[], Iterable[Any]],
    check: Callable[[], None],
    types: dict[str, Any] | None = None,
) -> None:
    """Writes tables to one Parquet file, with these column types, or those that represent all values.

    ``tables`` is called twice, first for little more than the types; an exception from ``check`` stops the work.
    """
    rows, size = 0, 0
    seen: dict[str, tuple[set[Any], Kind]] = {}
    for table in tables():
        check()
        rows, size = rows + table.num_rows, size + table.nbytes
        if types is None:
            _look_at(table, seen)
    types = types or {name: _type_of(*found) for name, found in seen.items()}
    schema = pyarrow.schema(list(zip(map(utf8, types), types.values(), strict=True)))
    with open_parquet(pyarrow.PythonFile(file, mode="w"), schema) as writer:
        alike = (_as_types(table, types, schema) for table in tables())
        size_of_group = max(1, min(GROUP_ROWS, GROUP_BYTES * rows // max(1, size)))
        with closing(prefetch(_regrouped(alike, size_of_group))) as groups:  # closing also ends its thread
            for group in groups:
                check()
                writer.write_table(group)


def open_parquet(where: Any, schema: Any) -> Any:
    """A writer of a Parquet file, given its path or a file of Arrow's. Numbers seldom gain from dictionaries."""
    texts = [field.name for field in schema if not (_TYPES.is_floating(field.type) or _TYPES.is_integer(field.type))]
    return pyarrow.parquet.ParquetWriter(where, schema, use_dictionary=texts)


def letter_types() -> dict[str, Any]:
    """The column types of dead letters, which do not depend on what failed; a row becomes JSON text."""
    return {name: pyarrow.int64() if name in _NUMBERS else pyarrow.string() for name in _LETTER}


def as_array(values: list[Any], kind: Any) -> Any:
    """Values as an array of a type that represents them."""
    if _TYPES.is_string(kind):
        known = map(json_value, values)
        values = [one and utf8(one) if isinstance(one, str | None) else json.dumps(one) for one in known]
    return pyarrow.array(values, kind)


class RowGroup(NamedTuple):
    """A row group of the output's own file, which holds rows of a part."""

    path: str
    number: int

    @classmethod
    def of(cls, schema: Any) -> RowGroup | None:
        """What a batch with this schema refers to; None if the batch holds its rows itself."""
        reference = (schema.metadata or {}).get(_REFERENCE)
        return None if reference is None else cls(*json.loads(reference))

    def reference(self) -> Any:
        """A record batch that stands for the rows."""
        return pyarrow.RecordBatch.from_arrays([], schema=pyarrow.schema([], metadata={_REFERENCE: json.dumps(self)}))

    def read(self) -> Any:
        """The rows, as a table."""
        with pyarrow.parquet.ParquetFile(self.path, memory_map=True) as file:
            return file.read_row_group(self.number).replace_schema_metadata(None)


class DirectParquet:
    """A Parquet file of the predictions that is written while they come: a large output is not written twice.

    The first table creates it, and each becomes a row group, as long as they have the same types. A thread encodes it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: Any = None
        self._groups = 0
        self._is_over = False
        self._thread = ThreadPoolExecutor(1, "headrace-writes")
        self._written: Future[None] | None = None
        """Of the last row group."""

    def add(self, table: Any) -> Any:
        """Has a row group written, once the one before it is, and returns what stands for it in a part.

        None if the table does not fit; then no others do.

        Raises:
            Exception: a row group could not be written.
        """
        if self._is_over or not self._fits(table.schema):
            self.close()
            return None
        self._wait()
        self._written = self._thread.submit(self._write, table)
        self._groups += 1
        return RowGroup(self._path, self._groups - 1).reference()

    def close(self) -> None:
        """Ends the file; it takes no more rows."""
        self._is_over = True
        try:
            self._wait()
        finally:
            self._thread.shutdown()
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()

    @during(Phase.WRITING)
    def _write(self, table: Any) -> None:
        self._writer.write_table(table.unify_dictionaries(), table.num_rows)

    def _wait(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _fits(self, schema: Any) -> bool:
        if self._writer is not None:
            return bool(self._writer.schema.equals(schema, check_metadata=True))
        if schema.metadata or any(map(_TYPES.is_null, schema.types)):  # lines; or a type that is not known yet
            return False
        self._writer = open_parquet(self._path, schema)
        return True


def _regrouped(tables: Iterable[Any], rows: int) -> Iterator[Any]:
    """Cuts tables of one schema into tables of ``rows`` rows each; the last may be shorter."""
    waiting: list[Any] = []
    missing = rows
    for table in tables:
        start = 0
        while table.num_rows - start >= missing:
            yield pyarrow.concat_tables([*waiting, table.slice(start, missing)]).combine_chunks()
            start, waiting, missing = start + missing, [], rows
        if start < table.num_rows:
            waiting.append(table.slice(start))
            missing -= table.num_rows - start
    if waiting:
        yield pyarrow.concat_tables(waiting).combine_chunks()


def _type_of_numbers(least: int, most: int, *, has_floats: bool) -> Any:
    if has_floats:
        return pyarrow.float64() if least >= -_EXACT and most <= _EXACT else None
    if least >= -(2**63) and most < 2**63:
        return pyarrow.int64()
    return pyarrow.uint64() if least >= 0 and most < 2**64 else None


def _look_at(table: Any, seen: dict[str, tuple[set[Any], Kind]]) -> None:
    """Adds, for each column, its type, None for values in lines of JSON, and the kind of the values."""
    columns, rows = _columns_and_rows(table)
    for name, column in columns.items():
        types, kind = seen.setdefault(name, (set(), Kind()))
        types.add(column.type)
        kind.add_column(column)
    for name in dict.fromkeys(chain.from_iterable(rows)):
        types, kind = seen.setdefault(name, (set(), Kind()))
        values = [row.get(name) for row in rows]
        types.add(_NULL if values.count(None) == len(values) else None)
        kind.add(values)


def _type_of(types: set[Any], kind: Kind) -> Any:
    known = types - {_NULL} or {_NULL}
    one = known.pop() if len(known) == 1 else None
    return kind.type or pyarrow.string() if one is None else one


def _columns_and_rows(table: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The columns of a table, and what lines of JSON add to them."""
    rows = rows_in_lines(table)
    columns = table.columns if rows is None else table.columns[:-1]
    return dict(zip(table.schema.names, columns, strict=False)), rows or []


def _as_types(table: Any, types: dict[str, Any], schema: Any) -> Any:
    """A table with columns of these types, which fit all tables; missing columns are null."""
    columns, rows = _columns_and_rows(table)
    found = [
        as_array([row.get(name) for row in rows], kind)
        if rows and name not in columns
        else _as_type(columns.get(name), kind, table.num_rows)
        for name, kind in types.items()
    ]
    return pyarrow.Table.from_arrays(found, schema=schema)


def _as_type(column: Any, kind: Any, rows: int) -> Any:
    if column is None or column.null_count == rows:
        return pyarrow.nulls(rows, kind)
    if column.type == kind:
        return column
    if (is_number(kind) and is_number(column.type)) or (is_vector(kind) and is_vector(column.type)):
        return column.cast(kind, safe=False)
    return as_array(as_values(column.combine_chunks()), kind)

"""Writes the record batches of an output as Parquet, each column with a type that represents all of its values exactly.

A column that has one type in all tables keeps it. Else the type follows from all values, regardless of their order and
of how they are cut into tables. A column without such a type (1 and "a", a 70-bit integer, [1] and {"a": 2}) becomes
text: strings unchanged, all else as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any, BinaryIO, NamedTuple, TypeVar

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from headrace.jobs.json_lines import is_utf8, utf8
from headrace.jobs.output_batches import CANONICAL, json_value, rows_in_lines
from headrace.jobs.storage import prefetch
from headrace.rows.values import as_values, is_number, is_vector

GROUP_ROWS, GROUP_BYTES = 1 << 16, 1 << 24
"""The limits of a row group."""
_LETTER = ("row", "stage", "operation", "error_type", "message", "traceback", "attempts", "model_id", "position")
_NUMBERS = ("operation", "attempts")
_EXACT = 2**53
_FIELDS = 1000
"""A column of objects with more distinct fields holds mappings rather than records, and becomes text."""
_LEVELS = 30
_TYPES = pyarrow.types
_WITH_LENGTHS = _TYPES.is_string, _TYPES.is_large_string, _TYPES.is_binary, _TYPES.is_large_binary


class Kind(NamedTuple):
    """What values of JSON a column holds, null aside; those of several kinds have no type but text."""

    numbers: tuple[int, int, bool] | None = None
    """The least and the largest integer, and whether there are floats."""
    items: Kind | None = None
    """Of arrays."""
    fields: dict[str, Kind] | None = None
    """Of objects; missing ones are null."""
    others: frozenset[Any] = frozenset()
    """Arrow's types of truths and of texts; None: of values that no type holds."""


NOTHING, UNTYPED = Kind(), Kind(others=frozenset([None]))
_TRUTHS, _TEXTS = (Kind(others=frozenset([kind])) for kind in (pyarrow.bool_(), pyarrow.string()))
NULL = pyarrow.null()
ItemT = TypeVar("ItemT")


def write_parquet(
    file: BinaryIO,
    tables: Callable[[], Iterable[Any]],
    check: Callable[[], None],
    types: dict[str, Any] | None = None,
) -> None:
    """Writes tables to one Parquet file. Row groups depend only on the rows, not on how the tables are cut.

    Args:
        file: to write.
        tables: returns the tables; called twice, the first time for little more than the column types.
        check: called repeatedly; an exception from it stops the work.
        types: Arrow's types by column name; None: each column gets one that represents all of its values.
    """
    rows, size = 0, 0
    seen: dict[str, tuple[Any, Kind]] = {}
    for table in tables():
        check()
        rows, size = rows + table.num_rows, size + _size(table)
        for name, its_type, kind in () if types else _kinds_of(table):
            one_type, kinds = seen.get(name, (NULL, NOTHING))
            seen[name] = _one_type(one_type, its_type), either(kinds, kind)
    types = types or {name: type_of(kind) if one is None else one for name, (one, kind) in seen.items()}
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


def kind_of(values: Iterable[Any], levels: int = _LEVELS) -> Kind:
    """The kind of JSON values."""
    values = [value for value in values if value is not None]
    types = set(map(type, values))
    if not types:
        return NOTHING
    if types <= {int, float}:
        integers = values if float not in types else [value for value in values if type(value) is int]
        return Kind((min(integers, default=0), max(integers, default=0), float in types))
    if types == {list} and levels:
        return Kind(items=kind_of(chain.from_iterable(values), levels - 1))
    if types == {dict} and levels:
        names = dict.fromkeys(chain.from_iterable(values))
        if len(names) <= _FIELDS and is_utf8("".join(names)):
            return Kind(fields={name: kind_of([value.get(name) for value in values], levels - 1) for name in names})
    if types == {str} and is_utf8("".join(values)):
        return _TEXTS
    return _TRUTHS if types == {bool} else UNTYPED


def either(one: Kind, other: Kind) -> Kind:
    """The kind of the values of both; joining is commutative and associative."""
    fields = _together(one.fields, other.fields, _either_of_fields)
    others = one.others | other.others
    if None in others or len(fields or ()) > _FIELDS:
        return UNTYPED
    return Kind(
        _together(one.numbers, other.numbers, lambda a, b: (min(a[0], b[0]), max(a[1], b[1]), a[2] or b[2])),
        _together(one.items, other.items, either),
        fields,
        others,
    )


def _either_of_fields(one: dict[str, Kind], other: dict[str, Kind]) -> dict[str, Kind]:
    return {name: either(one.get(name, NOTHING), other.get(name, NOTHING)) for name in {**one, **other}}


def _together(one: ItemT | None, other: ItemT | None, join: Callable[[ItemT, ItemT], ItemT]) -> ItemT | None:
    return other if one is None else one if other is None else join(one, other)


def type_of(kind: Kind) -> Any:
    """Arrow's type for a column; text if no exact type exists."""
    return _exact_type(kind) or pyarrow.string()


def _exact_type(kind: Kind) -> Any:
    found = list(kind.others)
    if kind.numbers is not None:
        found.append(_type_of_numbers(*kind.numbers))
    if kind.items is not None:
        inner = _exact_type(kind.items)
        found.append(inner and pyarrow.list_(inner))
    if kind.fields is not None:
        types = {name: _exact_type(field) for name, field in kind.fields.items()}
        is_exact = types and all(types.values())  # Parquet has no objects without fields
        found.append(pyarrow.struct(list(types.items())) if is_exact else None)
    return NULL if not found else found[0] if len(found) == 1 else None


def _type_of_numbers(least: int, most: int, has_floats: bool) -> Any:
    if has_floats:
        return pyarrow.float64() if least >= -_EXACT and most <= _EXACT else None
    if least >= -(2**63) and most < 2**63:
        return pyarrow.int64()
    return pyarrow.uint64() if least >= 0 and most < 2**64 else None


def as_array(values: list[Any], kind: Any) -> Any:
    """Values as an array of a type that represents them."""
    if _TYPES.is_string(kind):
        known = map(json_value, values)
        values = [one and utf8(one) if isinstance(one, str | None) else json.dumps(one) for one in known]
    return pyarrow.array(values, kind)


def _size(table: Any) -> int:
    """Roughly the bytes of a table's values; additive, but for structs, however the rows are cut."""
    return 8 * int(table.num_rows * table.num_columns) + sum(map(_more_bytes, table.columns))


def _more_bytes(column: Any) -> int:
    """The bytes of a column beyond eight for each value."""
    kind = column.type
    if _is_list(kind):
        values = pyarrow.compute.list_flatten(column)
        return 8 * len(values) + _more_bytes(values)
    if any(is_kind(kind) for is_kind in _WITH_LENGTHS):
        return int(pyarrow.compute.sum(pyarrow.compute.binary_length(column)).as_py() or 0)
    is_other = kind.num_fields or isinstance(kind, pyarrow.BaseExtensionType) or str(kind).endswith("_view")
    return int(column.nbytes) if is_other else 0


def _is_list(kind: Any) -> bool:
    return bool(_TYPES.is_list(kind) or _TYPES.is_large_list(kind) or _TYPES.is_fixed_size_list(kind))


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


def _kinds_of(table: Any) -> Iterator[tuple[str, Any, Kind]]:
    """The columns, each with its type, None for values in lines of JSON, and their kind."""
    columns, rows = _columns_and_rows(table)
    for name, column in columns.items():
        yield name, column.type, _kind_of_column(column)
    for name in dict.fromkeys(chain.from_iterable(rows)):
        kind = kind_of([row.get(name) for row in rows])
        yield name, NULL if kind == NOTHING else None, kind


def _columns_and_rows(table: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The columns of a table, and what lines of JSON add to them."""
    rows = rows_in_lines(table)
    columns = table.columns if rows is None else table.columns[:-1]
    return dict(zip(table.schema.names, columns, strict=False)), rows or []


def _one_type(one: Any, other: Any) -> Any:
    """The type of two columns; None if they have two."""
    return other if one == NULL else one if other in (NULL, one) else None


def _kind_of_column(column: Any) -> Kind:
    if column.null_count == len(column):
        return NOTHING
    if _is_list(column.type):
        return Kind(items=_kind_of_column(pyarrow.compute.list_flatten(column)))
    if _TYPES.is_integer(column.type):
        ends = pyarrow.compute.min_max(column)
        return Kind((ends["min"].as_py(), ends["max"].as_py(), False))
    if _TYPES.is_floating(column.type):
        return Kind((0, 0, True))
    return Kind(others=frozenset([column.type if column.type in CANONICAL else None]))


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

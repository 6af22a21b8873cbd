"""What changed between two outputs: matches their rows, and compares what was predicted for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from headrace.core.errors import ConfigurationError
from headrace.core.files import replacing
from headrace.core.spelling import did_you_mean
from headrace.jobs import files, reading
from headrace.jobs.differences import ColumnDiff, Interval, compare, texts_of, wilson
from headrace.jobs.output import write_tables
from headrace.jobs.output_batches import batch_as_written, json_value
from headrace.rows.blocks import BrokenLine
from headrace.rows.examples import PREDICTION
from headrace.rows.values import as_values, is_number, is_text, texts_of_times

_PLACE = "row"
"""The column of a row's number, counted from 1, where no column identifies it."""
_ROWS_AT_ONCE = 1 << 16
_TYPES = pyarrow.types
Table = dict[str, Any]
"""Arrow arrays by name."""


@dataclass(frozen=True)
class Diff:
    """The difference of two outputs."""

    matched: int
    """Rows in both outputs."""
    only_old: int
    only_new: int
    changed: Interval
    """Share of the matched rows whose prediction changed; a Wilson interval."""
    columns: Sequence[ColumnDiff]
    rows: Any
    """An Arrow table of the rows that changed, or that one output lacks: what identifies them, and for each column of
    the predictions ``<column>_old`` and ``<column>_new``."""

    @property
    def changed_rows(self) -> int:
        """How many of the matched rows changed."""
        return round(self.changed.value * self.matched)


def diff_outputs(
    old: str, new: str, *, ids: Sequence[str] = (), columns: Sequence[str] = (), tolerance: float = 0.0
) -> Diff:
    """Compares the predictions in two outputs of ``headrace run``; they may differ in format.

    Args:
        old: path or glob of JSON lines, CSV or Parquet.
        new: the same for what is compared with it.
        ids: the columns that identify a row in both, uniquely. Without them rows are matched by place.
        columns: to compare; by default ``prediction``, or ``prediction_*`` of a run with ``--explode``.
        tolerance: by how much numbers may differ and still be the same.

    Raises:
        ConfigurationError: a file cannot be read or lacks a column; ids are missing, occur twice, or are of different
            types; there are no ids and the outputs differ in length.
    """
    if not (tolerance >= 0 and math.isfinite(tolerance)):
        raise ConfigurationError(f"the tolerance is a number from 0, not {tolerance}.")
    read = [_read(path, ids, columns) for path in (old, new)]
    for table, other in (read, read[::-1]):
        if not table:
            names = other or (*ids, *(columns or [PREDICTION]))
            table.update({name: pyarrow.nulls(0) for name in names})
    for path, table in zip((old, new), read, strict=True):
        for name in {**read[0], **read[1]}:
            if name not in table:
                raise ConfigurationError(f"{path} has no column {name!r}, which the other output has.")
    tables = [dict(_flattened(table, ids)) for table in read]
    compared = [name for name in dict.fromkeys((*tables[0], *tables[1])) if name not in ids]
    for table in tables:
        rows = len(next(iter(table.values())))
        table.update({name: pyarrow.nulls(rows) for name in compared if name not in table})  # no object has this field
    places = _matched(tables, (old, new), ids) if ids else _by_place(tables, (old, new))
    return _compare(tables, places, ids, compared, tolerance)


def write_rows(rows: Any, path: str) -> None:
    """Writes the rows of a ``Diff`` to a local file: JSON lines, CSV or Parquet, by its extension.

    Raises:
        ConfigurationError: another extension, or the file cannot be written.
    """
    files.output_format(path)  # refuses an ending under the name that the user gave

    def tables() -> Iterator[Any]:
        for batch in rows.combine_chunks().to_batches(_ROWS_AT_ONCE):
            yield pyarrow.Table.from_batches([batch_as_written(batch)])

    try:
        with replacing(path) as part:
            write_tables(part, tables, lambda: None)
    except OSError as error:
        raise ConfigurationError(f"--output: cannot write {path}: {error.strerror or error}.") from error


def _read(path: str, ids: Sequence[str], columns: Sequence[str]) -> Table:
    """The columns that identify and that are compared; none of an output without rows that names none."""
    sources = files.match([path])
    schema = reading.infer_schema(sources)
    if not schema.columns:
        return {}
    wanted = list(columns) or _predicted(schema.columns)
    for name in (*ids, *wanted):
        if name not in schema.columns:
            raise ConfigurationError(f"{path} has no column {name!r}{did_you_mean(name, schema.columns)}")
    if not wanted:
        raise ConfigurationError(f"{path} has no column 'prediction'; name those to compare with --columns.")
    pieces: dict[str, list[Any]] = {name: [] for name in (*ids, *wanted)}
    for source in sources:
        for block in reading.read_blocks(source, types=schema.csv):
            for name, values in pieces.items():
                values.append(_column_of(block, name))
    return {name: _joined(values) for name, values in pieces.items()}


def _predicted(names: Sequence[str]) -> list[str]:
    return [PREDICTION] if PREDICTION in names else [name for name in names if name.startswith(f"{PREDICTION}_")]


def _column_of(block: Any, name: str) -> Any:
    """Of a block, as an Arrow array, or as a list of values that Arrow has no type for."""
    if block.batch is not None:
        place = block.batch.schema.get_field_index(name)
        return block.batch.column(place) if place >= 0 else pyarrow.nulls(len(block))
    for record in block.records:
        if isinstance(record, BrokenLine):
            raise ConfigurationError(f"{block.path}, line {record.number}: {record.error}")
    values = [record.get(name) for record in block.records]
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError, UnicodeEncodeError):  # a lone surrogate
        return values


def _joined(pieces: Sequence[Any]) -> Any:
    """One array; as JSON where the pieces have no common type."""
    if not any(isinstance(piece, list) for piece in pieces):
        try:
            tables = [pyarrow.table({"x": piece}) for piece in pieces]
            whole = pyarrow.concat_tables(tables, promote_options="permissive") if tables else None
            return pyarrow.nulls(0) if whole is None else whole.column(0).combine_chunks()
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
            pass
    return pyarrow.array([text for piece in pieces for text in texts_of(piece)], pyarrow.string())


def _flattened(table: Table, ids: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The columns; structs as one for each field."""
    for name, array in table.items():
        if _TYPES.is_struct(array.type) and array.type.num_fields and name not in ids:
            fields = zip(array.type, array.flatten(), strict=True)
            yield from _flattened({f"{name}.{field.name}": values for field, values in fields}, ())
        else:
            yield name, _as_in_json(array)


def _as_in_json(array: Any) -> Any:
    """The array; times, decimals, categories, bytes and the like as an output of JSON lines or CSV has them."""
    kind = array.type
    if _TYPES.is_dictionary(kind):
        return _as_in_json(array.dictionary_decode())
    if is_number(kind) or is_text(kind) or _TYPES.is_null(kind) or _TYPES.is_nested(kind):
        return array
    try:
        texts = texts_of_times(array)
        return pyarrow.array(list(map(json_value, as_values(array)))) if texts is None else texts
    except Exception:  # Python cannot represent a value
        return array


def _by_place(tables: Sequence[Table], paths: Sequence[str]) -> tuple[Any, Any]:
    lengths = [len(next(iter(table.values()))) for table in tables]
    if lengths[0] != lengths[1]:
        raise ConfigurationError(
            f"{paths[0]} has {lengths[0]:,} rows and {paths[1]} {lengths[1]:,}, so places do not tell which row is "
            "which: name the columns that identify a row with --id."
        )
    places = pyarrow.array(numpy.arange(lengths[0]))
    return places, places


def _matched(tables: Sequence[Table], paths: Sequence[str], ids: Sequence[str]) -> tuple[Any, Any]:
    """For each row of either output its place in both, in the order of the old one; null: that one lacks it."""
    for table, other in (tables, tables[::-1]):  # an output without rows has no types
        untyped = [name for name in ids if _TYPES.is_null(table[name].type)]
        kinds = [pyarrow.string() if _TYPES.is_null(other[name].type) else other[name].type for name in untyped]
        table.update({name: table[name].cast(kind) for name, kind in zip(untyped, kinds, strict=True)})
    keys = [pyarrow.table({name: table[name] for name in ids}) for table in tables]
    for key, path in zip(keys, paths, strict=True):
        _refuse_ambiguous(key, path)
    keys[1] = _as_types(keys[1], keys[0].schema, paths)
    unnamed = [f"id {number}" for number in range(len(keys[0].schema))]  # which may be called old, or new
    numbered = [
        key.rename_columns(unnamed).append_column(side, pyarrow.array(numpy.arange(len(key))))
        for key, side in zip(keys, ("old", "new"), strict=True)
    ]
    both = numbered[0].join(numbered[1], unnamed, join_type="full outer")
    both = both.sort_by([("old", "ascending"), ("new", "ascending")])
    return both.column("old").combine_chunks(), both.column("new").combine_chunks()


def _as_types(keys: Any, schema: Any, paths: Sequence[str]) -> Any:
    for field in schema:
        found = keys.schema.field(field.name).type
        if found != field.type:
            try:
                return keys.cast(schema)
            except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
                raise ConfigurationError(
                    f"column {field.name!r} holds {field.type} in {paths[0]} and {found} in {paths[1]}, so rows cannot "
                    "be matched by it."
                ) from None
    return keys


def _refuse_ambiguous(keys: Any, path: str) -> None:
    for name in keys.schema.names:
        if _TYPES.is_nested(keys.schema.field(name).type):
            raise ConfigurationError(f"{path} has lists or objects in {name!r}; --id takes columns of plain values.")
        if keys.column(name).null_count:
            raise ConfigurationError(f"{path} has rows without {name!r}, by which they are to be matched.")
    counts = keys.group_by(keys.schema.names, use_threads=False).aggregate([([], "count_all")])
    repeated = counts.filter(pyarrow.compute.greater(counts.column("count_all"), 1))
    if len(repeated):
        *values, count = repeated.slice(0, 1).to_pylist()[0].values()
        shown = ", ".join(map(repr, values))
        raise ConfigurationError(
            f"{path} has {count} rows with {', '.join(keys.schema.names)} = {shown}; --id takes columns whose values "
            "identify a row."
        )


def _compare(
    tables: Sequence[Table], places: tuple[Any, Any], ids: Sequence[str], compared: Sequence[str], tolerance: float
) -> Diff:
    in_both = pyarrow.compute.and_(*(pyarrow.compute.is_valid(side) for side in places))
    inner = [side.filter(in_both) for side in places]
    changed = numpy.zeros(len(inner[0]), bool)
    columns = []
    for name in compared:
        old, new = (table[name].take(side) for table, side in zip(tables, inner, strict=True))
        differs, column = compare(name, old, new, tolerance)
        changed |= differs
        columns.append(column)
    shown = numpy.ones(len(in_both), bool)
    shown[in_both.to_numpy(zero_copy_only=False)] = changed
    rows = _rows(tables, [side.filter(pyarrow.array(shown)) for side in places], ids, compared)
    only_old, only_new = (side.null_count for side in reversed(places))
    return Diff(len(changed), only_old, only_new, wilson(int(changed.sum()), len(changed)), columns, rows)


def _rows(tables: Sequence[Table], places: Sequence[Any], ids: Sequence[str], compared: Sequence[str]) -> Any:
    columns: Table = {} if ids else {_PLACE: pyarrow.compute.add(places[0], 1)}
    for name in ids:
        old, new = (table[name].take(side) for table, side in zip(tables, places, strict=True))
        columns[name] = pyarrow.compute.coalesce(old, new.cast(old.type))
    for name in compared:
        for table, side, suffix in zip(tables, places, ("old", "new"), strict=True):
            columns[f"{name}_{suffix}"] = table[name].take(side)
    return pyarrow.table(columns)

"""What changed between two outputs: matches their rows, and compares what was predicted for them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from headrace.core.errors import ConfigurationError
from headrace.core.spelling import did_you_mean
from headrace.jobs import files, reading
from headrace.jobs.output_batches import json_value
from headrace.rows.blocks import BrokenLine
from headrace.rows.examples import PREDICTION
from headrace.rows.values import as_array, as_values, is_number, is_text, is_vector, texts_of_times

_Z = 1.96
"""Standard errors on both sides of a 95 % interval."""
_MOST_MOVES = 5
_TYPES = pyarrow.types
Table = dict[str, Any]
"""Arrow arrays by name."""


class Interval(NamedTuple):
    """An estimate with its 95 % confidence interval: the rows count as a random sample."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ColumnDiff:
    """How one column of the predictions changed, over the rows that both outputs have."""

    name: str
    changed: int
    mean: Interval | None = None
    """Of new - old, if both are numbers."""
    absolute: Mapping[str, float] | None = None
    """Of numbers, and of the entries of vectors: mean, median, 95th percentile and maximum of the absolute difference
    of the rows that changed."""
    cosine: tuple[float, float] | None = None
    """Of vectors: mean and least cosine similarity of old and new."""
    moves: Sequence[tuple[Any, Any, int]] = ()
    """Of other values: the most frequent changes, as old, new, rows."""


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
    return _compared(tables, places, ids, compared, tolerance)


def _read(path: str, ids: Sequence[str], columns: Sequence[str]) -> Table:
    """The columns that identify and that are compared."""
    sources = files.match([path])
    schema = reading.infer_schema(sources)
    exploded = [name for name in schema.columns if name.startswith(f"{PREDICTION}_")]
    wanted = list(columns) or ([PREDICTION] if PREDICTION in schema.columns else exploded)
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


def _column_of(block: Any, name: str) -> Any:
    """Of a block, as an Arrow array or a list of values."""
    if block.batch is not None:
        place = block.batch.schema.get_field_index(name)
        return block.batch.column(place) if place >= 0 else pyarrow.nulls(len(block))
    for record in block.records:
        if isinstance(record, BrokenLine):
            raise ConfigurationError(f"{block.path}, line {record.number}: {record.error}")
    return [record.get(name) for record in block.records]


def _joined(pieces: Sequence[Any]) -> Any:
    """One array; as JSON where the pieces have no common type, or Arrow has none for them."""
    with suppress(pyarrow.ArrowException, OverflowError, UnicodeEncodeError):  # a lone surrogate
        tables = [pyarrow.table({"x": piece}) for piece in (pyarrow.nulls(0), *pieces)]
        return pyarrow.concat_tables(tables, promote_options="permissive").column(0).combine_chunks()
    return pyarrow.array([text for piece in pieces for text in _texts_of(piece)], pyarrow.string())


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
    with suppress(Exception):  # Python cannot represent a value
        texts = texts_of_times(array)
        return pyarrow.array(list(map(json_value, as_values(array)))) if texts is None else texts
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
    for name in ids:
        typed = [table[name].type for table in tables if not _TYPES.is_null(table[name].type)] or [pyarrow.string()]
        for table in tables:  # one without rows has no types
            table[name] = table[name].cast(typed[0]) if _TYPES.is_null(table[name].type) else table[name]
    keys = [pyarrow.table({name: table[name] for name in ids}) for table in tables]
    for key, path in zip(keys, paths, strict=True):
        _refuse_ambiguous(key, path)
    keys[1] = _cast(keys[1], keys[0].schema, paths)
    unnamed = [f"id {number}" for number in range(len(keys[0].schema))]  # which may be called old, or new
    old, new = (
        key.rename_columns(unnamed).append_column(side, pyarrow.array(numpy.arange(len(key))))
        for key, side in zip(keys, ("old", "new"), strict=True)
    )
    both = old.join(new, unnamed, join_type="full outer")
    both = both.sort_by([("old", "ascending"), ("new", "ascending")])
    return both.column("old").combine_chunks(), both.column("new").combine_chunks()


def _cast(keys: Any, schema: Any, paths: Sequence[str]) -> Any:
    try:
        return keys.cast(schema)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        name = next(field.name for field in schema if keys.schema.field(field.name).type != field.type)
        kinds = [one.field(name).type for one in (schema, keys.schema)]
        raise ConfigurationError(
            f"column {name!r} holds {kinds[0]} in {paths[0]} and {kinds[1]} in {paths[1]}, so rows cannot be matched "
            "by it."
        ) from None


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


def _compared(
    tables: Sequence[Table], places: tuple[Any, Any], ids: Sequence[str], names: Sequence[str], tolerance: float
) -> Diff:
    old, new = (
        {name: column.take(side) for name, column in table.items()} for table, side in zip(tables, places, strict=True)
    )
    in_both = pyarrow.compute.and_(*(pyarrow.compute.is_valid(side) for side in places))
    differs = numpy.ones(len(in_both), bool)
    matched = in_both.to_numpy(zero_copy_only=False)
    differs[matched] = False
    columns = []
    for name in names:
        of_column, column = _compare(name, old[name].filter(in_both), new[name].filter(in_both), tolerance)
        differs[matched] |= of_column
        columns.append(column)
    rows: Table = {} if ids else {"row": pyarrow.compute.add(places[0], 1)}
    rows |= {name: pyarrow.compute.coalesce(old[name], new[name].cast(old[name].type)) for name in ids}
    for name in names:
        rows |= {f"{name}_old": old[name], f"{name}_new": new[name]}
    changed = wilson(int(differs[matched].sum()), int(matched.sum()))
    shown = pyarrow.table(rows).filter(pyarrow.array(differs))
    return Diff(int(matched.sum()), places[1].null_count, places[0].null_count, changed, columns, shown)


def _compare(name: str, old: Any, new: Any, tolerance: float) -> tuple[Any, ColumnDiff]:
    """Which rows of two Arrow arrays differ, as a numpy array of booleans, and how.

    A null, or NaN, differs from anything else, and is equal to itself.
    """
    a, b = _as_matrix(old), _as_matrix(new)
    if a is not None and b is not None and a.shape == b.shape and _counts(old.type) == _counts(new.type):
        return _compare_numbers(name, (old, new), a, b, tolerance)
    known = next((side.type for side in (old, new) if not _TYPES.is_null(side.type)), pyarrow.string())
    old, new = (side.cast(known) if _TYPES.is_null(side.type) else side for side in (old, new))
    if old.type != new.type or _TYPES.is_nested(old.type):
        old, new = _as_text(old), _as_text(new)
    differs = _differ(old, new)
    some = pyarrow.array(differs)
    moves = Counter(zip(old.filter(some).to_pylist(), new.filter(some).to_pylist(), strict=True))
    commonest = [(*move, rows) for move, rows in moves.most_common(_MOST_MOVES)]
    return differs, ColumnDiff(name, int(differs.sum()), moves=commonest)


def _texts_of(values: Any) -> Iterator[str | None]:
    """Values, an Arrow array or a list, as JSON."""
    for value in values if isinstance(values, list) else values.to_pylist():
        yield None if value is None else json.dumps(value, default=str, sort_keys=True)


def _counts(kind: Any) -> bool:
    return is_number(kind) and not _TYPES.is_boolean(kind)


def _as_text(array: Any) -> Any:
    return array.cast(pyarrow.string()) if is_text(array.type) else pyarrow.array(_texts_of(array), pyarrow.string())


def _as_matrix(column: Any) -> Any:
    """Numbers, or vectors of one length, as rows; None if they are others."""
    if _counts(column.type):
        return column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False).reshape(-1, 1)
    if not is_vector(column.type) or column.null_count:
        return None
    lengths = pyarrow.compute.unique(pyarrow.compute.list_value_length(column))
    is_matrix = len(lengths) == 1 and not column.flatten().null_count
    return as_array(column).astype(float) if is_matrix else None


def _compare_numbers(name: str, both: tuple[Any, Any], old: Any, new: Any, tolerance: float) -> tuple[Any, ColumnDiff]:
    with numpy.errstate(invalid="ignore", over="ignore"):  # of infinities
        delta = numpy.where((old == new) | (numpy.isnan(old) & numpy.isnan(new)), 0, new - old)
        sizes = numpy.abs(delta).max(axis=1, initial=0)
        differs = ~(sizes <= tolerance)
        if not tolerance and all(_TYPES.is_integer(side.type) for side in both):
            differs = _differ(*both)  # exactly
        known = ~(numpy.isnan(old) | numpy.isnan(new)).any(axis=1)
        mean = cosine = None
        if _counts(both[0].type):
            mean = _mean(delta[known]) if known.any() else None
        else:
            norms = numpy.linalg.norm(old, axis=1) * numpy.linalg.norm(new, axis=1)
            similar = (old * new).sum(axis=1)[norms > 0] / norms[norms > 0]
            cosine = (float(similar.mean()), float(similar.min())) if len(similar) else None
        return differs, ColumnDiff(name, int(differs.sum()), mean, _sizes(sizes[differs & known]), cosine)


def _differ(old: Any, new: Any) -> Any:
    differs = pyarrow.compute.not_equal(old, new).fill_null(True)
    are_null = pyarrow.compute.and_(old.is_null(), new.is_null())
    return pyarrow.compute.and_not(differs, are_null).to_numpy(zero_copy_only=False).copy()


def _mean(values: Any) -> Interval:
    mean, margin = float(values.mean()), 0.0
    if len(values) > 1:
        margin = _Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - margin, mean + margin)


def _sizes(values: Any) -> dict[str, float] | None:
    if not len(values):
        return None
    median, high = numpy.quantile(values, [0.5, 0.95])
    return {"mean": float(values.mean()), "median": float(median), "p95": float(high), "maximum": float(values.max())}


def wilson(count: int, of: int) -> Interval:
    """The share ``count / of`` with its Wilson interval; from 0 to 1 of nothing."""
    if not of:
        return Interval(0.0, 0.0, 1.0)
    share, z2 = count / of, _Z * _Z / of
    middle, margin = share + z2 / 2, _Z * math.sqrt(share * (1 - share) / of + z2 / 4 / of)
    return Interval(share, max(0.0, (middle - margin) / (1 + z2)), min(1.0, (middle + margin) / (1 + z2)))

"""Reads rows from Parquet; a value that Python cannot represent (a date in the year 20,000) breaks its row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from headrace.jobs.files import Source, open_source
from headrace.jobs.rows import BrokenLine, Row

_CHUNK_BYTES = 1 << 20
_ROWS = 1024
_SPARK = b"org.apache.spark.version"
"""Marks files of Spark. Their INT96 times are read as microseconds: as nanoseconds, years after 2262 would overflow."""


def read_parquet(source: Source) -> Iterator[Row | BrokenLine]:
    """The rows of a file, one by one."""
    first = 0
    with open_source(source) as file:
        for batch in parquet_file(file).iter_batches(batch_size=_ROWS, use_threads=False):
            yield from rows_of(batch, source.path, first)
            first += batch.num_rows


def rows_of(batch: Any, path: str, first: int) -> list[Row | BrokenLine]:
    """The rows of a record batch as Python values.

    Args:
        batch: neighbouring rows.
        path: of their file.
        first: the number of the first row in the file, counted from 0.
    """
    from headrace.jobs.values import as_rows  # noqa: PLC0415 - needs pyarrow

    try:
        rows: list[Row | BrokenLine] = [*as_rows(batch)]
    except Exception:  # at least one value has no Python equivalent
        return [_row_of(batch.slice(place, 1), path, first + place) for place in range(batch.num_rows)]
    return rows


def unreadable(batch: Any) -> list[bool] | None:
    """Which rows of a record batch contain a value that Python cannot represent; None: no row."""
    wrong: list[bool] | None = None
    for column in batch.columns:
        if not (_is_plain(column.type) or _is_readable(column)):
            bad = [not _is_readable(column.slice(place, 1)) for place in range(len(column))]
            wrong = bad if wrong is None else [one or other for one, other in zip(wrong, bad, strict=True)]
    return wrong


def _is_plain(kind: Any) -> bool:
    """Whether Python can represent every value of the type."""
    from pyarrow import types  # noqa: PLC0415 - only where there is a Parquet file

    return any(is_it(kind) for is_it in (types.is_integer, types.is_floating, types.is_boolean))


def _is_readable(column: Any) -> bool:
    from pyarrow import types  # noqa: PLC0415 - only where there is a Parquet file

    from headrace.jobs.values import as_values  # noqa: PLC0415 - needs pyarrow

    try:
        if types.is_string(column.type) or types.is_large_string(column.type):
            column.validate(full=True)  # only checks UTF-8: much faster
        else:
            as_values(column)
    except Exception:  # whatever the value's type raises
        return False
    return True


def _row_of(batch: Any, path: str, place: int) -> Row | BrokenLine:
    from headrace.jobs.values import as_rows  # noqa: PLC0415 - needs pyarrow

    try:
        row: Row = as_rows(batch)[0]
    except Exception as error:
        columns = zip(batch.schema.names, batch.columns, strict=True)
        text = "\n".join(f"{name}: {' '.join(column.to_string().split())}" for name, column in columns)
        return BrokenLine(text, path, place + 1, error)
    return row


def parquet_file(file: BinaryIO) -> Any:
    """Opens a Parquet file to read row groups in pieces: pre-buffered ones would stay in memory until the end.

    Raises:
        ValueError: two columns, or two fields of one column, have the same name; a row would lose one of them.
    """
    import pyarrow.parquet  # noqa: PLC0415 - only where there is a Parquet file

    options: dict[str, Any] = {"buffer_size": _CHUNK_BYTES, "pre_buffer": False}
    parquet = pyarrow.parquet.ParquetFile(file, **options)
    if _SPARK in (parquet.metadata.metadata or {}):
        parquet = pyarrow.parquet.ParquetFile(
            file, metadata=parquet.metadata, coerce_int96_timestamp_unit="us", **options
        )
    _refuse_duplicates(parquet.schema_arrow)
    return parquet


def _refuse_duplicates(fields: Iterable[Any], within: str = "") -> None:
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            what = f"two fields of {within!r}" if within else "two columns"
            raise ValueError(
                f"{what} have the name {field.name!r}, and a row can have one; rename one of them, in Python with "
                "pyarrow.Table.rename_columns."
            )
        seen.add(field.name)
        inner = field.type
        _refuse_duplicates([inner.field(n) for n in range(inner.num_fields)], f"{within}.{field.name}".lstrip("."))

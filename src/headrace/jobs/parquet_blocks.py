"""Reads rows from Parquet as record batches, without row groups that are already done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, BinaryIO

from headrace.jobs.files import Source, open_source
from headrace.jobs.input_share import positions

_CHUNK_BYTES = 1 << 20
_ROWS = 1 << 14
_BYTES = 1 << 24
_SPARK = b"org.apache.spark.version"
"""Marks files of Spark. Their INT96 times are read as microseconds: as nanoseconds, years after 2262 would overflow."""


def read_parquet(source: Source, is_done: Callable[[int, int], bool]) -> Iterator[Any]:
    """Record batches; a number stands for that many rows of row groups that are already done.

    Args:
        source: the file.
        is_done: whether the rows of the file from one number up to another are done.
    """
    with open_source(source) as file:
        parquet = parquet_file(file)
        position = positions[source.path]
        position.rows = parquet.metadata.num_rows
        groups, end = [], 0
        for index in range(parquet.num_row_groups):
            start, end = end, end + parquet.metadata.row_group(index).num_rows
            groups.append((is_done(start, end), end - start, index))
        size = _rows_at_once(parquet.metadata)
        for are_done, some in groupby(groups, lambda group: group[0]):
            _, sizes, indexes = zip(*some, strict=True)
            if are_done:
                position.rows_done += sum(sizes)
                yield sum(sizes)
                continue
            for batch in parquet.iter_batches(size, row_groups=list(indexes), use_threads=False):
                position.rows_done += len(batch)
                yield batch


def _rows_at_once(metadata: Any) -> int:
    """Rows per batch, limited by their average size."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups) / max(1, metadata.num_rows)
    return max(1, min(_ROWS, int(_BYTES / max(1.0, size))))


def parquet_file(file: BinaryIO) -> Any:
    """Opens a Parquet file to read row groups in pieces: pre-buffered ones would stay in memory until the end.

    Raises:
        ValueError: two columns have the same name; a row would lose one of them.
    """
    import pyarrow.parquet  # noqa: PLC0415 - only where there is a Parquet file

    options: dict[str, Any] = {"buffer_size": _CHUNK_BYTES, "pre_buffer": False}
    parquet = pyarrow.parquet.ParquetFile(file, **options)
    if _SPARK in (parquet.metadata.metadata or {}):
        parquet = pyarrow.parquet.ParquetFile(
            file, metadata=parquet.metadata, coerce_int96_timestamp_unit="us", **options
        )
    names = parquet.schema_arrow.names
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"two columns have the name {twice[0]!r}, and a row can have one; rename one of them, in Python with "
            "pyarrow.Table.rename_columns."
        )
    return parquet

"""Writes the predictions' Parquet file while they come, so that a large output is not written twice.

That is possible as long as rows come in the order of the input, in blocks whose columns have the same types. The part
that lists the rows then refers to the file's row groups; rows that follow are in the part itself.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from headrace.jobs.parquet_tables import open_parquet

_GROUP = b"headrace.group"


class RowGroup(NamedTuple):
    """A row group of a Parquet file that holds rows of a part."""

    path: str
    number: int
    is_typed: bool
    """Whether each column has a value in this row group or one before it; the type of one without any is null."""

    @classmethod
    def of(cls, schema: Any) -> RowGroup | None:
        """What a batch with this schema refers to; None if the batch holds its rows itself."""
        reference = (schema.metadata or {}).get(_GROUP)
        return None if reference is None else cls(*json.loads(reference))

    def reference(self) -> Any:
        """A record batch that stands for the rows."""
        return pyarrow.RecordBatch.from_arrays([], schema=pyarrow.schema([], metadata={_GROUP: json.dumps(self)}))

    def read(self) -> Any:
        """The rows, as a table."""
        with pyarrow.parquet.ParquetFile(self.path, memory_map=True) as file:
            return file.read_row_group(self.number).replace_schema_metadata(None)


class DirectParquet:
    """A Parquet file that the first record batch creates, with a row group for each."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: Any = None
        self._groups = 0
        self._untyped: set[str] | None = None
        """The columns without a value so far; None: there is no row group yet."""
        self._is_over = False

    def add(self, batch: Any) -> Any:
        """Writes a row group, and returns what stands for it in a part.

        The batch itself comes back if it does not fit; then no others do.
        """
        if self._is_over or not self._fits(batch.schema):
            self.close()
            return batch
        self._writer.write_batch(batch)
        empty = {name for name, column in zip(batch.schema.names, batch.columns, strict=True) if _is_empty(column)}
        self._untyped = empty if self._untyped is None else self._untyped & empty
        self._groups += 1
        return RowGroup(self._path, self._groups - 1, not self._untyped).reference()

    def close(self) -> None:
        """Ends the file; it takes no more rows."""
        self._is_over = True
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _fits(self, schema: Any) -> bool:
        if self._writer is not None:
            return bool(self._writer.schema.equals(schema, check_metadata=True))
        if schema.metadata or any(map(pyarrow.types.is_null, schema.types)):  # lines; or a type that is not known yet
            return False
        self._writer = open_parquet(self._path, schema)
        return True


def _is_empty(column: Any) -> bool:
    return bool(column.null_count == len(column))

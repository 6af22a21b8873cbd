"""Writes the predictions' Parquet file while they come, so that a large output is not written twice.

That is possible as long as rows come in the order of the input, in blocks whose columns have the same types. The part
that lists the rows then refers to the file's row groups; rows that follow are in the part itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.parquet

from headrace.jobs.parquet_tables import GROUP_BYTES, GROUP_ROWS, open_parquet

_GROUP = b"headrace.group"


class RowGroup(NamedTuple):
    """A row group of a Parquet file that holds rows of a part."""

    path: str
    number: int
    is_typed: bool
    """Whether each column of the file has a value; the type of one without any is null."""

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
    """Writes a Parquet file of record batches.

    Args:
        path: of the file, which the first batch creates.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: Any = None
        self._schema: Any = None
        self._is_over = False
        self._waiting: list[Any] = []
        """Batches of the next row group."""
        self._places: list[Any] = []
        """Of their rows in the input."""
        self._rows = self._bytes = 0
        self._groups: list[Any] = []
        """The places of the rows of each row group."""
        self._untyped: set[str] = set()
        """The columns without a value."""

    def add(self, places: Any, batch: Any) -> bool:
        """Adds the rows at some places; False if they do not go into the file, and no more rows do."""
        if self._is_over or not self._fits(batch.schema):
            self.close()
            return False
        self._untyped = {name for name in self._untyped if batch[name].null_count == batch.num_rows}
        self._waiting.append(batch)
        self._places.append(places)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._end_group()
        return True

    def close(self) -> None:
        """Ends the file; it takes no more rows."""
        self._is_over = True
        if self._writer is not None:
            self._end_group()
            self._writer.close()
            self._writer = None

    def finish(self) -> Iterator[tuple[Any, Any]]:
        """Ends the file; yields the places of the rows of each row group, and what stands for them in a part."""
        self.close()
        for number, places in enumerate(self._groups):
            yield places, RowGroup(self._path, number, not self._untyped).reference()

    def _fits(self, schema: Any) -> bool:
        if self._schema is None:
            if any(map(pyarrow.types.is_null, schema.types)):  # the type of what comes later is not known
                return False
            self._schema, self._writer = schema, open_parquet(self._path, schema)
            self._untyped = set(schema.names)
        return bool(self._schema.equals(schema, check_metadata=True))

    def _end_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pyarrow.Table.from_batches(self._waiting).combine_chunks())
            self._groups.append(numpy.concatenate(self._places))
            self._waiting, self._places = [], []
            self._rows = self._bytes = 0

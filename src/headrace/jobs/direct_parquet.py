"""The Parquet file of a run's predictions, written while they come, and what stands for its rows in a part."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from headrace.core.phases import Phase, during
from headrace.jobs.parquet_tables import open_parquet

_GROUP = b"headrace.group"


class RowGroup(NamedTuple):
    """A row group of the output's own file, which holds rows of a part."""

    path: str
    number: int

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
        if schema.metadata or any(map(pyarrow.types.is_null, schema.types)):  # lines; or a type that is not known yet
            return False
        self._writer = open_parquet(self._path, schema)
        return True

"""Scores a file of numbers by hand: ``numbers_by_hand.py INPUT MODEL OUTPUT``, to Parquet."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

_ROWS_AT_ONCE = 1 << 16


def by_hand(source: str, path: str, output: str) -> None:
    """The loop that one would write."""
    model = pickle.loads(Path(path).read_bytes())
    schema, batches = _batches(source)
    schema = schema.append(pyarrow.field("prediction", pyarrow.int64()))
    with pyarrow.parquet.ParquetWriter(output, schema, use_dictionary=False) as writer:
        for batch in batches:
            rows = np.column_stack([column.to_numpy() for column in batch.columns])
            predictions = pyarrow.array(model.predict(rows).astype("int64"))
            writer.write_batch(pyarrow.RecordBatch.from_arrays([*batch.columns, predictions], schema=schema))


def _batches(source: str):
    if source.endswith(".csv"):
        reader = pyarrow.csv.open_csv(source, pyarrow.csv.ReadOptions(block_size=1 << 23))
        return reader.schema, reader
    file = pyarrow.parquet.ParquetFile(source)
    return file.schema_arrow, file.iter_batches(batch_size=_ROWS_AT_ONCE)


if __name__ == "__main__":
    by_hand(*sys.argv[1:])

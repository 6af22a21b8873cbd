"""Scores a column of vectors by hand: ``vectors_by_hand.py INPUT MODEL OUTPUT``, Parquet or JSON lines."""

from __future__ import annotations

import itertools
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

_ROWS_AT_ONCE = 10_000


def by_hand(source: str, path: str, output: str) -> None:
    """The loop that one would write."""
    model = pickle.loads(Path(path).read_bytes())
    if source.endswith(".parquet"):
        _parquet(source, model, output)
        return
    with open(source) as lines, open(output, "w") as file:
        while some := list(itertools.islice(lines, _ROWS_AT_ONCE)):
            rows = list(map(json.loads, some))
            predictions = model.predict(np.array([row["vector"] for row in rows]))
            file.writelines(
                json.dumps({**row, "prediction": bool(one)}) + "\n" for row, one in zip(rows, predictions, strict=True)
            )


def _parquet(source: str, model, output: str) -> None:
    file = pyarrow.parquet.ParquetFile(source)
    schema = file.schema_arrow.append(pyarrow.field("prediction", pyarrow.bool_()))
    with pyarrow.parquet.ParquetWriter(output, schema) as writer:
        for batch in file.iter_batches(_ROWS_AT_ONCE):
            vectors = batch["vector"].flatten().to_numpy().reshape(batch.num_rows, -1)
            predictions = pyarrow.array(model.predict(vectors))
            writer.write_batch(pyarrow.RecordBatch.from_arrays([*batch.columns, predictions], schema=schema))


if __name__ == "__main__":
    by_hand(*sys.argv[1:])

"""Scores a table of mixed columns by hand: ``table_by_hand.py INPUT MODEL OUTPUT``, of one format."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet

_ROWS_AT_ONCE = 20_000
_TEXT = {"zip": str}


def by_hand(source: str, path: str, output: str) -> None:
    """The loop that one would write."""
    model = pickle.loads(Path(path).read_bytes())
    if source.endswith(".parquet"):
        _parquet(source, model, output)
        return
    with Path(output).open("w") as file:
        for number, frame in enumerate(_frames(source)):
            frame["prediction"] = model.predict(frame)
            if source.endswith(".csv"):
                frame.to_csv(file, index=False, header=not number)
            else:
                file.write(frame.to_json(orient="records", lines=True))


def _frames(source: str) -> Iterator[pandas.DataFrame]:
    if source.endswith(".csv"):
        yield from pandas.read_csv(source, chunksize=_ROWS_AT_ONCE, dtype=_TEXT)
    else:
        yield from pandas.read_json(source, lines=True, chunksize=_ROWS_AT_ONCE, dtype=_TEXT)


def _parquet(source: str, model, output: str) -> None:
    writer = None
    for batch in pyarrow.parquet.ParquetFile(source).iter_batches(_ROWS_AT_ONCE):
        predictions = pyarrow.array(model.predict(batch.to_pandas()))
        batch = batch.append_column("prediction", predictions)  # noqa: PLW2901 - as one would
        writer = writer or pyarrow.parquet.ParquetWriter(output, batch.schema)
        writer.write_batch(batch)
    if writer:
        writer.close()


if __name__ == "__main__":
    by_hand(*sys.argv[1:])

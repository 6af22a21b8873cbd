"""Scores a table of mixed columns with Daft: ``table_with_daft.py INPUT MODEL OUTPUT``, of one format, to a folder.

By the Python of an environment that has Daft and not Headrace.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import daft
import pandas

_SEEN = ("age", "income", "city", "zip", "score")
_ROWS_AT_ONCE = 20_000


@daft.cls
class Model:
    """A scikit-learn model on frames."""

    def __init__(self, path: str):
        self._model = pickle.loads(Path(path).read_bytes())

    @daft.method.batch(return_dtype=daft.DataType.int64(), batch_size=_ROWS_AT_ONCE)
    def predict(self, *columns: daft.Series):
        """A prediction for each row."""
        series = (column.to_arrow().to_pandas() for column in columns)
        frame = pandas.DataFrame(dict(zip(_SEEN, series, strict=True)))
        return self._model.predict(frame) if len(frame) else []  # batches of no rows come, too


def main(source: str, path: str, output: str) -> None:
    """Reads, predicts, writes."""
    kind = Path(source).suffix[1:]
    text = {"zip": daft.DataType.string()}
    if kind == "parquet":
        table = daft.read_parquet(source)
    elif kind == "csv":
        table = daft.read_csv(source, schema=text)
    else:
        table = daft.read_json(source, schema=text)
    found = table.with_column("prediction", Model(path).predict(*(daft.col(name) for name in _SEEN)))
    write = {"parquet": found.write_parquet, "csv": found.write_csv, "jsonl": found.write_json}[kind]
    write(output, write_mode="overwrite")


if __name__ == "__main__":
    main(*sys.argv[1:])

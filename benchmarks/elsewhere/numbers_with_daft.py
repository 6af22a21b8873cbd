"""Scores a file of numbers with Daft: ``numbers_with_daft.py INPUT MODEL OUTPUT``, to a folder of Parquet.

By the Python of an environment that has Daft and not Headrace.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import daft
import numpy as np

_ROWS_AT_ONCE = 1 << 16


@daft.cls
class Model:
    """A scikit-learn model on matrices."""

    def __init__(self, path: str):
        self._model = pickle.loads(Path(path).read_bytes())

    @daft.method.batch(return_dtype=daft.DataType.int64(), batch_size=_ROWS_AT_ONCE)
    def predict(self, *columns: daft.Series):
        """A prediction for each row."""
        rows = np.column_stack([column.to_arrow().to_numpy() for column in columns])
        return self._model.predict(rows).astype("int64") if len(rows) else []  # batches of no rows come, too


def main(source: str, path: str, output: str) -> None:
    """Reads, predicts, writes."""
    table = daft.read_csv(source) if source.endswith(".csv") else daft.read_parquet(source)
    found = table.with_column("prediction", Model(path).predict(*(daft.col(name) for name in table.column_names)))
    found.write_parquet(output, write_mode="overwrite")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Scores a table of mixed columns with Ray Data: ``table_with_ray.py INPUT MODEL OUTPUT``, of one format, to a folder.

By the Python of an environment that has Ray and not Headrace.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path

import pandas
import pyarrow
import pyarrow.csv
import ray

_SEEN = ["age", "income", "city", "zip", "score"]
_ROWS_AT_ONCE = 20_000


class Model:
    """A scikit-learn model on frames."""

    def __init__(self, path: str):
        self._model = pickle.loads(Path(path).read_bytes())

    def __call__(self, frame: pandas.DataFrame) -> pandas.DataFrame:
        """The frame, with a prediction for each row."""
        frame["prediction"] = self._model.predict(frame[_SEEN])
        return frame


def main(source: str, path: str, output: str) -> None:
    """Reads, predicts, writes."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:  # short: sockets
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, _temp_dir=folder)
        ray.data.DataContext.get_current().enable_progress_bars = False
        kind = Path(source).suffix[1:]
        found = _read(source, kind).map_batches(
            Model,
            fn_constructor_args=(path,),
            batch_format="pandas",
            batch_size=_ROWS_AT_ONCE,
            compute=ray.data.ActorPoolStrategy(size=max(1, (os.cpu_count() or 1) - 1)),  # one core is left to read
        )
        shutil.rmtree(output, ignore_errors=True)
        {"parquet": found.write_parquet, "csv": found.write_csv, "jsonl": found.write_json}[kind](output)
        ray.shutdown()


def _read(source: str, kind: str) -> ray.data.Dataset:
    if kind == "parquet":
        return ray.data.read_parquet(source)
    if kind == "jsonl":
        return ray.data.read_json(source)  # with pyarrow; lines=True is with pandas, which makes numbers of texts
    options = pyarrow.csv.ConvertOptions(column_types={"zip": pyarrow.string()})
    return ray.data.read_csv(source, convert_options=options)


if __name__ == "__main__":
    main(*sys.argv[1:])

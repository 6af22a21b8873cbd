"""``headrace run`` over files of numbers, of vectors, and of rows one by one, beside loops by hand and peers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import turns
from goals import INTERVALS
from peers import python_of
from sklearn.linear_model import LogisticRegression

TITLE = "Files of numbers, of vectors, and of rows one by one: headrace run, a loop by hand, Daft, Beam"

ABOUT = f"""\
*Numbers*: 20 columns of 64-bit floats through logistic regression, to a Parquet file of the same columns and the
prediction. The loop by hand reads batches with pyarrow, calls `predict`, and writes without dictionaries; Daft (native
runner, a class with a batch method, an environment of its own: `make daft`) takes part in the first three rounds. All
write columns with statistics, compressed with Snappy; Headrace adds the model's id, keeps the order of the rows, and
ends once the disk has the file.
*Vectors*: a column of lists of 384 floats through logistic regression, JSON lines to JSON lines and Parquet to Parquet;
the loop by hand reads with pyarrow, or line by line. *Rows*: JSON lines of text through a handler of one's own that
does nothing, beside Beam's file reading, `json.loads`, RunInference and writing on the FnApiRunner; it is of Headrace's
`ModelHandler` and of Beam's, whose import takes three seconds here. Each run is a process of its own, from its start to
its end. Outputs are equal. The ways take turns, forwards and backwards.

{INTERVALS}"""

_OURS, _BY_HAND, _DAFT, _BEAM = "headrace run", "by hand", "Daft", "Beam"
_NUMBERS = {"numbers, Parquet": 10_000_000, "numbers, CSV": 1_000_000}
_VECTORS = {"vectors, Parquet": 200_000, "vectors, JSON lines": 40_000}
_ROWS = {"rows, JSON lines": 200_000}
_SUFFIXES = {"Parquet": "parquet", "CSV": "csv", "JSON lines": "jsonl"}


_seconds = partial(turns.seconds_beside, "Files")

GOALS = [
    *(_seconds(table, _OURS, other, most) for table in _NUMBERS for other, most in ((_BY_HAND, 1.0), (_DAFT, 0.95))),
    *(_seconds(table, _OURS, _BY_HAND, 1.1) for table in _VECTORS),
    *(_seconds(table, _OURS, _BEAM, 0.25) for table in _ROWS),
]

_COLUMNS = [f"x{index}" for index in range(20)]
_WIDTH = 384
_CHUNK = 100_000


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each file and way."""
    models = {"numbers": _fitted(folder / "numbers.pkl", 20), "vectors": _fitted(folder / "vectors.pkl", _WIDTH)}
    for table, most in {**_NUMBERS, **_VECTORS, **_ROWS}.items():
        count, (kind, form) = most // 500 if quick else most, table.split(", ")
        source = folder / f"{kind}.{_SUFFIXES[form]}"
        _WRITERS[kind](source, count)
        suffix = ".parquet" if kind == "numbers" else source.suffix
        outputs = {who: folder / f"{who}, {kind}{suffix}" for who in (_OURS, _BY_HAND, _DAFT, _BEAM)}
        ways = {turns.way(table, who): one for who, one in _ways(kind, source, models.get(kind), outputs).items()}
        runs = turns.take_turns(ways, repeats, peers=[turns.way(table, _DAFT)])
        _compare({way: outputs[way.rpartition(", ")[2]] for way in ways})
        yield from turns.facts(runs, count)
        source.unlink()


def _ways(kind: str, source: Path, model: Path | None, outputs: Mapping[str, Path]) -> dict[str, turns.Command]:
    if model is None:
        words = ["run", source, "--handler", "own_echo:Echo", "--columns", "text", "--output", outputs[_OURS]]
        return {_BEAM: turns.program("echo", source, outputs[_BEAM]), _OURS: turns.headrace(*words)}
    columns = ["--columns", "vector"] if kind == "vectors" else []
    words = ["run", source, "--handler", "sklearn-numpy", "--model", model, *columns, "--output", outputs[_OURS]]
    ways = {
        _BY_HAND: turns.program(f"{kind}_by_hand", source, model, outputs[_BY_HAND]),
        _OURS: turns.headrace(*words),
    }
    python = python_of("daft") if kind == "numbers" else None
    return ways if python is None else {**ways, _DAFT: [python, "numbers_with_daft.py", source, model, outputs[_DAFT]]}


def _fitted(path: Path, width: int) -> Path:
    rows = np.random.default_rng(7).normal(size=(10_000, width))
    path.write_bytes(pickle.dumps(LogisticRegression().fit(rows, rows.sum(axis=1) > 0)))
    return path


def _write_numbers(path: Path, count: int) -> None:
    rng = np.random.default_rng(8)
    schema = pyarrow.schema([(name, pyarrow.float64()) for name in _COLUMNS])
    open_file = partial(pyarrow.parquet.ParquetWriter, use_dictionary=False)
    with (pyarrow.csv.CSVWriter if path.suffix == ".csv" else open_file)(path, schema) as writer:
        for start in range(0, count, _CHUNK):
            size = min(_CHUNK, count - start)
            writer.write_table(pyarrow.table([rng.normal(size=size) for _ in _COLUMNS], schema=schema))


def _write_vectors(path: Path, count: int) -> None:
    vectors = np.random.default_rng(9).normal(size=(count, _WIDTH)).astype("float32")
    if path.suffix == ".jsonl":
        with path.open("w") as file:
            file.writelines(json.dumps({"id": id_, "vector": row.tolist()}) + "\n" for id_, row in enumerate(vectors))
        return
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), _WIDTH)
    table = pyarrow.table({"id": range(count), "vector": lists.cast(pyarrow.list_(pyarrow.float32()))})
    pyarrow.parquet.write_table(table, path, row_group_size=20_000, use_dictionary=False)


def _write_rows(path: Path, count: int) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps({"id": id_, "text": f"row {id_} has a text"}) + "\n" for id_ in range(count))


_WRITERS = {"numbers": _write_numbers, "vectors": _write_vectors, "rows": _write_rows}


def _compare(outputs: Mapping[str, Path]) -> None:
    for way, output in outputs.items():
        assert output.suffix != ".parquet" or _kinds(output) <= {("SNAPPY", True)}, f"{way}: a file of another kind"
    expected, *others = (_predictions(output) for output in outputs.values())
    for way, found in zip(list(outputs)[1:], others, strict=True):
        assert found == expected, f"{way}: predictions differ"


def _files(output: Path) -> list[Path]:
    """Daft writes a folder of them."""
    return sorted(output.iterdir()) if output.is_dir() else [output]


def _kinds(output: Path) -> set[tuple[str, bool]]:
    """How the columns of Parquet files are compressed, and whether they have statistics."""
    groups = (
        metadata.row_group(group)
        for metadata in map(pyarrow.parquet.read_metadata, _files(output))
        for group in range(metadata.num_row_groups)
    )
    columns = (group.column(place) for group in groups for place in range(group.num_columns))
    return {(column.compression, column.is_stats_set) for column in columns}


def _predictions(output: Path) -> Sequence[Any]:
    """By a column that tells rows apart: Beam writes in any order."""
    files = _files(output)
    read = pyarrow.json.read_json if output.suffix == ".jsonl" else pyarrow.parquet.read_table
    table = pyarrow.concat_tables([read(file) for file in files])
    key = "id" if "id" in table.column_names else _COLUMNS[0]
    table = table.sort_by(key)
    predictions = table["prediction"]
    return (predictions if predictions.type == pyarrow.string() else predictions.cast("int64")).to_pylist()

"""``headrace run`` over files of 20 columns and logistic regression, a loop by hand, and Beam's RunInference."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from goals import INTERVALS, interval
from sklearn.linear_model import LogisticRegression

TITLE = "Files of 20 columns through logistic regression: headrace run, a loop by hand, Beam"

ABOUT = f"""\
A file of 20 columns of 64-bit floats becomes a Parquet file of the same columns and the prediction; JSON lines become
JSON lines. Every run is a
process of its own. `million rows/s` is without its start and its imports: of `headrace run` what its summary says (the
pipeline and the joining of its parts), of the loop from its beginning to its end, of Beam's pipeline from submission to
end. `with the process` counts start and imports, too. The loop by hand reads batches with pyarrow, calls `predict`, and
writes without dictionaries; Beam reads, infers and writes row by row. `CPU seconds` are of the whole process, for a
million rows. All outputs of one file are equal. The ways take turns, forwards and backwards.

{INTERVALS}"""

_COLUMNS = [f"x{index}" for index in range(20)]
_CHUNK = 500_000
_HERE = Path(__file__).parent.parent


class _Way(NamedTuple):
    name: str
    source: Path
    rows: int
    command: Sequence[str]
    output: Path


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each way."""
    count = 20_000 if quick else 10_000_000
    model = _fitted(folder / "model.pkl")
    parquet, csv, few = folder / "rows.parquet", folder / "rows.csv", folder / "few.parquet"
    _write(parquet, count)
    _write(csv, count // 10)
    _write(few, count // 50)
    lines = _as_lines(few)
    few_rows, some_rows = count // 50, count // 10
    ways = [
        _other("by hand, Parquet", "by_hand", parquet, count, model),
        _headrace("headrace run, Parquet", "sklearn-numpy", parquet, count, model),
        _other("by hand, CSV", "by_hand", csv, some_rows, model),
        _headrace("headrace run, CSV", "sklearn-numpy", csv, some_rows, model),
        _headrace("headrace run, row by row", "by_row:make", few, few_rows, model),
        _other("Beam, row by row", "with_beam", few, few_rows, model),
        _headrace("headrace run, JSON lines row by row", "by_row:make", lines, few_rows, model),
        _other("Beam, JSON lines row by row", "with_beam", lines, few_rows, model),
    ]
    runs: dict[str, list[tuple[float, float, float]]] = {way.name: [] for way in ways}
    for turn in range(repeats):
        for way in ways[:: 1 if turn % 2 == 0 else -1]:
            runs[way.name].append(_run(way))
    _compare(ways)
    for way in ways:
        inside, whole, cpu = zip(*runs[way.name], strict=True)
        hand = runs["by hand, CSV" if way.source == csv else "by hand, Parquet"]
        rates = [way.rows / seconds for seconds in inside]
        rows_by_hand = count // 10 if way.source == csv else count
        ratios = [rate / (rows_by_hand / other[0]) for rate, other in zip(rates, hand, strict=True)]
        yield {
            "way": way.name,
            "rows": f"{way.rows:,}",
            "million rows/s": _millions(rates),
            "of the loop by hand": str(interval(ratios)),
            "with the process": _millions([way.rows / seconds for seconds in whole]),
            "CPU seconds": str(interval([seconds / way.rows * 1e6 for seconds in cpu])),
            "runs": runs[way.name],
        }


def _fitted(path: Path) -> Path:
    rows = np.random.default_rng(7).normal(size=(10_000, len(_COLUMNS)))
    path.write_bytes(pickle.dumps(LogisticRegression().fit(rows, rows.sum(axis=1) > 0)))
    return path


def _write(path: Path, count: int) -> None:
    rng = np.random.default_rng(8)
    schema = pyarrow.schema([(name, pyarrow.float64()) for name in _COLUMNS])
    if path.suffix == ".csv":
        writer = pyarrow.csv.CSVWriter(path, schema)
    else:
        writer = pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=False)
    with writer:
        for start in range(0, count, _CHUNK):
            size = min(_CHUNK, count - start)
            writer.write_table(pyarrow.table([rng.normal(size=size) for _ in _COLUMNS], schema=schema))


def _as_lines(path: Path) -> Path:
    """The same rows as JSON lines."""
    lines = path.with_suffix(".jsonl")
    with lines.open("w") as file:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            file.writelines(f"{json.dumps(row)}\n" for row in batch.to_pylist())
    return lines


def _output_of(source: Path, way: str) -> Path:
    suffix = "jsonl" if source.suffix == ".jsonl" else "parquet"
    return source.with_name(f"{way}-{source.stem}-{source.suffix[1:]}.{suffix}")


def _read(path: Path, columns: Sequence[str]) -> pyarrow.Table:
    read = pyarrow.json.read_json if path.suffix == ".jsonl" else pyarrow.parquet.read_table
    return read(path).select(columns).combine_chunks()


def _other(name: str, way: str, source: Path, rows: int, model: Path) -> _Way:
    output = _output_of(source, way)
    return _Way(name, source, rows, [f"{way}.py", str(source), str(model), str(output)], output)


def _headrace(name: str, handler: str, source: Path, rows: int, model: Path) -> _Way:
    output = _output_of(source, "headrace")
    words = ["run", str(source), "--handler", handler, "--model", str(model), "--output", str(output), "--json"]
    return _Way(
        name, source, rows, ["-c", "import sys; from headrace.cli.main import main; sys.exit(main())", *words], output
    )


def _run(way: _Way) -> tuple[float, float, float]:
    """Seconds within, seconds of the whole process, and its CPU seconds."""
    way.output.unlink(missing_ok=True)
    before, started = os.times(), time.perf_counter()
    command = [sys.executable, *way.command]
    done = subprocess.run(command, cwd=_HERE / "elsewhere", capture_output=True, text=True, check=False)
    whole, after = time.perf_counter() - started, os.times()
    if done.returncode:
        raise RuntimeError(f"{way.name} failed: {done.stderr[-2000:]}")
    inside = _seconds_within(done.stdout)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return inside, whole, cpu


def _seconds_within(output: str) -> float:
    """The seconds that a program prints, without the start of ``headrace run --json``, which does not count here."""
    if output.startswith("{"):
        record = json.loads(output)
        return float(record["seconds"] - record["phases"]["imports"])
    return next(float(line.split()[1]) for line in output.splitlines() if line.startswith("seconds"))


def _compare(ways: Sequence[_Way]) -> None:
    """Has all outputs of one file be equal, so far as all of them have columns."""
    columns = [_COLUMNS[0], _COLUMNS[-1], "prediction"]
    for one, other in zip(ways[::2], ways[1::2], strict=True):
        tables = [_read(way.output, columns) for way in (one, other)]
        predictions = [table.column("prediction").cast("int64") for table in tables]
        assert predictions[0].equals(predictions[1]), f"{one.name} and {other.name} differ in predictions"
        assert tables[0].select(columns[:2]).equals(tables[1].select(columns[:2])), f"{one.name}, {other.name} differ"


def _millions(rates: Sequence[float]) -> str:
    return str(interval([rate / 1e6 for rate in rates]))

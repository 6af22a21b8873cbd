"""Whole runs over random files of every format: each row is a prediction or a dead letter, as it was, or skipped."""

from __future__ import annotations

import base64
import collections
import csv
import datetime
import functools
import gzip
import io
import json
import logging
import math
import operator
import os
import sys
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import pyarrow.parquet

from headrace import SKIP
from headrace.core.columns import Form, Takes
from headrace.core.handler import ModelHandler
from headrace.jobs import parts
from headrace.jobs.files import match
from headrace.jobs.job import CancelledError, Job
from headrace.jobs.run import Run
from headrace.rows.examples import Examples
from headrace.rows.values import as_rows

sys.path.append(str(Path(__file__).parents[1]))

import parquet_files
import text_files

ROUND = 20
RUNNERS = (None, "FnApiRunner")
_RUNS: list[Run] = []
"""The one that is at work."""


class Input(NamedTuple):
    """Files of rows, and what they are."""

    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    csv_types: dict[str, str]
    records: list[Any]
    """Rows, or a ``text_files.Wrong``."""


class Teller(ModelHandler):
    """Tells something of each example, of many types, by its content alone; some are too much for a whole batch.

    Args:
        stops: after how many batches it cancels the run; 0: never.
    """

    def __init__(self, stops: int = 0) -> None:
        super().__init__()
        self.stops = stops

    def load_model(self) -> Any:
        return collections.Counter()

    def run_inference(self, batch: Any, model: Any, inference_args: Any = None) -> list[Any]:
        told = [tell(as_json(example)) for example in batch]
        if any(isinstance(one, ValueError) for one in told):
            raise ValueError("too much")
        model["batches"] += 1
        if model["batches"] == self.stops:
            _RUNS[-1].cancel()
        return told


class Adder(Teller):
    """Adds numbers, in columns too."""

    def example_from_row(self, row: Any) -> list[float]:
        return [_as_float(value) for value in row.values()]

    def columns_equal_rows(self) -> bool:
        return True

    def run_inference(self, batch: Any, model: Any, inference_args: Any = None) -> list[float]:
        sums = [sum_of(example) for example in batch]
        if any(map(is_too_much, sums)):
            raise ValueError("too much")
        return sums

    def run_columns(self, columns: Any, model: Any, inference_args: Any = None) -> Any:
        total = sum_of([column.astype(float) for column in columns.values()])
        if any(map(is_too_much, total.tolist())):
            raise ValueError("too much")
        return total


class Namer(Teller):
    """Tells something of numbers and texts by name, in columns too."""

    takes = Takes(Form.ARRAYS)

    def example_from_row(self, row: Any) -> dict[str, Any]:
        return named(row)

    def columns_equal_rows(self) -> bool:
        return True

    def run_inference(self, batch: Any, model: Any, inference_args: Any = None) -> list[Any]:
        found = ["skipped" if one is SKIP else one for one in map(tell, map(as_json, batch))]
        if any(isinstance(one, ValueError) for one in found):
            raise ValueError("too much")
        return found

    def run_columns(self, columns: Any, model: Any, inference_args: Any = None) -> Any:
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return self.run_inference([named(dict(zip(columns, row, strict=True))) for row in rows], model)


def named(row: dict[str, Any]) -> dict[str, Any]:
    if None in row.values():
        raise TypeError("a value is missing")
    return {name: value if isinstance(value, str) else float(value) for name, value in row.items()}


def _as_float(value: Any) -> float:
    if isinstance(value, str) or value is None:
        raise TypeError(f"{value!r} is no number")
    return float(value)


def sum_of(values: list[Any]) -> Any:
    """One after the other: ``sum`` is more exact."""
    return functools.reduce(operator.add, values, 0.0)


def is_too_much(total: float) -> bool:
    return math.isfinite(total) and int(abs(total)) % 7 == 3


def tell(example: Any) -> Any:
    """Something that depends on the example alone; an error for some."""
    sign = zlib.crc32(json.dumps(example, sort_keys=True).encode())
    objects = [{"a": sign}, {"a": "x", "b": [1.5]}, [sign, None], [], {}]
    kinds = [sign, str(sign), *objects, 0.5, 2**53 + 1, 2**64, None, True]
    if sign % 13 == 0:
        return SKIP
    return ValueError("too much") if sign % 11 == 0 else kinds[sign % 7 if sign % 5 else sign % len(kinds)]


def as_json(value: Any) -> Any:
    """As the output has it: what is not a finite number is null."""
    if isinstance(value, parquet_files.Count):
        return value.text
    if isinstance(value, datetime.timedelta):
        return parquet_files.duration(value // datetime.timedelta(microseconds=1) * 1000)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode()
    if value is None or isinstance(value, str | int | float):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def run(seed: int, cases: int) -> None:
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # what is cancelled is no news
    for case in range(cases):
        random = Random(f"{seed} {case}")
        fewest = mock.patch.object(parts, "_FEWEST_IN_COLUMNS", random.choice([1, 4, 64]))
        with tempfile.TemporaryDirectory() as folder, fewest:
            _case(random, Path(folder))


def _case(random: Random, folder: Path) -> None:
    inputs = _write_inputs(random, folder)
    adds = bool(inputs.numbers) and random.random() < 0.6
    tells = bool(inputs.numbers) and not adds and random.random() < 0.6
    known = inputs.numbers + tuple(name for name in inputs.columns if inputs.csv_types and name not in inputs.csv_types)
    known = known if tells else inputs.numbers
    names = tuple(random.sample(known, random.randint(1, len(known)))) if adds or tells else None
    some = tuple(random.sample(inputs.columns, random.randint(0, len(inputs.columns))))
    keep = None if random.random() < 0.6 else some
    output = folder / "out" / ("p" + random.choice([".jsonl", ".jsonl.gz", ".parquet", ".csv", ".csv.gz"]))
    threshold = random.choice([None, None, None, 0.0, 0.3, 1.0])
    resume = random.random() < 0.4
    stops = random.randint(1, 4) if resume and not (adds or tells) else 0
    job = Job(
        Adder() if adds else Namer() if tells else Teller(stops),
        match([str(folder / "*.*")], delimiter=_delimiter(folder)),
        str(output),
        Examples(names, inputs.columns),
        types=inputs.csv_types,
        keep=keep,
        batch_sizes={"min_batch_size": 1, "max_batch_size": random.choice([1, 3, 8, 64])},
        resume={"job": 1} if resume else None,
        threshold=threshold,
        columnar=random.random() < 0.8,
        runner=random.choice(RUNNERS),
        dead_letters=str(output.with_name(random.choice(["q.parquet", "q.csv"]))) if random.random() < 0.3 else None,
    )
    os.makedirs(output.parent)
    output.write_text("old")
    bytes_too = ".csv" not in output.name
    told = _named if tells else _added
    path = str(job.sources[0].path)
    predictions, failed, skipped = _expected(inputs.records, names, keep, path, told, bytes_too=bytes_too)
    report, done = _run(job, random)
    counts = (len(predictions), len(failed), skipped)
    assert (report.predictions, report.failed, report.skipped) == counts, (report, counts, output, keep)
    share = report.failed / max(1, report.predictions + report.failed)
    refused = share > (threshold if threshold is not None else 2) or (share == 1 and threshold != 1.0)
    assert bool(report.refusal) is refused
    place = Path(done.output.failed_letters if refused else done.output.dead_letters)
    assert place.exists() is bool(report.failed)
    letters = _read(place) if report.failed else []
    rows = [json.loads(one["row"]) if isinstance(one["row"], str) else one["row"] for one in letters]
    assert _sorted(rows) == _sorted(failed)
    if refused:
        assert output.read_text() == "old"
    elif output.suffix == ".parquet":
        compare_tables(pyarrow.parquet.read_table(output), predictions)
    else:
        (_compare_lines if bytes_too else _compare_csv)(output, predictions)
    kept = [name for name in os.listdir(output.parent) if name.startswith(".")]
    assert bool(kept) is bool(refused and resume and report.predictions)


def _run(job: Job, random: Random) -> tuple[Any, Run]:
    for _ in range(100):
        _RUNS[:] = [Run(job)]
        try:
            return _RUNS[0].execute(), _RUNS[0]
        except CancelledError:
            before = _RUNS[0].output.kept_rows
            assert before >= 0
            job.handler.stops = 0
            job = replace(job, runner=random.choice(RUNNERS))  # which may change between two runs
    raise AssertionError("the run never ended")


def _delimiter(folder: Path) -> str | None:
    path = folder / "delimiter"
    delimiter = path.read_text() if path.exists() else None
    path.unlink(missing_ok=True)
    return delimiter


def _write_inputs(random: Random, folder: Path) -> Input:
    if random.random() < 0.4:
        files = [parquet_files.make(random)]
        while random.random() < 0.3:
            files.append(parquet_files.make(random, columns=files[0].columns))
        for number, file in enumerate(files):
            (folder / f"{number}.parquet").write_bytes(file.content)
        numbers = tuple(name for name in files[0].columns if all(name in file.numbers for file in files))
        return Input(files[0].columns, numbers, {}, [row for file in files for row in file.records])
    made = text_files.make(random)
    (folder / made.name).write_bytes(made.content)
    (folder / "delimiter").write_text(made.delimiter)
    csv_types = made.types if ".csv" in made.name else {}
    numbers = tuple(name for name, kind in csv_types.items() if kind in ("int", "float", "bool"))
    return Input(made.columns, numbers, csv_types, made.records)


def _expected(records: list[Any], names: Any, keep: Any, path: str, told: Any, *, bytes_too: bool) -> Any:
    """The rows of predictions, those of dead letters, and how many are skipped."""
    predictions, letters, skipped = [], [], 0
    for record in records:
        if isinstance(record, text_files.Wrong):
            letters.append({"line": record.text, "file": path, "line_number": record.line})
            continue
        row = as_json(record)
        prediction = tell(row) if names is None else told(record, names)
        if prediction is SKIP:
            skipped += 1
        elif isinstance(prediction, Exception) or (not bytes_too and _has_bytes(record, keep)):
            letters.append(row)
        else:
            kept = row if keep is None else {name: row.get(name) for name in keep}
            predictions.append({**kept, "prediction": as_json(prediction)})
    return predictions, letters, skipped


def _has_bytes(value: Any, keep: Any = None) -> bool:
    if isinstance(value, dict):
        return any(_has_bytes(one) for name, one in value.items() if keep is None or name in keep)
    return any(map(_has_bytes, value)) if isinstance(value, list | tuple) else isinstance(value, bytes)


def _named(record: dict[str, Any], names: tuple[str, ...]) -> Any:
    try:
        found = tell(as_json(named({name: record[name] for name in names})))
    except (TypeError, ValueError, OverflowError, KeyError) as error:
        return error
    return "skipped" if found is SKIP else found


def _added(record: dict[str, Any], names: tuple[str, ...]) -> Any:
    try:
        total = sum_of([_as_float(record[name]) for name in names])
    except (TypeError, OverflowError) as error:
        return error
    return ValueError("too much") if is_too_much(total) else total


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pyarrow.parquet.read_table(path).to_pylist())
    if path.suffix == ".csv":
        return [dict(zip(*pair, strict=True)) for pair in _csv_rows(path.read_text())]
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _sorted(rows: list[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def _compare_lines(path: Path, expected: list[dict[str, Any]]) -> None:
    content = path.read_bytes()
    found = (gzip.decompress(content) if path.suffix == ".gz" else content).split(b"\n")[:-1]
    assert found == [json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") for row in expected]


def _compare_csv(path: Path, expected: list[dict[str, Any]]) -> None:
    content = path.read_bytes()
    found = _csv_rows((gzip.decompress(content) if path.suffix == ".gz" else content).decode())
    for (header, cells), row in zip(found, expected, strict=True):
        assert {_cell(name) for name in row} <= set(header)
        values = {_cell(name): value for name, value in row.items()}
        for name, cell in zip(header, cells, strict=True):
            value = values.get(name)
            assert float(cell) == value and not cell.isdigit() if isinstance(value, float) else cell == _cell(value)


def _csv_rows(text: str) -> list[tuple[list[str], list[str]]]:
    """The cells of each row, behind those of the header."""
    header, *rows = csv.reader(io.StringIO(text, newline=""), strict=True) if text else [[]]
    return [(header, row) for row in rows]


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()


def compare_tables(table: Any, expected: list[dict[str, Any]]) -> None:
    """Each row of a table is the one that was expected, exactly, or of a typed column what JSON has of it."""
    assert table.num_rows == len(expected)
    rows = (as_json(row) for batch in table.to_batches() for row in as_rows(batch))
    for found, row in zip(rows, expected, strict=True):
        assert set(row) <= set(found)
        for name, value in found.items():
            assert _holds(value, row.get(name)), (name, value, row.get(name))


def _holds(found: Any, value: Any) -> bool:
    """Whether a table's value is that, exactly; or as text, where the column has no type."""
    if isinstance(found, str) and not isinstance(value, str):
        return bool(_without_nulls(json.loads(found)) == _without_nulls(value))
    found, value = _without_nulls(found), _without_nulls(value)
    return bool(found == value) and (isinstance(found, bool) is isinstance(value, bool))


def _without_nulls(value: Any) -> Any:
    """Objects of a table have all fields."""
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value

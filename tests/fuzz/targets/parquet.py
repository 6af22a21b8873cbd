"""Parquet in process: rows of every type are read as they were written, and what JSON has is written as it is."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet

from headrace.jobs.files import Source
from headrace.jobs.json_lines import as_line
from headrace.jobs.output_batches import batch_of_block, kept_columns
from headrace.jobs.parquet_tables import write_parquet
from headrace.jobs.reading import read_blocks, read_rows
from headrace.jobs.text_tables import lines_of
from headrace.rows.blocks import Block, BrokenLine
from headrace.rows.columns import Fit, fitted

sys.path.append(str(Path(__file__).parents[1]))

import parquet_files
import text_files

from jobs import as_json, compare_tables
from output_rows import output_table

ROUND = 300


def run(seed: int, cases: int) -> None:
    for case in range(cases):
        random = Random(f"{seed} {case}")
        with tempfile.TemporaryDirectory() as folder:
            _read(random, Path(folder) / "in.parquet")
        _write(random)


def _table_of(block: Block) -> pyarrow.Table:
    """A block as it is written, without predictions."""
    batch = None if block.batch is None else batch_of_block(kept_columns(block.batch, None), [None] * len(block), None)
    return (
        output_table(block.rows())
        if batch is None
        else pyarrow.Table.from_batches([batch]).drop_columns(["prediction"])
    )


def _read(random: Random, path: Path) -> None:
    """Row by row and in columns: the rows are those that were made, and both make the same output.

    Those that Python has no values for are the same ones in both.
    """
    made = parquet_files.make(random, beyond=random.random() < 0.2)
    path.write_bytes(made.content)
    source = Source(str(path), "parquet")
    rows = list(read_rows(source, {}))
    readable = [parquet_files.is_readable(record) for record in made.records]
    assert [not isinstance(row, BrokenLine) for row in rows] == readable
    rows = [row for row in rows if not isinstance(row, BrokenLine)]
    expected = [as_json(record) for record, is_readable in zip(made.records, readable, strict=True) if is_readable]
    lines = [json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n" for row in expected]
    assert [as_line(row) for row in rows] == lines
    names = tuple(made.numbers[:1])
    blocks = list(fitted(read_blocks(source, names=names), Fit(names)))
    broken = [block.first for block in blocks if block.batch is None and isinstance(block.records[0], BrokenLine)]
    assert broken == [place for place, is_readable in enumerate(readable) if not is_readable]
    blocks = [block for block in blocks if block.first not in broken]
    assert [as_line(row) for block in blocks for row in block.rows()] == lines
    tables = list(map(_table_of, blocks))
    assert [json.loads(line) for chunk in lines_of(tables) for line in chunk.splitlines()] == expected
    compare_tables(_written(random, expected), expected)
    typed = [block.batch for block in blocks if block.batch is not None]
    if typed:
        given = pyarrow.Table.from_batches(typed)
        found = _read_back([pyarrow.Table.from_batches([batch]) for batch in typed])
        assert found.schema.remove_metadata() == given.schema.remove_metadata()
        for one, other in zip(found.columns, given.columns, strict=True):  # as texts, where NaN is like NaN
            assert one.combine_chunks().to_string(window=10**6) == other.combine_chunks().to_string(window=10**6)


def _write(random: Random) -> None:
    """Rows of any shape, in pieces: each is in the table as it was."""
    rows = text_files.make_jsonl(random).records
    rows = [as_json(row) | {"prediction": 1} for row in rows if isinstance(row, dict)]
    compare_tables(_written(random, rows), rows)


def _written(random: Random, rows: list[dict[str, Any]]) -> Any:
    tables, first = [], 0
    while first < len(rows):
        size = random.randint(1, len(rows) - first)
        tables.append(output_table(rows[first : first + size]))
        first += size
    return _read_back(tables)


def _read_back(tables: list[Any]) -> Any:
    file = io.BytesIO()
    write_parquet(file, lambda: tables, lambda: None)
    return pyarrow.parquet.read_table(pyarrow.BufferReader(file.getvalue()))

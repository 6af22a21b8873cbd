"""Files of CSV and JSONL through the readers, in blocks and one by one: each record comes out as it was made."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from text_files import Made, Wrong, make

from headrace.jobs import csv_blocks, json_lines, opening
from headrace.jobs.files import Source, match
from headrace.jobs.reading import infer_schema, read_rows
from headrace.rows.blocks import BrokenLine

ROUND = 2000


def run(seed: int, cases: int) -> None:
    random = Random(seed)
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.path.isdir(memory) else None) as folder:
        for _ in range(cases):
            made = make(random)
            with cut_into_pieces(random, len(made.content)):
                try:
                    check(Path(folder), made, random)
                except Exception as error:
                    raise AssertionError(f"{made.name}: {made.content[:5000]!r}") from error


@contextmanager
def cut_into_pieces(random: Random, size: int) -> Iterator[None]:
    """Has readers take files in pieces of other sizes."""
    least = 1 if size < 500 else 1 + size // 100
    with (
        mock.patch.object(opening, "_FIRST_BYTES", random.choice([least, 1 << 16])),
        mock.patch.object(opening, "_PIECE_BYTES", random.choice([least, 50 * least, 1 << 22])),
        mock.patch.object(csv_blocks, "_FEW_LINES", random.choice([1, 8, 64])),
        mock.patch.object(json_lines, "_FEW_LINES", random.choice([1, 8, 64])),
    ):
        yield


def check(folder: Path, made: Made, random: Random) -> None:
    path = folder / made.name
    path.write_bytes(made.content)
    (source,) = match([str(path)], delimiter=made.delimiter)
    assert infer_schema([source]).columns == made.columns
    expect(made, read_rows(source, made.types), source)
    with (
        mock.patch.object(csv_blocks._ArrowParser, "read", return_value=None),
        mock.patch.object(json_lines._Shape, "of", return_value=None),
    ):
        expect(made, read_rows(source, made.types), source)
    if 0 < len(made.content) < 1 << 15 and random.random() < 0.03 and made.name.count(".") == 1:  # none is refused
        check_pipe(made, source.format)


def check_pipe(made: Made, file_format: str) -> None:
    """Reads the same out of a pipe, which holds all of it."""
    out, into = os.pipe()
    try:
        with open(into, "wb", buffering=0) as end:
            end.write(made.content)
        (source,) = match([f"/dev/fd/{out}"], file_format, made.delimiter)
        assert infer_schema([source]).columns == made.columns
        expect(made, read_rows(source, made.types), source)
    finally:
        os.close(out)


def expect(made: Made, rows: Iterable[Any], source: Source) -> None:
    """Each record, in order, as it was made; or as one line that cannot be read."""
    rows = list(rows)
    assert all(row.file == source.path for row in rows if isinstance(row, BrokenLine))
    found = [Wrong(row.line, row.number) if isinstance(row, BrokenLine) else row for row in rows]
    for place, (record, row) in enumerate(zip(made.records, found, strict=False)):
        assert repr(record) == repr(row), f"record {place}: {record!r:.1000} came out as {row!r:.1000}"
    assert len(found) == len(made.records), f"{len(made.records)} records came out as {len(found)}"

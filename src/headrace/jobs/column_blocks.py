"""Blocks of files: whether a model can take them in columns, and how much of one it takes at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.jobs.csv_types import NUMERIC
from headrace.jobs.files import Source, open_source
from headrace.jobs.parquet_blocks import parquet_file
from headrace.jobs.pipes import is_pipe
from headrace.rows.blocks import Block
from headrace.rows.fitting import Fit, has_numbers

_NUMBERS_OF_JSON = {*NUMERIC, "list"}
_PACE_SECONDS = 1.0


def fits_columns(sources: Sequence[Source], types: Mapping[str, str], stated: Mapping[str, Any], fit: Fit) -> bool:
    """Whether a model can take the columns that it sees of the files; judges by one file of each format.

    Args:
        sources: the files.
        types: of CSV's columns.
        stated: what the columns hold, as the sources state it.
        fit: what the model takes.
    """
    formats = {source.format: source for source in reversed(sources)}
    if not fit.names or not sources or any(map(_needs_rows, sources)):
        return False
    if fit.frames:
        return True
    fits_csv = "csv" not in formats or all(types.get(name) in NUMERIC for name in fit.names)
    fits_json = "jsonl" not in formats or all(stated.get(name) in _NUMBERS_OF_JSON for name in fit.names)
    fits_parquet = "parquet" not in formats or has_numbers(_schema_of(formats["parquet"]), fit.names)
    return fits_csv and fits_json and fits_parquet


def cut_by_time(blocks: Iterable[Block], clock: Callable[[], float] = time.monotonic) -> Iterator[Block]:
    """Cuts blocks to what about a second processes, so that killing the run loses few rows of a slow model.

    The first part is one row; each later part is at most twice as long as the one before it.
    """
    begin, size, taken = clock(), 1, 0
    for block in blocks:
        start = 0
        while start < len(block):
            part = block[start : start + size]
            yield part
            start += len(part)
            taken += len(part)
            rows_in_a_second = taken / max(clock() - begin, 1e-3)
            size = max(1, min(2 * size, int(rows_in_a_second * _PACE_SECONDS)))


def _needs_rows(source: Source) -> bool:
    """Dead letters and files are rows as they are; those of a pipe must not wait for others."""
    return source.letters or bool(source.files) or is_pipe(source.path)


def _schema_of(source: Source) -> Any:
    with open_source(source) as file:
        return parquet_file(file).schema_arrow

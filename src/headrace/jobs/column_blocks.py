"""Blocks of files: whether a model can take them in columns, and how much of one it takes at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.jobs.csv_types import TEXT
from headrace.jobs.files import Source, open_source
from headrace.jobs.parquet_blocks import parquet_file
from headrace.jobs.pipes import is_pipe
from headrace.rows.blocks import Block
from headrace.rows.fitting import Fit
from headrace.rows.types import types_of_schema

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
    known = {"csv": {**dict.fromkeys(fit.names, TEXT), **types}, "jsonl": stated}
    return all(fit.has_types(known[one] if one in known else _types_of(source)) for one, source in formats.items())


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


def _types_of(source: Source) -> dict[str, str]:
    with open_source(source) as file:
        return types_of_schema(parquet_file(file).schema_arrow)

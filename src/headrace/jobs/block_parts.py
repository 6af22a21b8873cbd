"""Part files of predictions in columns: sequences of Arrow streams, each readable even if the next is cut off."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, BinaryIO

import pyarrow
import pyarrow.ipc

from headrace.jobs import storage
from headrace.jobs.block_output import output_batch
from headrace.jobs.blocks import Block
from headrace.jobs.durable import DurableParts, DurableWriter, runs_of
from headrace.jobs.parts import BLOCKS, OutputPart

_ROWS = 1 << 16
_BYTES = 1 << 24
_STREAMS_AT_ONCE = 4


class _Stream:
    """Record batches of one schema, each with the place of its first row, to be written as one stream."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Any]] = []
        self._rows = self._bytes = 0

    def suits(self, batch: Any) -> bool:
        """Whether the batch has the stream's schema."""
        return not self.batches or bool(self.batches[0][1].schema.equals(batch.schema, check_metadata=True))

    def add(self, place: int, batch: Any) -> bool:
        """Adds a batch; returns whether the stream is large enough to write."""
        self.batches.append((place, batch))
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        return self._rows >= _ROWS or self._bytes >= _BYTES

    def write(self, file: BinaryIO) -> None:
        """Writes the batches as one stream and clears them."""
        with pyarrow.ipc.new_stream(file, self.batches[0][1].schema) as writer:
            for _, batch in self.batches:
                writer.write_batch(batch)
        self.batches = []
        self._rows = self._bytes = 0


class BlockPartWriter:
    """Writes record batches into a part file, which the first batch creates.

    Args:
        folder: of the parts.
        keep: the input columns to output; None: all.
    """

    def __init__(self, folder: str, keep: tuple[str, ...] | None) -> None:
        self._path = storage.join(folder, f"{uuid.uuid4().hex}{BLOCKS}")
        self._keep = keep
        self._file: BinaryIO | None = None
        self._stream = _Stream()
        self._count = 0

    def write(self, block: Block, predictions: Any, model_id: str | None) -> None:
        """Adds a block with its predictions: an array, or a list of results."""
        batch = output_batch(block, self._keep, predictions, model_id)
        if not self._stream.suits(batch):
            self._flush()
        self._count += batch.num_rows
        if self._stream.add(block.place, batch):
            self._flush()

    def finish(self) -> OutputPart | None:
        """Closes the part; None if nothing was written."""
        if self._stream.batches:
            self._flush()
        if self._file is None:
            return None
        self._file.close()
        return OutputPart(True, self._path, {"predictions": self._count})

    def _flush(self) -> None:
        if self._file is None:
            self._file = storage.create(self._path)
        self._stream.write(self._file)


class DurableBlockPartWriter(DurableWriter):
    """Writes record batches into a part whose index records which rows it holds.

    Args:
        folder: of the parts; local.
        keep: the input columns to output; None: all.
    """

    def __init__(self, folder: str, keep: tuple[str, ...] | None) -> None:
        super().__init__(os.path.join(folder, f"{uuid.uuid4().hex}{BLOCKS}"), predictions=True)
        self._keep = keep
        self._stream = _Stream()

    def write(self, block: Block, predictions: Any, model_id: str | None) -> None:
        """Adds a block with its predictions: an array, or a list of results."""
        batch = output_batch(block, self._keep, predictions, model_id)
        with self._taking():
            if not self._stream.suits(batch):
                self._write()
            self._counts["predictions"] = self._counts.get("predictions", 0) + batch.num_rows
            if self._stream.add(block.place, batch):
                self._write()

    @property
    def _is_empty(self) -> bool:
        return not self._stream.batches

    def _flush(self, file: BinaryIO) -> list[list[int]]:
        self._stream.batches.sort(key=lambda placed: placed[0])  # recovered batches arrive out of order
        runs = runs_of((place, batch.num_rows, 0) for place, batch in self._stream.batches)
        start = file.tell()
        self._stream.write(file)
        runs[-1][2] = file.tell() - start
        return runs


def read_parts(paths: Iterable[str]) -> Iterator[Any]:
    """The rows of parts as tables, in the order in which they were written."""
    for path in paths:
        with storage.open_file(path) if storage.is_remote(path) else pyarrow.OSFile(path) as file:
            while True:
                try:
                    reader = pyarrow.ipc.open_stream(file)
                except (pyarrow.ArrowInvalid, EOFError):  # no further stream
                    break
                yield _table(reader)


def read_in_order(found: DurableParts) -> Iterator[Any]:
    """The rows of parts as tables, in input order, without duplicates; keeps only a few streams in memory."""
    stream = lru_cache(_STREAMS_AT_ONCE)(_stream_at)  # rows of several streams may interleave
    at, start, stop = ("", 0), 0, 0
    for known, (_, rows, _, offset, first, part) in found.news():
        # Extend the current slice for as long as rows follow each other in one stream.
        if (found.paths[part], offset) != at or first + known != stop:
            if stop:
                yield stream(*at).slice(start, stop - start)
            at, start = (found.paths[part], offset), first + known
        stop = first + rows
    if stop:
        yield stream(*at).slice(start, stop - start)


def _stream_at(path: str, offset: int) -> Any:
    with pyarrow.OSFile(path) as file:
        file.seek(offset)
        return _table(pyarrow.ipc.open_stream(file))


def _table(reader: Any) -> Any:
    """The rest of a stream as a table, dictionaries decoded."""
    table = reader.read_all()
    for place, field in enumerate(table.schema):
        if pyarrow.types.is_dictionary(field.type):
            plain = field.type.value_type
            table = table.set_column(place, field.with_type(plain), table.column(place).cast(plain))
    return table

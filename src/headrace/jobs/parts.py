"""Parts of an output: files of record batches written by bundles, which become the output only if all bundles succeed.

A part is a sequence of Arrow streams; each record batch says where its rows are in the input.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from operator import attrgetter
from typing import Any, BinaryIO, NamedTuple

import pyarrow
import pyarrow.ipc

from headrace.jobs import storage
from headrace.jobs.direct import DirectParquet
from headrace.jobs.output_batches import OutputLine, Runs, batch_of_lines

_ROWS = 1 << 16
_BYTES = 1 << 24
_WAITING = 1 << 12
RUNS = "runs"
"""The metadata of a record batch: places of neighbouring rows, the first one's and their number."""

KINDS = {True: "predictions", False: "letters", None: "skipped"}
"""The extensions of parts: of predictions, of dead letters, and of rows that were skipped."""


class BundleParts(NamedTuple):
    """What a bundle has written."""

    paths: list[str]
    """Of parts; none where all parts of a folder count."""
    is_cut: bool = False
    """Whether the bundle's first rows all failed, and it left out others."""


class PartWriter:
    """Writes rows into a part file, which the first of them creates.

    Args:
        folder: of the parts.
        predictions: as in ``KINDS``.
    """

    direct: DirectParquet | None = None
    """The output's own file, which takes record batches as far as it can."""

    def __init__(self, folder: str, *, predictions: bool | None) -> None:
        self._folder = folder
        self._path = storage.join(folder, f"{uuid.uuid4().hex}.{KINDS[predictions]}")
        self._file: BinaryIO | None = None
        self._stream: Any = None
        """The stream that record batches of one schema are added to."""
        self._schema: Any = None
        self._rows = self._bytes = 0
        """Of the stream."""
        self._waiting: list[OutputLine] = []
        self._waiting_bytes = 0

    def write_line(self, line: OutputLine) -> None:
        """Adds a row."""
        self.write_lines([line])

    def write_lines(self, lines: Sequence[OutputLine]) -> None:
        """Adds rows."""
        with self._taking():
            self._waiting += lines
            self._waiting_bytes += sum(len(line.text) for line in lines)
            if len(self._waiting) >= _WAITING or self._waiting_bytes >= _BYTES:
                self._settle()

    def write_batch(self, place: int, batch: Any) -> None:
        """Adds predictions of neighbouring rows as a record batch.

        Args:
            place: of the first row.
            batch: from ``batch_of_block``.
        """
        with self._taking():
            self._settle()  # rows before these
            if self.direct is None or not self.direct.add(place, batch):
                self._to_stream([(place, batch.num_rows)], batch)

    def finish(self) -> str | None:
        """Closes the part; returns its path, None if nothing was written."""
        if self.direct is not None:
            self.direct.close()
            for runs, reference in self.direct.parts():
                self._to_stream(runs, reference)
        self._write()
        if self._file is None:
            return None
        self._file.close()
        return self._path

    def abandon(self) -> None:
        """Closes the part of a bundle that failed: it does not count."""
        with suppress(Exception):  # what failed the bundle is the error to report
            if self.direct is not None:
                self.direct.close()
            if self._file is not None:
                self._file.close()

    def _taking(self) -> AbstractContextManager[None]:
        """Surrounds each acceptance of rows."""
        return nullcontext()

    def _settle(self) -> None:
        """Makes a batch of the rows that wait."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if waiting:
            self._to_stream(*batch_of_lines(sorted(waiting, key=attrgetter("place"))))

    def _create(self) -> BinaryIO:
        return storage.create(self._path)

    def _to_stream(self, runs: Runs, batch: Any) -> None:
        if self._stream is not None and not self._schema.equals(batch.schema, check_metadata=True):
            self._end_stream()
        if self._file is None:
            self._file = self._create()
        if self._stream is None:
            self._stream, self._schema = pyarrow.ipc.new_stream(self._file, batch.schema), batch.schema
        self._stream.write_batch(batch, {RUNS: json.dumps(runs)})
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _ROWS or self._bytes >= _BYTES:
            self._end_stream()

    def _write(self) -> None:
        """Writes all that waits."""
        self._settle()
        self._end_stream()

    def _end_stream(self) -> None:
        stream, self._stream, self._rows, self._bytes = self._stream, None, 0, 0
        if stream is not None:
            stream.close()


def write_manifest(path: str, bundles: Iterable[BundleParts]) -> None:
    """Lists the parts of the output."""
    with storage.create(path) as file:
        file.write(json.dumps(list(bundles)).encode())


def read_manifest(path: str) -> BundleParts:
    """The parts that a manifest lists, together."""
    with storage.open_file(path) as file:
        bundles = [BundleParts(*one) for one in json.load(file)]
    return BundleParts([path for one in bundles for path in one.paths], any(one.is_cut for one in bundles))

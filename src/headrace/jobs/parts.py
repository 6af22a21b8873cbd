"""Parts of an output: files that bundles write, which become the output only if all bundles succeed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

from headrace.jobs import storage
from headrace.jobs.json_lines import as_line
from headrace.jobs.messages import Messages

BLOCKS = ".arrows"
"""How the names of parts end whose rows are in columns; see ``headrace.jobs.block_parts``."""

_CHUNK_BYTES = 1 << 20

KINDS = {True: "predictions", False: "letters", None: "skipped"}
"""How the names of other parts end, by what they hold; see ``OutputPart``."""


class OutputPart(NamedTuple):
    """A finished part of the output, written by one bundle."""

    predictions: bool | None
    """Whether it holds predictions, or else dead letters; None: only counts rows that were skipped."""
    path: str
    counts: dict[str, int]
    """How many lines, by what they are: the error type of dead letters."""
    messages: dict[str, int] = {}  # noqa: RUF012 - a NamedTuple's default, which nothing changes
    """Of dead letters, how many have which message; of the most frequent ones."""


class PartWriter:
    """Writes lines into one part, a file that is made for the first of them.

    Args:
        folder: for parts.
        predictions: as of an ``OutputPart``.
    """

    def __init__(self, folder: str, *, predictions: bool | None) -> None:
        self._path = storage.join(folder, f"{uuid.uuid4().hex}.{KINDS[predictions]}")
        self._predictions = predictions
        self._counts: dict[str, int] = {}
        self._messages = Messages()
        self._file: BinaryIO | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def write(self, record: Mapping[str, Any], what: str, place: int = 0) -> None:
        """Writes a line; ``what`` it is counted as. Its place in the input is of no use here."""
        line = as_line(record)
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        self._counts[what] = self._counts.get(what, 0) + 1
        if self._predictions is False:
            self._messages.add(what, str(record.get("message", "")))
        if self._waiting_bytes > _CHUNK_BYTES:
            self._flush()

    def finish(self) -> OutputPart | None:
        """Closes the part; None where nothing was written."""
        if self._waiting:
            self._flush()
        if self._file is None:
            return None
        self._file.close()
        return OutputPart(self._predictions, self._path, self._counts, self._messages.most_frequent())

    def _flush(self) -> None:
        """Many lines at once: a write of few bytes costs more than the making of its line."""
        if self._file is None:
            self._file = storage.create(self._path)
        self._file.write(b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0


def write_manifest(path: str, parts: list[str]) -> None:
    """Lists the parts that make up the output, each as JSON."""
    with storage.create(path) as file:
        file.write(json.dumps(parts).encode())


def read_manifest(path: str) -> list[OutputPart]:
    """The parts that it lists."""
    with storage.open_file(path) as file:
        return [OutputPart(*json.loads(part)) for part in json.load(file)]

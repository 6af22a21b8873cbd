"""Parts of an output: files written by bundles, which become the output only if all bundles succeed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

from headrace.jobs import storage
from headrace.jobs.json_lines import as_line
from headrace.jobs.messages import Messages

BLOCKS = ".arrows"
"""The extension of parts in columns (Arrow streams)."""

_CHUNK_BYTES = 1 << 20

KINDS = {True: "predictions", False: "letters", None: "skipped"}
"""The extensions of the other parts, by ``OutputPart.predictions``."""


class OutputPart(NamedTuple):
    """A finished part of the output, written by one bundle."""

    predictions: bool | None
    """True: predictions; False: dead letters; None: only records skipped rows."""
    path: str
    counts: dict[str, int]
    """Numbers of lines by kind; for dead letters, by stage and error type."""
    messages: dict[str, int] = {}  # noqa: RUF012 - a NamedTuple's default, never modified
    """For dead letters: counts of the most frequent messages."""


class PartWriter:
    """Writes JSON lines into a part file, which the first line creates.

    Args:
        folder: of the parts.
        predictions: as in ``OutputPart``.
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
        """Writes a line, counted under ``what``. The place is unused here: only durable parts record it."""
        line = as_line(record)
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        self._counts[what] = self._counts.get(what, 0) + 1
        if self._predictions is False:
            self._messages.add(what, str(record.get("message", "")))
        if self._waiting_bytes > _CHUNK_BYTES:
            self._flush()

    def finish(self) -> OutputPart | None:
        """Closes the part; None if nothing was written."""
        if self._waiting:
            self._flush()
        if self._file is None:
            return None
        self._file.close()
        return OutputPart(self._predictions, self._path, self._counts, self._messages.most_frequent())

    def _flush(self) -> None:
        """Writes many lines at once: a small write costs more than encoding its line."""
        if self._file is None:
            self._file = storage.create(self._path)
        self._file.write(b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0


def write_manifest(path: str, parts: list[str]) -> None:
    """Lists the parts of the output, each as JSON."""
    with storage.create(path) as file:
        file.write(json.dumps(parts).encode())


def read_manifest(path: str) -> list[OutputPart]:
    """The parts that a manifest lists."""
    with storage.open_file(path) as file:
        return [OutputPart(*json.loads(part)) for part in json.load(file)]

"""Files as rows: path, size and time of each, and its content where it is asked for.

The content is no item of the row's dict. It is read when it is asked for, or ahead of that on threads, and handed out
once: so it is in no output and in no dead letter, and memory holds that of a few files.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeVar

from headrace.core.files import is_uri, read_file
from headrace.rows.blocks import Row, TriedRow

CONTENT = "content"
COLUMNS = ("path", "size", "modified")
"""The columns of a row; ``content`` is one more, on request."""
TYPES = {"path": "str", "size": "int", "modified": "datetime"}
Decode = Callable[[bytes], Any]
T = TypeVar("T")

_FILES_AHEAD = 64
_BYTES_AHEAD = 1 << 26
_REMOTE_THREADS = 32
"""Of a store that answers each request after tens of milliseconds."""


class FileRow(dict[str, Any]):
    """The row of a file, whose ``content`` can be asked for: its bytes, or what ``decode`` makes of them."""

    def __init__(self, row: Row, decode: Decode | None = None) -> None:
        super().__init__(row)
        self._decode = decode
        self._coming: Future[Any] | None = None

    def __missing__(self, name: str) -> Any:
        """The content; memory does not hold it any longer, and the file is read again if it is asked for again.

        Raises:
            KeyError: it is another name.
            Exception: the file cannot be read, or decoded.
        """
        if name != CONTENT:
            raise KeyError(name)
        coming, self._coming = self._coming, None
        return self.load() if coming is None else coming.result()

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes read the file themselves."""
        return FileRow, (dict(self), self._decode)

    def get(self, name: str, default: Any = None) -> Any:
        """As a dict's, with the content."""
        return self[CONTENT] if name == CONTENT else super().get(name, default)

    def read_on(self, threads: ThreadPoolExecutor) -> None:
        """Begins to read the content on another thread."""
        self._coming = threads.submit(self.load)

    def load(self) -> Any:
        """Reads the content now."""
        content = read_file(self["path"])
        return content if self._decode is None else self._decode(content)


class Contents(NamedTuple):
    """How the contents of files are read."""

    decode: Decode | None = None
    """Makes the content of the bytes; None: they are it."""
    ahead: bool = True
    """Whether threads read ahead; else each is read, wherever that is, when it is asked for."""

    def of(self, rows: Iterable[tuple[Any, T]]) -> Iterator[tuple[Any, T]]:
        """Rows of files that have their content, each with what goes along; those that cannot be read as they are."""
        files = ((FileRow(row, self.decode) if isinstance(row, dict) else row, its) for row, its in rows)
        return _read_ahead(files) if self.ahead else files


def row_of_file(path: str, size: int, changed: float) -> Row:
    """A file's row: its path or URI, its size in bytes, and when it changed, in seconds since 1970; 0: unknown."""
    return {"path": path, "size": size, "modified": datetime.fromtimestamp(changed, timezone.utc) if changed else None}


def record_of_file(path: str, size: int, changed: float) -> TriedRow:
    """A file's row as a record, whose dead letter has the file itself for its position."""
    return TriedRow(row_of_file(path, size, changed), 0, {"file": path, "row": None})


def is_of_file(position: Any) -> bool:
    """Whether the position of a dead letter is that of a file as a whole."""
    return isinstance(position, dict) and position.get("row", 0) is None


def _read_ahead(rows: Iterable[tuple[Any, T]]) -> Iterator[tuple[Any, T]]:
    """Hands on rows in order, while threads read the files of some that follow: at most 64 files or 64 MiB."""
    waiting: deque[tuple[tuple[Any, T], int]] = deque()
    threads: ThreadPoolExecutor | None = None
    size, is_whole = 0, False
    try:
        for item in rows:
            row, its_size = item[0], 0
            if isinstance(row, FileRow):
                many = _REMOTE_THREADS if is_uri(row["path"]) else max(2, os.cpu_count() or 1)
                threads = threads or ThreadPoolExecutor(many, "headrace-reads-files")
                row.read_on(threads)
                its_size = int(row.get("size") or 0)
            waiting.append((item, its_size))
            size += its_size
            while len(waiting) > _FILES_AHEAD or (size > _BYTES_AHEAD and len(waiting) > 1):
                due, its_size = waiting.popleft()
                size -= its_size
                yield due
        while waiting:
            yield waiting.popleft()[0]
        is_whole = True
    finally:
        if threads is not None:  # what was handed out may still be read
            threads.shutdown(wait=not is_whole, cancel_futures=not is_whole)

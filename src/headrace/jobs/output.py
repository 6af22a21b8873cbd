"""A run's output: parts in a scratch folder, which are joined into files and published once all are complete."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.jobs import storage
from headrace.jobs.compression import compression_of, create_compressed
from headrace.jobs.files import absolute, dead_letters_path, failed_path, location, output_format
from headrace.jobs.parts import BLOCKS, OutputPart, read_manifest
from headrace.jobs.publishing import Move, PublishError, backup_path, put_in_place
from headrace.jobs.text import lines

_LOG = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_CHUNK_ROWS = 10_000


class Output:
    """Two files that appear together at the end: predictions, and dead letters beside them.

    Args:
        path: of the predictions; its extension selects JSON lines or Parquet.
        dead_letters: path of the dead letters, likewise; None: beside the predictions, as JSON lines.
        name: part of the scratch folder's name; unique by default.

    Raises:
        ConfigurationError: an extension is neither, or both paths name the same file.
    """

    columnar = False
    """Whether the parts of predictions are in columns."""
    kept_rows = 0
    """How many finished rows remain in the parts of a run without output; always 0 if the run is not resumable."""
    earlier_rows = 0
    """How many of the finished rows come from earlier runs."""

    def __init__(self, path: str, dead_letters: str | None = None, name: str | None = None) -> None:
        self.format = output_format(path)
        self.path = absolute(path)
        self.dead_letters = absolute(dead_letters) if dead_letters else dead_letters_path(self.path)
        self.failed_letters = failed_path(self.dead_letters)
        """The path for the dead letters of a refused run, so that those of an earlier run remain."""
        self.letters_format = output_format(self.dead_letters, "--dead-letters")
        self._refuse_one_place()
        name = name or uuid.uuid4().hex[:12]
        folder, output_name = storage.split(self.path)
        self.folder = storage.join(folder, f".{output_name}.headrace-{name}")
        """Holds the parts; beside the output, so that a finished file only has to be renamed."""
        letters_folder, letters_name = storage.split(self.dead_letters)
        self._letters_are_elsewhere = letters_folder != folder
        self._letters_scratch = storage.join(letters_folder, f".headrace-{name}.{letters_name}")
        """Beside the dead letters, if they are in another folder than the predictions."""
        self.published = False
        """Whether the files are in place."""
        self.accepted = True
        """Whether the parts were accepted as output."""
        self.keeps_parts = False
        """Whether finished parts or files remain in the folder, since they could not be moved into place."""
        self._moving = threading.Lock()

    def _refuse_one_place(self) -> None:
        place = location(self.path)
        if place == location(self.dead_letters):
            raise ConfigurationError("--output and --dead-letters are the same file; name two.")
        if place == location(self.failed_letters):
            raise ConfigurationError(
                f"--output is {self.path}, where the dead letters go if too many rows fail; choose another --output or "
                "--dead-letters."
            )

    @property
    def manifest(self) -> str:
        """The file that lists the parts of successful bundles."""
        return storage.join(self.folder, "manifest.json")

    def prepare(self) -> None:
        """Creates the scratch folder.

        Raises:
            ConfigurationError: the output cannot be written there.
        """
        for path, option in ((self.path, "--output"), (self.dead_letters, "--dead-letters")):
            if os.path.exists(path) and not os.path.isfile(path):
                kind = "a folder" if os.path.isdir(path) else "a pipe, a socket or a device"
                raise ConfigurationError(f"{option} must be a file, and {path} is {kind}.")
        try:
            self._make_folder()
        except OSError as error:
            raise ConfigurationError(f"cannot write {self.path}: {error}") from error
        if self._letters_are_elsewhere:
            self._prepare_letters()

    def publish(
        self, check: Callable[[], None] = lambda: None, accept: Callable[[list[OutputPart]], bool] | None = None
    ) -> list[OutputPart]:
        """Joins the parts and moves the files into place, dead letters first; returns the parts.

        Args:
            check: called repeatedly until the files are moved; an exception from it stops the work.
            accept: whether the parts are to become the output. If not, only the dead letters are published, as
                ``failed_letters``, and existing files remain. None: always.

        Raises:
            PublishError: the files could not be joined or moved. Finished work remains in the folder.
        """
        try:
            parts = self._parts(check)
            self.accepted = accept is None or accept(parts)
            moves = self._joined(parts, check)
            with self._moving:
                check()
                put_in_place(moves)
                self.published = True
        except PublishError:
            self.keeps_parts = True
            raise
        except Exception as error:
            check()  # raises again if it was what failed
            self.keeps_parts = True
            raise PublishError(self._how_to_join(error)) from error
        return parts

    def clean(self) -> None:
        """Removes the scratch folder unless its files are still needed; waits for files that are being moved."""
        with self._moving:
            if not self.keeps_parts:
                self._remove()

    def _remove(self) -> None:
        try:
            storage.delete_folder(self.folder)
        except FileNotFoundError:  # another process removes it, too
            pass
        except Exception as error:  # the output is complete, or was never touched
            _LOG.warning("cannot remove %s: %s", self.folder, error)
        self._clean_letters()

    def _clean_letters(self) -> None:
        if not self._letters_are_elsewhere:
            return
        for path in (self._letters_scratch, backup_path(self._letters_scratch)):
            try:
                if storage.exists(path):
                    storage.delete(path)
            except Exception as error:
                _LOG.warning("cannot remove %s: %s", path, error)

    def _make_folder(self) -> None:
        storage.make_folder(self.folder)

    def _parts(self, check: Callable[[], None]) -> list[OutputPart]:
        return read_manifest(self.manifest)

    def _prepare_letters(self) -> None:
        """Makes sure, before the run, that the dead letters can be written to their folder."""
        folder = storage.split(self.dead_letters)[0]
        try:
            if not storage.is_remote(folder):
                os.makedirs(folder, exist_ok=True)
            storage.create(self._letters_scratch).close()
        except OSError as error:
            raise ConfigurationError(f"cannot write {self.dead_letters}: {error}") from error

    def _joined(self, parts: list[OutputPart], check: Callable[[], None]) -> list[Move]:
        """Builds the finished files; returns the moves that publish them."""
        bad = self._joined_letters([part.path for part in parts if part.predictions is False], check)
        if not self.accepted:
            return [Move("the dead letters", bad, self.failed_letters)]
        good = self._joined_predictions([part.path for part in parts if part.predictions], check)
        return [Move("the dead letters", bad, self.dead_letters), Move("the predictions", good, self.path)]

    def _how_to_join(self, error: Exception) -> str:
        kind = f"record batches, as Arrow streams (*{BLOCKS})" if self.columnar else "lines of JSON (*.predictions)"
        return (
            f"the rows are done, but their files could not be joined ({type(error).__name__}: {error}). The parts stay "
            f"in {self.folder}: predictions as {kind}, dead letters as lines of JSON (*.letters). Those that "
            "manifest.json names have every row once; join them by hand."
        )

    def _joined_predictions(self, parts: list[str], check: Callable[[], None]) -> str:
        path = self._scratch(self.path)
        if self.columnar:
            return _joined_tables(path, self.format, lambda: self._tables(parts), check)
        return (_joined_as_parquet if self.format == "parquet" else _joined)(path, parts, check)

    def _tables(self, parts: list[str]) -> Iterable[Any]:
        """The rows of columnar parts."""
        from headrace.jobs.block_parts import read_parts  # noqa: PLC0415 - as for Parquet

        return read_parts(parts)

    def _joined_letters(self, parts: list[str], check: Callable[[], None]) -> str:
        path = self._letters_scratch if self._letters_are_elsewhere else self._scratch(self.dead_letters)
        if self.letters_format == "parquet":
            return _joined_as_parquet(path, parts, check, letters=True)
        return _joined(path, parts, check, copy=self._letters_are_elsewhere)

    def _scratch(self, path: str) -> str:
        """The path of a finished file in the folder; its prefix avoids collisions, such as with ``manifest.json``."""
        return storage.join(self.folder, f"joined-{storage.split(path)[1]}")


def _joined(path: str, parts: list[str], check: Callable[[], None], *, copy: bool = False) -> str:
    """Joins the parts into one file; a single part is already that file, unless ``copy`` asks for a copy."""
    if len(parts) == 1 and compression_of(path) is None and not copy:
        return parts[0]
    with create_compressed(path) as file:
        for part in parts:
            check()
            with storage.open_file(part) as source:
                shutil.copyfileobj(source, file, _CHUNK_BYTES)
    return path


def _joined_tables(path: str, file_format: str, tables: Callable[[], Iterable[Any]], check: Callable[[], None]) -> str:
    """Joins columnar tables into one file."""
    from headrace.jobs.block_output import lines_of, write_parquet  # noqa: PLC0415 - as for Parquet

    with (storage.create if file_format == "parquet" else create_compressed)(path) as file:
        if file_format == "parquet":
            write_parquet(file, tables, check)
            return path
        for chunk in lines_of(tables()):
            check()
            file.write(chunk)
    return path


def _joined_as_parquet(path: str, parts: list[str], check: Callable[[], None], *, letters: bool = False) -> str:
    """Joins the parts into a Parquet file; reads them twice, since a column's type depends on all rows.

    The types of dead letters are known in advance; their rows, which may differ in shape, become text.
    """
    from headrace.jobs.parquet import (  # noqa: PLC0415 - only Parquet needs pyarrow
        ColumnTypes,
        letter_types,
        write_table,
    )

    columns = ColumnTypes()
    for rows in _chunks(parts) if not letters else ():
        check()
        columns.see(rows)
    with storage.create(path) as file:
        write_table(file, letter_types() if letters else columns.types, _chunks(parts), check)
    return path


def _chunks(parts: Iterable[str]) -> Iterator[list[dict[str, Any]]]:
    """The rows of the parts, in chunks of bounded memory."""
    for part in parts:
        rows, size = [], 0
        with storage.open_file(part) as file:
            for line in lines(file):
                rows.append(json.loads(line))
                size += len(line)
                if size > _CHUNK_BYTES * 8 or len(rows) == _CHUNK_ROWS:
                    yield rows
                    rows, size = [], 0
        if rows:
            yield rows

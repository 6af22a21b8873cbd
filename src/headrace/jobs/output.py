"""A run's output: parts in a scratch folder, which are joined into files and published once all are complete."""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from headrace.core.errors import ConfigurationError
from headrace.core.files import replacing
from headrace.core.phases import Phase, during
from headrace.jobs import storage
from headrace.jobs.files import Source, absolute, dead_letters_path, delimiter_of, failed_path, location, output_format
from headrace.jobs.job import Inputs, Report
from headrace.jobs.letters import completed
from headrace.jobs.opening import create_compressed
from headrace.jobs.output_batches import batch_as_written
from headrace.jobs.parquet_tables import letter_types, write_parquet
from headrace.jobs.parts import CUT
from headrace.jobs.publishing import Move, PublishError, put_in_place
from headrace.jobs.storage import prefetch
from headrace.jobs.stored_rows import StoredOutput
from headrace.jobs.text_tables import csv_of, lines_of

_ROWS_AT_ONCE = 1 << 16
_LETTERS = "--output or --dead-letters"
_LOG = logging.getLogger(__name__)


class Files(NamedTuple):
    """A file of predictions, and one of dead letters if there are any."""

    path: str
    dead_letters: str
    source: int | None = None
    """The number of the source whose rows they have; None: those of all."""

    @property
    def failed_letters(self) -> str:
        """The path for the dead letters of a refused run, so that those of an earlier run remain."""
        return failed_path(self.dead_letters)


class Output:
    """Files that appear together at the end: predictions, and dead letters beside them if there are any.

    The dead letters of an earlier run go with its predictions.

    Args:
        path: of the predictions; its extension selects JSON lines, CSV or Parquet.
        dead_letters: path of the dead letters, likewise; None: beside the predictions, as JSON lines.
        name: part of the scratch folder's name; unique by default.

    Raises:
        ConfigurationError: an extension is none of these, or both paths name the same file.
    """

    kept_rows = 0
    """How many finished rows remain in the parts of a run without output; always 0 if the run is not resumable."""
    earlier_rows = 0
    """How many of the finished rows come from earlier runs."""
    inputs: Inputs | None = None
    """What a run does with the inputs, if there is an output for each."""
    note: str | None = None
    """What there is to say before the run."""
    published = False
    """Whether the files are in place."""
    accepted = True
    """Whether the parts were accepted as output."""
    keeps_parts = False
    """Whether finished parts or files remain in the folder, since they could not be moved into place."""
    may_have_gaps = False
    """Whether rows may be left out: several workers stopped to read, each at some place."""
    _has_folder = False

    def __init__(self, path: str, dead_letters: str | None = None, name: str | None = None) -> None:
        self._moving = threading.Lock()
        self.path = absolute(path)
        self._name_files(path, dead_letters, name or uuid.uuid4().hex[:12])

    def _name_files(self, path: str, dead_letters: str | None, name: str) -> None:
        self.format = output_format(path)
        self.dead_letters = absolute(dead_letters) if dead_letters else dead_letters_path(self.path)
        output_format(self.dead_letters, "--dead-letters")
        files = Files(self.path, self.dead_letters)
        self.failed_letters = files.failed_letters
        self._files = [files]
        if location(self.path) == location(self.dead_letters):
            raise ConfigurationError("--output and --dead-letters are the same file; name two.")
        if location(self.path) == location(self.failed_letters):
            raise ConfigurationError(
                f"--output is {self.path}, where the dead letters go if too many rows fail; choose another --output or "
                "--dead-letters."
            )
        folder, output_name = storage.split(self.path)
        self.folder = storage.join(folder, f".{output_name}.headrace-{name}")
        """Holds the parts; beside the output, so that a finished file only has to be renamed."""
        beside, letters_name = storage.split(self.dead_letters)
        letters_folder = storage.join(beside, f".{letters_name}.headrace-{name}")
        self._letters_folder = self.folder if beside == folder else letters_folder
        """Holds the finished dead letters, beside them."""

    def sources_written_as(self, kind: str) -> Container[int]:
        """The numbers of the sources whose output has a format."""
        return range(sys.maxsize) if self.format == kind else ()

    def refuse_inputs(self, sources: Sequence[Source]) -> None:
        """Raises ConfigurationError if an input would be overwritten."""
        outputs = {self.path: "--output"} | dict.fromkeys((self.dead_letters, self.failed_letters), _LETTERS)
        names = {storage.split(path)[1] for path in outputs}
        found = [(path, bool(source.files)) for source in sources for path in source.paths]
        paths = [path for path, is_row in found if not is_row or os.path.basename(path) in names]
        inputs = {*map(location, paths), *(os.path.realpath(path) for path in paths if not storage.is_remote(path))}
        inputs -= self._replaced(inputs)
        for path, option in outputs.items():
            if location(path) in inputs:
                raise ConfigurationError(
                    f"{path} is among the inputs and would be overwritten; choose another {option}."
                )

    def _replaced(self, inputs: set[str]) -> set[str]:
        """Those of the inputs that the output is to replace."""
        return set()

    def prepare(self) -> None:
        """Creates the scratch folder.

        Raises:
            ConfigurationError: the output cannot be written there.
        """
        for path, option in ((self.path, "--output"), (self.dead_letters, "--dead-letters")):
            self._refuse_other_kinds(path, option)
        with _writable("--output", self.path):
            self._make_folder()
            self._has_folder = True
        if self._letters_folder != self.folder:
            with _writable("--dead-letters", self.dead_letters):
                if not storage.exists(self._letters_folder):  # that of a run that was killed may be there
                    storage.make_folder(self._letters_folder)
                storage.create(storage.join(self._letters_folder, "writable")).close()

    def _refuse_other_kinds(self, path: str, option: str) -> None:
        if os.path.exists(path) and not os.path.isfile(path):
            kind = "a folder" if os.path.isdir(path) else "a pipe, a socket or a device"
            raise ConfigurationError(f"{option} must be a file, and {path} is {kind}.")

    def _make_folder(self) -> None:
        storage.make_folder(self.folder)

    @during(Phase.WRITING)
    def publish(self, check: Callable[[], None] = lambda: None, threshold: float | None = None) -> Report:
        """Joins the parts and moves the files into place; returns what is in them.

        Args:
            check: called repeatedly until the files are moved; an exception from it stops the work.
            threshold: as a ``Job``'s. If more rows failed, only the dead letters are published, as ``failed_letters``,
                and existing files remain.

        Raises:
            PublishError: the files could not be joined or moved. Finished work remains in the folder.
        """
        try:
            check()
            stored, is_cut = StoredOutput.find(self.folder), storage.exists(storage.join(self.folder, CUT))
            if (gaps := stored.places.gaps()) and not (is_cut or self.may_have_gaps):
                raise RuntimeError(f"rows before {gaps[0]:#x} have no result; this is a bug, please report it")
            report = stored.counted(check)._replace(is_cut=is_cut)
            report = report._replace(refusal=report.why_refused(threshold))
            self.accepted = report.refusal is None
            moves = self._joined(stored, check)
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
            why = f"({type(error).__name__}: {error})"
            raise PublishError(
                f"the rows are done, but their files could not be joined {why}.{self._where_parts_are}"
            ) from error
        return report

    def clean(self) -> None:
        """Removes the scratch folder unless its files are still needed; waits for files that are being moved."""
        with self._moving:
            if self._has_folder and not self.keeps_parts:
                for folder in {self.folder, self._letters_folder}:
                    _remove(folder)

    @property
    def _where_parts_are(self) -> str:
        return (
            f" The parts in {self.folder} have every row, as record batches of Arrow, with its place in the input; "
            "join them by hand."
        )

    def _joined(self, stored: StoredOutput, check: Callable[[], None]) -> list[Move]:
        """Builds the finished files; returns the moves that publish them.

        What an end by force leaves is an earlier output and new letters, or a new output and earlier letters: a file
        of letters is removed last.
        """
        moves = [move for files in self._files for move in self._moves(files, stored.of(files.source), check)]
        return sorted(moves, key=lambda move: move.removes)

    def _moves(self, files: Files, rows: StoredOutput, check: Callable[[], None]) -> list[Move]:
        number = "" if files.source is None else f"{files.source}-"
        folders = self.folder, self._letters_folder, self._letters_folder
        good, bad, old = (  # whose prefix tells them from parts
            storage.join(folder, f"joined-{number}{storage.split(path)[1]}")
            for folder, path in zip(folders, (files.path, files.dead_letters, files.failed_letters), strict=True)
        )
        has_letters = self._has_letters(rows)
        if has_letters:
            write_tables(bad, lambda: self._letters(rows), check, letter_types())
        if not self.accepted:
            return [Move("the dead letters", bad, files.failed_letters)] if has_letters else []
        moves = [
            Move("the dead letters", bad, files.dead_letters, removes=not has_letters),
            Move("the predictions", self._write_predictions(good, rows, check), files.path),
            Move("dead letters", old, files.failed_letters, removes=True),
        ]
        return [move for move in moves if not move.removes or storage.exists(move.destination)]

    def _write_predictions(self, path: str, rows: StoredOutput, check: Callable[[], None]) -> str:
        """Writes a file, or finds one that is written; returns its path."""
        whole = rows.good.whole_file()
        if whole is None:
            write_tables(path, rows.good.tables, check)
        return whole or path

    def _has_letters(self, rows: StoredOutput) -> bool:
        return rows.letters > 0

    def _letters(self, rows: StoredOutput) -> Iterable[Any]:
        """The dead letters; they say where their rows belong in the output if there is one."""
        if not self.accepted:
            return (table for _, table in rows.pieces_of_letters())
        return completed(rows.pieces_of_letters(), rows.good.places.rank, len(rows.good.places))


def write_tables(
    path: str, tables: Callable[[], Iterable[Any]], check: Callable[[], None], types: dict[str, Any] | None = None
) -> None:
    """Writes tables into a file, whose extension tells how."""
    kind = output_format(path)
    if kind == "parquet":
        with storage.create(path) as file:
            write_parquet(file, tables, check, types)
        return
    chunks = csv_of(tables, delimiter_of(path), types) if kind == "csv" else lines_of(tables())
    with create_compressed(path) as file, closing(prefetch(chunks)) as coming:
        for chunk in coming:
            check()
            file.write(chunk)


def write_rows(rows: Any, path: str) -> None:
    """Writes the rows of a ``Diff`` to a local file: JSON lines, CSV or Parquet, by its extension.

    Raises:
        ConfigurationError: another extension, or the file cannot be written.
    """
    output_format(path)  # refuses an ending under the name that the user gave
    batches = rows.combine_chunks().to_batches(_ROWS_AT_ONCE)
    tables = [type(rows).from_batches([batch_as_written(batch)]) for batch in batches]
    try:
        with replacing(path) as part:
            write_tables(part, lambda: tables, lambda: None)
    except OSError as error:
        raise ConfigurationError(f"--output: cannot write {path}: {error.strerror or error}.") from error


def _remove(folder: str) -> None:
    try:
        storage.delete_folder(folder)
    except FileNotFoundError:  # another process removes it, too
        pass
    except Exception as error:  # the output is complete, or was never touched
        _LOG.warning("cannot remove %s: %s", folder, error)


@contextmanager
def _writable(option: str, path: str) -> Iterator[None]:
    """Says of the file that the user named, and not of the scratch file beside it, that it cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(
            f"{option}: cannot write {path}: {reason}; name a place where a file can be made."
        ) from error

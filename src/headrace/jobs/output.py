"""A run's output: parts in a scratch folder, which are joined into files and published once all are complete."""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.jobs import storage
from headrace.jobs.files import Source, absolute, dead_letters_path, delimiter_of, failed_path, location, output_format
from headrace.jobs.flow import prefetch
from headrace.jobs.job import Inputs
from headrace.jobs.letters import OutputPlaces, completed
from headrace.jobs.opening import create_compressed
from headrace.jobs.parquet_tables import letter_types, write_parquet
from headrace.jobs.parts import KINDS, read_manifest
from headrace.jobs.publishing import Move, PublishError, put_in_place
from headrace.jobs.stored_rows import Counts, StoredOutput
from headrace.jobs.text_tables import csv_of, lines_of

_LETTERS = "--output or --dead-letters"
_LOG = logging.getLogger(__name__)


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
    completes = False
    """Whether rows go into an earlier output; those that fail lack there even if the run is refused."""

    def __init__(self, path: str, dead_letters: str | None = None, name: str | None = None) -> None:
        self.path = absolute(path)
        self._name_files(path, dead_letters, name or uuid.uuid4().hex[:12])
        self._has_folder = False
        self.published = False
        """Whether the files are in place."""
        self.accepted = True
        """Whether the parts were accepted as output."""
        self.is_cut = False
        """Whether rows were left out since the first ones all failed."""
        self.keeps_parts = False
        """Whether finished parts or files remain in the folder, since they could not be moved into place."""
        self._moving = threading.Lock()

    def _name_files(self, path: str, dead_letters: str | None, name: str) -> None:
        self.format = output_format(path)
        self.dead_letters = absolute(dead_letters) if dead_letters else dead_letters_path(self.path)
        self.failed_letters = failed_path(self.dead_letters)
        """The path for the dead letters of a refused run, so that those of an earlier run remain."""
        self.letters_format = output_format(self.dead_letters, "--dead-letters")
        self._refuse_one_place()
        folder, output_name = storage.split(self.path)
        self.folder = storage.join(folder, f".{output_name}.headrace-{name}")
        """Holds the parts; beside the output, so that a finished file only has to be renamed."""
        beside, letters_name = storage.split(self.dead_letters)
        self._letters_folder = (
            storage.join(beside, f".{letters_name}.headrace-{name}") if beside != folder else self.folder
        )
        """Holds the finished dead letters, beside them."""

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

    @property
    def csv_sources(self) -> Container[int]:
        """The numbers of the sources whose output is a CSV file."""
        return range(sys.maxsize) if self.format == "csv" else ()

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
                storage.create(self._scratch(self.dead_letters, self._letters_folder)).close()

    def _refuse_other_kinds(self, path: str, option: str) -> None:
        if os.path.exists(path) and not os.path.isfile(path):
            kind = "a folder" if os.path.isdir(path) else "a pipe, a socket or a device"
            raise ConfigurationError(f"{option} must be a file, and {path} is {kind}.")

    def publish(
        self, check: Callable[[], None] = lambda: None, accept: Callable[[Counts], bool] | None = None
    ) -> Counts:
        """Joins the parts and moves the files into place; returns what is in them.

        Args:
            check: called repeatedly until the files are moved; an exception from it stops the work.
            accept: whether the parts are to become the output. If not, only the dead letters are published, as
                ``failed_letters``, and existing files remain. None: always.

        Raises:
            PublishError: the files could not be joined or moved. Finished work remains in the folder.
        """
        try:
            paths, self.is_cut = read_manifest(self.manifest)
            stored = self._stored(paths)
            if (gaps := stored.places.gaps()) and not self.is_cut:
                raise RuntimeError(f"rows before {gaps[0]:#x} have no result; this is a bug, please report it")
            counts = stored.counted(check)
            self.accepted = accept is None or accept(counts)
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
            raise PublishError(self._how_to_join(error)) from error
        return counts

    def clean(self) -> None:
        """Removes the scratch folder unless its files are still needed; waits for files that are being moved."""
        with self._moving:
            if self._has_folder and not self.keeps_parts:
                for folder in {self.folder, self._letters_folder}:
                    _remove(folder)

    def _make_folder(self) -> None:
        storage.make_folder(self.folder)

    def _joined(self, stored: StoredOutput, check: Callable[[], None]) -> list[Move]:
        """Builds the finished files; returns the moves that publish them."""
        letters, old_failed = (
            self._scratch(path, self._letters_folder) for path in (self.dead_letters, self.failed_letters)
        )
        has_letters = stored.letters > 0
        if has_letters:
            self._join(letters, self.letters_format, stored, check, good=False)
        if not self.accepted:
            return [Move("the dead letters", letters, self.failed_letters)]
        good = self._join(self._scratch(self.path, self.folder), self.format, stored, check, good=True)
        bad = Move("the dead letters", letters, self.dead_letters, removes=not has_letters)
        failed = Move("dead letters", old_failed, self.failed_letters, removes=True)
        # What an end by force leaves is an earlier output and new letters, or a new output and earlier letters: a
        # file of letters is removed last.
        moves = sorted([bad, Move("the predictions", good, self.path), failed], key=lambda move: move.removes)
        return [move for move in moves if not move.removes or storage.exists(move.destination)]

    def _how_to_join(self, error: Exception) -> str:
        return (
            f"the rows are done, but their files could not be joined ({type(error).__name__}: {error}). The parts stay "
            f"in {self.folder} as record batches (Arrow streams): predictions (*.{KINDS[True]}) and dead letters "
            f"(*.{KINDS[False]}). Those that manifest.json names have every row once; join them by hand."
        )

    def _stored(self, paths: list[str]) -> StoredOutput:
        """The rows of parts."""
        return StoredOutput.of_parts(paths)

    def _places(self, stored: StoredOutput) -> OutputPlaces:
        """Where rows are in the output."""
        return OutputPlaces(stored.good.places)

    def _join(self, path: str, file_format: str, stored: StoredOutput, check: Callable[[], None], *, good: bool) -> str:
        """Writes the rows of one kind into one file; returns its path."""

        def tables() -> Iterable[Any]:
            found = stored.tables(predictions=good)
            return found if places is None else completed(found, places)

        places = self._places(stored) if (self.accepted or self.completes) and not good else None
        types = None if good else letter_types()
        if file_format == "parquet" and good and (whole := stored.good.whole_file()) is not None:
            return whole
        if file_format == "parquet":
            with storage.create(path) as file:
                write_parquet(file, tables, check, types)
        else:
            chunks = csv_of(tables, delimiter_of(path), types) if file_format == "csv" else lines_of(tables())
            _write_chunks(path, chunks, check)
        return path

    def _scratch(self, path: str, folder: str) -> str:
        """The path of a finished file in a folder; its prefix avoids collisions, such as with ``manifest.json``."""
        return storage.join(folder, f"joined-{storage.split(path)[1]}")


def _write_chunks(path: str, chunks: Iterator[bytes], check: Callable[[], None]) -> None:
    with create_compressed(path) as file, closing(prefetch(chunks)) as coming:
        for chunk in coming:
            check()
            file.write(chunk)


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

"""An output that is a folder: a file for each input. Another run predicts only inputs that are new or have changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from glob import escape
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.core.files import is_folder_name
from headrace.jobs import storage
from headrace.jobs.files import (
    Source,
    absolute,
    dead_letters_path,
    failed_path,
    location,
    name_in_folder,
    output_format,
    stamp,
)
from headrace.jobs.job import Inputs
from headrace.jobs.output import Files, Output
from headrace.jobs.pipes import as_name, is_pipe
from headrace.jobs.publishing import Move, put_in_place
from headrace.jobs.resume import ResumableOutput, changed, digest, digests, read_json
from headrace.jobs.storage import is_remote
from headrace.jobs.stored_rows import StoredOutput

_MANIFEST = ".headrace.json"
_VERSION = 1


class FolderOutput(Output):
    """The outputs of inputs, in a folder of any filesystem with a manifest of what each was made of.

    Dead letters are in another folder, or beside the outputs. ``decisive`` is everything that determines the
    predictions, but for the inputs; values are JSON. Outputs have one format, or each its input's.

    Raises:
        ConfigurationError: the inputs cannot have an output each, or are in the folder.
    """

    def __init__(
        self,
        path: str,
        dead_letters: str | None,
        decisive: Mapping[str, Any],
        sources: Sequence[Source],
        file_format: str | None,
        **more: Any,
    ) -> None:
        self._root, self._letters_root = absolute(path), absolute(dead_letters or path)
        if not is_folder_name(dead_letters or path):
            raise ConfigurationError(
                f"--dead-letters: {dead_letters} is one file, and --output is a folder; name a folder: {dead_letters}/."
            )
        self.refuse_inputs(sources)
        named = [(name_in_folder(source, file_format), source) for source in sources]
        _refuse_twice(named, letters_apart=self._letters_root != self._root)
        self._manifest = _Manifest(self._root, decisive)
        entries = {name: self._manifest.entry_of(source) for name, source in named}
        due = {name: source for name, source in named if not self._manifest.has(name, entries[name])}
        super().__init__(path, dead_letters, **more)
        self._entries = self._in_order({name: entries[name] for name in due})
        self.pending = tuple(due[name] for name in self._entries)
        """The inputs that are new or have changed."""
        others = sorted(self._manifest.outputs.keys() - entries.keys())
        self.inputs = Inputs(len(due), len(named) - len(due), others)
        self.note = self._manifest.note(entries)
        self._files = [
            Files(os.path.join(self.path, name), os.path.join(self.dead_letters, dead_letters_path(name)), number)
            for number, name in enumerate(self._entries)
        ]

    def _in_order(self, entries: dict[str, Any]) -> dict[str, Any]:
        """What is to be written down of the inputs that are due, in the order in which they run."""
        return entries

    def _name_files(self, path: str, dead_letters: str | None, name: str) -> None:
        self.path, self.dead_letters = os.path.join(self._root, ""), os.path.join(self._letters_root, "")
        self.failed_letters = self.dead_letters
        self.folder = os.path.join(self._root, f".headrace-{name}")
        self._letters_folder = os.path.join(self._letters_root, f".headrace-{name}")

    def refuse_inputs(self, sources: Sequence[Source]) -> None:
        """Raises ConfigurationError if an input is among the outputs, or can have none of its own."""
        roots = {self._root, self._letters_root}
        folders = [os.path.join(one if is_remote(one) else os.path.realpath(one), "") for one in roots]
        for source in sources:
            if source.files or is_pipe(source.path):
                what = "with --format files all inputs" if source.files else as_name(source.path)
                raise ConfigurationError(
                    f"--output is a folder, for a file for each input, and {what} cannot have one; name a file."
                )
            paths = {location(source.path), source.path if is_remote(source.path) else os.path.realpath(source.path)}
            for folder in folders:
                if any(path.startswith(folder) for path in paths):
                    raise ConfigurationError(
                        f"{source.path} is an input, and in the folder of the outputs, {folder}: the next run would "
                        "take them for inputs, too; choose another folder."
                    )

    def sources_written_as(self, kind: str) -> Container[int]:
        """The numbers of the sources whose output has a format."""
        return frozenset(n for n, files in enumerate(self._files) if output_format(files.path) == kind)

    def _refuse_other_kinds(self, path: str, option: str) -> None:
        """Folders they may be."""

    def _joined(self, stored: StoredOutput, check: Callable[[], None]) -> list[Move]:
        moves = super()._joined(stored, check)
        for folder in {storage.split(move.destination)[0] for move in moves}:
            if not storage.exists(folder):
                storage.make_folder(folder)
        if not self.accepted:
            return moves
        self._manifest.refuse_changed()
        # Until the last move, the manifest has nothing of outputs that may be replaced by then.
        before, after = (os.path.join(self.folder, name) for name in ("before.json", "after.json"))
        if self._manifest.outputs.keys() & self._entries.keys():
            self._manifest.write(before, without=self._entries)
            put_in_place([Move("the manifest", before, self._manifest.path)])
        self._manifest.write(after, without=self._entries, more=self._entries)
        return [*moves, Move("the manifest", after, self._manifest.path)]


class LocalFolder(FolderOutput, ResumableOutput):
    """A local folder: runs use it one after the other; if it ``keeps`` rows, the next continues what one has begun."""

    def __init__(
        self, path: str, dead_letters: str | None, decisive: Mapping[str, Any], *inputs: Any, keeps: bool
    ) -> None:
        self._refuse_remote("--resume", path, dead_letters)
        self._was_there = os.path.isdir(absolute(path))
        more: dict[str, Any] = {"job": decisive, "kind": "folder", "keeps": keeps}
        super().__init__(path, dead_letters, decisive, *inputs, **more)

    def _in_order(self, entries: dict[str, Any]) -> dict[str, Any]:
        begun = self._read_begun()
        self._is_published = bool(begun) and all(self._manifest.has(name, entry) for name, entry in begun.items())
        """Whether an earlier run was killed behind its last move."""
        self._begun = {} if self._is_published else begun
        """What an earlier run, whose rows are kept, was at work on, in its order."""
        for name, entry in self._begun.items():
            if _file_of(entries.get(name, {})) != _file_of(entry):
                self._fingerprint[f"the file {entry['input']}"] = "changed"
        return {name: entries[name] for name in [*filter(entries.__contains__, self._begun), *entries]}

    def _make_folder(self) -> None:
        super()._make_folder()
        if self._read_begun() not in ({}, self._begun):  # which was read before this run had the folder
            self.clean()
            raise ConfigurationError(f"another run was at work in {self._root} until now; run the same command again.")
        self._write_json(self._begun_path, self._entries)

    def _start_or_resume(self) -> None:
        if self._is_published:
            with suppress(FileNotFoundError):
                os.remove(self._job_path)
        super()._start_or_resume()

    def _read_begun(self) -> dict[str, Any]:
        return dict(read_json(self._begun_path) or {}) if self._keeps else {}

    @property
    def _begun_path(self) -> str:
        return os.path.join(self.folder, "inputs.json")

    def clean(self) -> None:
        """As of any output that can be resumed; a folder that nothing was written into goes, too."""
        super().clean()
        if not self._was_there:
            with suppress(OSError):  # it holds something
                os.rmdir(self._root)


class _Manifest:
    """Of each output in a folder: of which file it is, as that was then, and of which job."""

    def __init__(self, folder: str, decisive: Mapping[str, Any]) -> None:
        self._folder = folder
        self.path = os.path.join(folder, _MANIFEST)
        self._now = digests({"the version": _VERSION, **decisive})
        try:
            self._found = self._read()
            self._then: dict[str, str] = self._found["job"]
            self.outputs: dict[str, Any] = self._found["outputs"]
            """What was written by earlier runs, by its path below the folder."""
            is_listed = bool(self.outputs) and is_remote(folder)  # to ask for each would take a request
            listed = storage.match(os.path.join(escape(folder), "**")) if is_listed else ()
            self._listed = {file.path for file in listed} if is_listed else None
        except OSError as error:
            raise ConfigurationError(f"--output: cannot look into {folder}: {error}.") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigurationError(
                f"--output: cannot read {self.path}, which tells what the outputs beside it are of: {error}; remove it "
                "to have all inputs predicted again."
            ) from error

    def _read(self) -> Any:
        return read_json(self.path) or {"job": {}, "outputs": {}}

    def refuse_changed(self) -> None:
        """Raises RuntimeError if another run has written it meanwhile, as it may where files cannot be locked."""
        if self._read() != self._found:
            raise RuntimeError(f"another run has written into {self._folder} meanwhile")

    def entry_of(self, source: Source) -> dict[str, Any]:
        """What an output of a file, as it is now, is written down as."""
        try:
            size, modified = stamp(source.path)
        except OSError as error:
            raise ConfigurationError(f"cannot read {source.path}: {error}.") from error
        read_as = digest([source.format, source.delimiter, source.keys])
        facts = {"input": source.path, "bytes": size, "modified": modified}
        return {**facts, "read as": read_as, "job": digest(self._now)}

    def has(self, name: str, entry: Mapping[str, Any]) -> bool:
        """Whether the output is there, of the same file and the same job."""
        path = os.path.join(self._folder, name)
        is_there = os.path.isfile(path) if self._listed is None else path in self._listed
        return self.outputs.get(name) == entry and is_there

    def note(self, entries: Mapping[str, Any]) -> str | None:
        """Says which values are not those of the outputs that are there, if any."""
        is_other = any(self.outputs[name]["job"] != digest(self._now) for name in entries if name in self.outputs)
        names = changed(self._then, self._now) if is_other else []
        if not names:
            return None
        return (
            f"{', '.join(names)}: changed since the outputs in {self._folder} were written, so all are predicted again."
        )

    def write(self, path: str, *, without: Iterable[str], more: Mapping[str, Any] | None = None) -> None:
        """Writes a successor: without some outputs, and with others."""
        outputs = {name: entry for name, entry in self.outputs.items() if name not in without} | dict(more or {})
        with storage.create(path) as file:
            file.write(json.dumps({"job": self._now, "outputs": outputs}, indent=1).encode())


def _file_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of an input, but for the job."""
    return {name: value for name, value in entry.items() if name != "job"}


def _refuse_twice(named: Iterable[tuple[str, Source]], *, letters_apart: bool) -> None:
    taken: dict[tuple[str, bool], Source] = {}
    for name, source in named:
        letters = dead_letters_path(name)
        for place in ((name, False), (letters, letters_apart), (failed_path(letters), letters_apart)):
            if (other := taken.setdefault(place, source)) is not source:
                raise ConfigurationError(
                    f"{other.path} and {source.path} would both have {place[0]} in the folder; run them into two."
                )

"""An output whose parts survive a run that fails, is interrupted or is killed; the next run continues from them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from headrace.core.errors import ConfigurationError, UnsupportedError
from headrace.core.files import is_at
from headrace.jobs import storage
from headrace.jobs.files import absolute, location
from headrace.jobs.job import Report
from headrace.jobs.output import Output
from headrace.jobs.parts import CUT
from headrace.jobs.publishing import sync
from headrace.jobs.storage import is_remote
from headrace.jobs.stored_rows import StoredOutput

try:
    import fcntl
except ImportError as error:  # Windows
    raise UnsupportedError(
        "running over files on this system",
        "it needs the file locks of Unix: use Linux, macOS or WSL, or headrace.predict over rows that you read",
    ) from error

_VERSION = 4
_LOCK = "lock"


class ResumableOutput(Output):
    """An output whose scratch folder has a fixed name for the next run to find; one run at a time may use it.

    Args:
        path, dead_letters: as of ``Output``, but local.
        job: everything that determines the predictions, by the user's name for it; values are JSON.
        kind: part of the folder's name.
        keeps: whether the next run continues.

    Raises:
        ConfigurationError: a path is not a valid output or not local. ``prepare`` also raises it if another run uses
            the folder, or its rows belong to another job.
    """

    def __init__(
        self, path: str, dead_letters: str | None, job: Mapping[str, Any], *, kind: str = "resume", keeps: bool = True
    ) -> None:
        self._refuse_remote("--resume", path, dead_letters)
        place = os.fsencode(location(absolute(path)))
        super().__init__(path, dead_letters, f"{kind}-{hashlib.sha256(place).hexdigest()[:8]}")
        self._keeps = keeps
        self._fingerprint = {"the version": _VERSION, **job}
        self._lock: BinaryIO | None = None
        self._is_over = False

    @staticmethod
    def _refuse_remote(what: str, path: str, dead_letters: str | None) -> None:
        for where, option in ((path, "--output"), (dead_letters or "", "--dead-letters")):
            if is_remote(absolute(where)):
                raise ConfigurationError(
                    f"{what} works in local folders only, and {option} is {where}; write local files and copy them."
                )

    def publish(self, check: Callable[[], None] = lambda: None, threshold: float | None = None) -> Report:
        """Publishes like ``Output.publish``; afterwards the parts are disposable, unless predictions were refused."""
        report = super().publish(check, threshold)
        self._is_over = self.accepted or not report.predictions
        return report

    def clean(self) -> None:
        """Releases the folder; removes it if it is not needed any more or holds no durable row."""
        with self._moving:
            if self._lock is None:
                return
            self.kept_rows = len(StoredOutput.find(self.folder).places) if self._keeps and not self._is_over else 0
            if not self.kept_rows and (self._keeps or not self.keeps_parts):
                with suppress(FileNotFoundError):
                    os.remove(self._job_path)  # first: without it, leftovers of a kill here are void
                shutil.rmtree(self.folder, ignore_errors=True)
            if not self.keeps_parts and self._letters_folder != self.folder:
                shutil.rmtree(self._letters_folder, ignore_errors=True)
            self._lock.close()
            self._lock = None

    @property
    def _job_path(self) -> str:
        return os.path.join(self.folder, "job.json")

    def _make_folder(self) -> None:
        self._lock = _locked(self.folder)
        try:
            self._start_or_resume()
        except BaseException:
            self.clean()
            raise

    def _start_or_resume(self) -> None:
        then = read_json(self._job_path)  # None: no earlier run, or its folder was being removed
        with suppress(FileNotFoundError):
            os.remove(os.path.join(self.folder, CUT))  # this run tries the others
        self.earlier_rows = len(StoredOutput.find(self.folder).places) if then is not None and self._keeps else 0
        if not self.earlier_rows:
            for name in os.listdir(self.folder):
                if name != _LOCK:
                    os.remove(os.path.join(self.folder, name))
            self._write_json(self._job_path, digests(self._fingerprint))
        elif names := changed(then, digests(self._fingerprint)):
            raise ConfigurationError(
                f"{self.earlier_rows:,} rows of an earlier run are kept for {self.path}, but these have changed since: "
                f"{', '.join(names)}. Put them back, choose another --output, or remove {self.folder} to start over."
            )

    def _write_json(self, path: str, value: Any) -> None:
        """Writes a file of the folder, whole or not at all."""
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)
        sync(self.folder)

    _where_parts_are = ""


def read_json(path: str) -> Any:
    """What a file of JSON holds; None if there is none."""
    with suppress(FileNotFoundError):  # it may go in between
        if storage.exists(path):
            with storage.open_file(path) as file:
                return json.load(file)
    return None


def digests(values: Mapping[str, Any]) -> dict[str, str]:
    """Digests by which values can be compared: some of them may be secrets."""
    return {name: digest(value) for name, value in values.items()}


def digest(value: Any) -> str:
    """A digest of a value of JSON."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]


def changed(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of values that are not what they were."""
    return [name for name in {**then, **now} if then.get(name) != now.get(name)]


def _locked(folder: str) -> BinaryIO:
    """Creates and locks a folder until this process ends or closes the returned file."""
    path = os.path.join(folder, _LOCK)
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            file = open(path, "a+b")  # noqa: SIM115 - it stays open
        except FileNotFoundError:  # the run that used the folder has just removed it
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                process = file.read().decode() or "unknown"
            raise ConfigurationError(
                f"another run (process {process}) is at work in {folder}; wait for its end, or choose another --output."
            ) from None
        # Locked, but the folder may have been removed and created again in between: then lock the new file.
        if is_at(file.fileno(), path):
            with suppress(OSError):  # the process id is only for messages
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), str(os.getpid()).encode())
            return file
        file.close()

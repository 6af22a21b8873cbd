"""What the processes of a machine have spent of one budget, in a file of the runtime directory."""

from __future__ import annotations

import errno
import os
import struct

from headrace.core.budget import Spent
from headrace.machine import shared_file
from headrace.machine.shared_file import BUDGET, OWN, SharedFile, path_of, sweep

ROWS = 255
"""How many processes may count together at a time."""
_ROW = struct.Struct(f"{len(Spent._fields)}d")
_FLAG = struct.Struct("d")
_LAYOUT = f"{_ROW.format} {ROWS}"
_SIZE = _ROW.size * (ROWS + 1)


class BudgetFile(SharedFile):
    """A shared file with a flag, that the budget is spent, and a row for each process, which alone writes it.

    A process locks a byte for its row. When it ends, however that is, the next one that comes takes the row, and adds
    to what is there: nothing that was spent is forgotten for as long as the file is there.

    Args:
        path: of the file; made if it is missing.

    Raises:
        OSError: it cannot be made or read, or too many processes use it.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, _SIZE)
        try:
            self._offset = _ROW.size * self._free_row()
            self._row = Spent(*_ROW.unpack(self._read(_ROW.size, self._offset)))
        except OSError:
            self.close()
            raise

    def add(self, spent: Spent) -> None:
        """Adds to what this process has spent; call it from one thread at a time."""
        self._row = self._row.plus(spent)
        os.pwrite(self.file, _ROW.pack(*self._row), self._offset)

    def total(self) -> Spent:
        """What all processes have spent."""
        rows = _ROW.iter_unpack(self._read(_SIZE - _ROW.size, _ROW.size))
        return Spent(*map(sum, zip(*rows, strict=True)))

    def mark_spent(self) -> None:
        """Tells all that the budget is spent."""
        os.pwrite(self.file, _FLAG.pack(1.0), 0)

    @property
    def is_spent(self) -> bool:
        """Whether a process has said so."""
        return _FLAG.unpack(self._read(_FLAG.size, 0)) != (0.0,)

    def _free_row(self) -> int:
        for row in range(1, ROWS + 1):
            if self.lock(OWN + row):
                return row
        raise OSError(errno.EUSERS, f"{ROWS} processes spend this budget already")

    def _read(self, size: int, offset: int) -> bytes:
        found = os.pread(self.file, size, offset)
        if len(found) < size:
            raise OSError(errno.EIO, "the file of the budget is shorter than it was")
        return found


def open_budget_file(name: str) -> BudgetFile:
    """This process's use of the file of the named budget; end it with ``close_budget_file``.

    Raises:
        OSError: it cannot be used.
        ConfigurationError: the runtime directory cannot be used.
    """
    path = path_of(BUDGET, _LAYOUT, name)
    with shared_file.FILES.lock:
        sweep(but=path)
        file = shared_file.FILES.open(path, lambda: BudgetFile(path))
    assert isinstance(file, BudgetFile)
    return file


def close_budget_file(file: BudgetFile) -> None:
    """Ends a use of the file."""
    files = shared_file.FILES
    with files.lock:
        if file in files.values() and files.close(file.path) is not None:
            file.close()

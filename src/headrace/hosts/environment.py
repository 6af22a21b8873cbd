"""What a process takes over from the one that it works for: where modules are found, the folder, the environment."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ProcessEnvironment:
    """Of a process."""

    executable: str
    """Its Python."""
    path: list[str]
    """``sys.path``."""
    directory: str
    variables: dict[str, str]
    log_level: int
    """The root logger's."""
    threads: int | None = None
    """How many each framework may compute with; None: as many as it likes."""

    @classmethod
    def here(cls) -> ProcessEnvironment:
        """This process's."""
        return cls(
            sys.executable, list(sys.path), _directory(), dict(os.environ), logging.getLogger().getEffectiveLevel()
        )

    @property
    def python_path(self) -> str:
        """With which a new process finds this package, wherever the path has it."""
        path = [os.path.join(self.directory, entry) for entry in self.path if isinstance(entry, str)]
        return os.pathsep.join(path)

    def take(self) -> None:
        """Makes them this process's, which was started with this environment but for a ``PYTHONPATH`` of its own."""
        sys.path[:] = self.path
        own = self.variables.get("PYTHONPATH")
        if own is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = own
        with contextlib.suppress(OSError):  # it has been removed
            os.chdir(self.directory)

    def with_threads(self, count: int) -> ProcessEnvironment:
        """The same, with so many threads for each pool of native threads, unless the environment says how many."""
        limited = {**dict.fromkeys(_POOLS, str(count)), **self.variables}
        return replace(self, variables=limited, threads=None if _POOLS[0] in self.variables else count)


_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""What libraries of numbers read as they are loaded."""


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return os.sep

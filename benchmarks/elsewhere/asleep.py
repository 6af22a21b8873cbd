"""Models that sleep, so that it is known what they take: for ``headrace run --handler asleep:...``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asking import ask

import headrace
from headrace.models.admission import MemoryBudget
from headrace.models.memory import resident_bytes


class Asleep(headrace.ModelHandler[Any, int, bytearray]):
    """Sleeps for a time that grows with the batch.

    Args:
        fixed: seconds for a batch.
        per_row: seconds more for each row.
        load_seconds: seconds to load it.
        log: a file that gets a line when a load begins and when a batch ends, with the time.
        megabytes: of the model.
        batch_size: of all batches; 0: it is found.
    """

    def __init__(
        self,
        fixed: float,
        per_row: float,
        load_seconds: float,
        log: str,
        megabytes: int = 0,
        batch_size: int = 0,
    ) -> None:
        super().__init__(min_batch_size=batch_size or 1, max_batch_size=batch_size or 10_000)
        self._fixed, self._per_row, self._load_seconds = fixed, per_row, load_seconds
        self._log, self._megabytes = log, megabytes

    def load_model(self) -> bytearray:
        """Its weights, of which each page is in memory."""
        self._note("load")
        until = time.monotonic() + self._load_seconds
        weights = bytearray(b"1") * (self._megabytes * 10**6)
        time.sleep(max(0.0, until - time.monotonic()))
        return weights

    def run_inference(
        self, batch: Sequence[Any], model: bytearray, inference_args: dict[str, Any] | None = None
    ) -> list[int]:
        """The number of the row in its batch."""
        time.sleep(self._fixed + self._per_row * len(batch))
        self._note("batch")
        return list(range(len(batch)))

    def _note(self, what: str) -> None:
        with Path(self._log).open("a") as file:
            file.write(f"{what} {time.monotonic()}\n")


class ByKey(headrace.KeyedModelHandler[str, Any, int, bytearray]):
    """Models that sleep, m0, m1 and so on, with room for some of them.

    Args:
        models: how many.
        room_megabytes: what worker processes may use together, beyond what they begin with: a container's limit.
        folder: in which each of them notes what it begins with.
        options: those of each ``Asleep``.
    """

    def __init__(self, models: int, room_megabytes: int, folder: str, **options: Any) -> None:
        super().__init__([headrace.KeyModelMapping([f"m{number}"], Asleep(**options)) for number in range(models)])
        self._room, self._folder = room_megabytes * 10**6, Path(folder)

    def set_environment_vars(self) -> None:
        """Before anything is loaded: has the process find itself in such a container."""
        super().set_environment_vars()
        (self._folder / str(os.getpid())).write_text(str(resident_bytes()))
        MemoryBudget.__init__.__defaults__ = (self._available, lambda: self._room, resident_bytes)

    def _available(self) -> int:
        return self._room - sum(_growth(path.name, int(path.read_text() or 0)) for path in self._folder.iterdir())


def _growth(process: str, before: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except FileNotFoundError:  # it has ended
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") - before


class Remote(headrace.RemoteModelHandler[Any, int, threading.local]):
    """Asks the quota server on threads."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    def create_client(self) -> threading.local:
        """Of each thread its connection."""
        return threading.local()

    def request(self, batch: Sequence[Any], model: threading.local, inference_args: Any = None) -> list[int]:
        """Twice what the rows say."""
        return ask(model, self._port, [int(row) for row in batch])

    def batch_elements_kwargs(self) -> dict[str, int]:
        """A request has one row."""
        return {"max_batch_size": 1}

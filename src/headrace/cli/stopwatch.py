"""Where the seconds of a command went, from the start of its process."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

_IMPORTED = time.monotonic()
_CPU_BEFORE = time.process_time()
_PLAUSIBLE_SECONDS = 10.0
_START_FIELD = 19
"""Of ``fields_of``: when the process started, in ticks since the machine did."""


class Seconds(NamedTuple):
    """What a run's time went to; the phases follow one another."""

    imports: float
    """From the start of the process until the model is asked for: Python, imports, looking at the input."""
    loading: float
    """Loading the model."""
    rows: float
    """Reading, predicting and encoding rows."""
    writing: float
    """Joining the parts into files, and moving those into place."""

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)

    def text(self) -> str:
        """All phases in one line."""
        imports, loading, rows, writing = self
        return f"{imports:.2f} start and imports, {loading:.2f} loading, {rows:.2f} rows, {writing:.2f} writing"


def phases(started: float, begun: float, loading: float, writing: float) -> Seconds:
    """What the time until now went to.

    A model that loads while rows are read, or in several processes, counts within the run.

    Args:
        started: when the command did, on the clock of ``time.monotonic``.
        begun: when its run did.
        loading: seconds of loading models, added up.
        writing: seconds of writing the files at the end.
    """
    running = time.monotonic() - begun - writing
    loading = min(loading, running)
    return Seconds(begun - started, loading, running - loading, writing)


def process_start() -> float:
    """When this process started, on the clock of ``time.monotonic``.

    Linux knows. Elsewhere the CPU time that the process had used when this module was imported stands for it, as it
    does where Linux's answer is not meant: a shell that became this process (``exec``) may have done other things
    before.
    """
    age = _age()
    seconds = _CPU_BEFORE if age is None else age - (time.monotonic() - _IMPORTED)
    if not _CPU_BEFORE <= seconds <= _CPU_BEFORE + _PLAUSIBLE_SECONDS:
        seconds = _CPU_BEFORE
    return _IMPORTED - seconds


def _age() -> float | None:
    """Seconds since this process was started; None where only other means would tell."""
    from headrace.hosts.system import fields_of  # noqa: PLC0415 - not every system has what this module needs

    fields = fields_of("self")
    if len(fields) < _START_FIELD + 1 or not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")

"""The policy of ``placement="auto"``. Pure: the caller measures the machine."""

from __future__ import annotations

from typing import NamedTuple

from headrace.models.admission import format_bytes


class Choice(NamedTuple):
    """Where a model should live, and why."""

    shares: bool
    """Whether the machine's processes share one copy; if not, each has its own."""
    nbytes: int
    """Bytes of one copy."""
    processes: int
    free: int
    """Bytes available for models and everything else."""

    @property
    def placement(self) -> str:
        """The value of ``placement`` that has this effect."""
        return "machine" if self.shares else "process"

    @property
    def why(self) -> str:
        """The figures behind the choice."""
        return (
            f"{format_bytes(self.nbytes)} for each of {self.processes} processes, one for each core, of "
            f"{format_bytes(self.free)} that "
            "are free for models and everything else"
        )


def choose(nbytes: int, processes: int, free: int) -> Choice:
    """Shares one copy if a copy in each process would take more than half of the memory.

    Args:
        nbytes: of one copy.
        processes: how many may run at a time.
        free: bytes available, including those of the copy that is already loaded.
    """
    return Choice(nbytes * processes > free / 2, nbytes, processes, free)

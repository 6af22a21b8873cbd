"""What ``placement="auto"`` chooses: a policy, without a look at the machine."""

from __future__ import annotations

from typing import NamedTuple

from headrace.models.admission import size


class Choice(NamedTuple):
    """Where a model shall live, and why."""

    shares: bool
    """Whether the machine has one copy for all worker processes; else each has its own."""
    nbytes: int
    """Of one copy."""
    processes: int
    free: int
    """Bytes of memory that there are for models and everything else."""

    @property
    def placement(self) -> str:
        """As users write it."""
        return "machine" if self.shares else "process"

    @property
    def why(self) -> str:
        """The figures."""
        return (
            f"{size(self.nbytes)} for each of {self.processes} processes, one for each core, of {size(self.free)} that "
            "are free for models and everything else"
        )


def choose(nbytes: int, processes: int, free: int) -> Choice:
    """The machine has one copy if a copy for each process would leave less than half of the memory to all else.

    Args:
        nbytes: of one copy.
        processes: that may run at a time.
        free: bytes that are available, those of the copy that is loaded already included.
    """
    return Choice(nbytes * processes > free / 2, nbytes, processes, free)

"""What a person has to know about a file that was moved over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One remark about a place in a file."""

    line: int
    """Counted from 1, in a notebook in the cell; 0: the whole file."""
    column: int
    """Counted from 1; 0: the whole line."""
    message: str
    """What is there, and what to do about it."""
    needs_person: bool = True
    """Whether something is left to do; else the code runs as it is."""
    if_beam_stays: bool = False
    """Whether this matters only if some handler of Beam's is left in the files that are moved together."""
    cell: int = 0
    """The code cell of a notebook, counted from 1; 0: this is about another file."""

    @property
    def place(self) -> str:
        """What follows the file's name."""
        if self.cell:
            return f": code cell {self.cell}" + (f", line {self.line}" if self.line else "")
        return "".join(f":{number}" for number in (self.line, self.column) if number)

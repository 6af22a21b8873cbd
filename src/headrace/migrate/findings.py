"""What a person has to know about a file that was moved over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One remark about a place in a file."""

    line: int
    """Counted from 1."""
    column: int
    """Counted from 1; 0: the whole line."""
    message: str
    """What is there, and what to do about it."""
    needs_person: bool = True
    """Whether something is left to do; else the code runs as it is."""
    if_beam_stays: bool = False
    """Whether this matters only if some handler of Beam's is left in the files that are moved together."""

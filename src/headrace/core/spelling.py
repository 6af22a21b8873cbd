"""The name that a mistyped one was most likely meant to be."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterable

_LIKE_FILES = 0.75
"""Extensions make names alike that are not."""


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The one of the known names that is spelt most like ``name``, whatever its case; None if none is like it.

    Args:
        name: mistyped.
        known: names that exist.
        likeness: how much of both has to be the same, from 0 to 1.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only where something is wrong

    by_lower = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), by_lower, 1, likeness)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """The end of a sentence about a name that does not exist: a question if another is like it, else a full stop."""
    found = nearest(name, known, likeness)
    return "." if found is None else f"; did you mean {found!r}?"


def type_option(column: str, kind: str) -> str:
    """The option, as a shell takes it, that gives a column of CSV files a type."""
    name = glob.escape(column).replace(",", "?") if "," in column else column
    return f"--types {shlex.quote(f'{name}={kind}')}"


def no_file(path: str) -> str:
    """The sentence about a local file that does not exist, with the name of one in its folder that is spelt like it."""
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or os.curdir):
        return f"there is no file {path!r}, nor a folder {folder!r}."
    try:
        found = nearest(name, os.listdir(folder or os.curdir), _LIKE_FILES)
    except OSError:  # a folder that may not be listed
        found = None
    return f"there is no file {path!r}" + (f"; did you mean {os.path.join(folder, found)!r}?" if found else ".")

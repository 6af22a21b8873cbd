"""Which columns ``--columns``, ``--keep`` and ``--text-columns`` mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from headrace.core.errors import ConfigurationError


def choose(option: str, asked: Iterable[str] | None, columns: Sequence[str]) -> tuple[str, ...] | None:
    """The columns that names and globs mean: names in the order given, those of a glob in the order of ``columns``.

    Args:
        option: for messages.
        asked: each a list separated by commas; None: nothing was asked for.
        columns: that there are; empty where there are no rows to tell, and then names are believed.

    Returns:
        Each column once; None if nothing was asked for.

    Raises:
        ConfigurationError: a name or glob means none of the columns.
    """
    if asked is None:
        return None
    chosen: dict[str, None] = {}
    for name in (name.strip() for given in asked for name in given.split(",")):
        if name:
            chosen.update(dict.fromkeys(_meant(option, name, columns)))
    return tuple(chosen)


def _meant(option: str, name: str, columns: Sequence[str]) -> Sequence[str]:
    if name in columns or not columns:
        return [name]
    found = [column for column in columns if fnmatchcase(column, name)]
    if not found:
        raise ConfigurationError(f"{option}: there is no column {name!r}; the columns are {', '.join(columns)}.")
    return found

"""Which columns ``--columns``, ``--keep`` and other options mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

from headrace.core.errors import ConfigurationError
from headrace.core.spelling import nearest

_MOST_LISTED = 20
_NOT_OF_INPUT = re.compile("Connect|Timeout|HostDied|Status|RateLimit|Permission|Auth|PredictionCount|Memory")
"""In the names of errors that no choice of columns changes."""
_AFTER_THE_MODEL = ("postprocessing", "writing")


def choose(option: str, asked: Iterable[str] | None, columns: Sequence[str]) -> tuple[str, ...] | None:
    """The columns that names and globs mean: names in the order given, those of a glob in the order of ``columns``.

    Args:
        option: for messages.
        asked: each a list separated by commas; None: nothing was asked for, and nothing is returned.
        columns: of the input; empty if it has no rows, and then any name is accepted.

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


def one_of(option: str, asked: str | None, columns: Sequence[str]) -> str | None:
    """The one column that a name or glob means; None if nothing was asked for."""
    chosen = choose(option, None if asked is None else [asked], columns)
    if chosen is not None and len(chosen) != 1:
        raise ConfigurationError(f"{option} takes one column, not {asked!r}.")
    return chosen[0] if chosen else None


def listed(columns: Sequence[str], separator: str = ", ") -> str:
    """The names of columns, the first of many."""
    more = len(columns) - _MOST_LISTED
    return separator.join(columns[:_MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def why_unexpected(columns: Sequence[str]) -> str:
    """A sentence about what may be wrong with a file whose columns are unexpected; empty if nothing looks wrong."""
    if len(columns) == 1:
        found = next((mark for mark in ";\t|" if mark in columns[0]), None)
        option = "$'\\t'" if found == "\t" else f"'{found}'"
        cure = f" The file has one column only; if its fields are separated otherwise, add --delimiter {option}."
        return cure if found else ""
    if all(re.fullmatch(r"[-+]?\d*\.?\d+", name) for name in columns):
        return " These are numbers: the first line of a CSV file has to name its columns."
    return ""


def about_failures(failures: Collection[tuple[str, str]], columns: Sequence[str]) -> str:
    """What is most likely wrong when every row failed, by stages and types of errors; empty if not the input."""
    if all(stage == "reading" for stage, _ in failures):
        return (
            " No row could be read: say with --format and --delimiter what the files are, or correct the lines in the "
            "dead letters."
        )
    if not columns or all(stage in _AFTER_THE_MODEL or _NOT_OF_INPUT.search(error) for stage, error in failures):
        return ""
    which = f"the {'column' if len(columns) == 1 else f'{len(columns):,} columns'} {listed(columns)}"
    return f" The model was given {which}; if it needs others, name them with --columns.{why_unexpected(columns)}"


def _meant(option: str, name: str, columns: Sequence[str]) -> Sequence[str]:
    if name in columns or not columns:
        return [name]
    found = [column for column in columns if fnmatchcase(column, name)]
    if not found:
        meant = nearest(name, columns)
        question = f"; did you mean {meant!r}? The columns" if meant else "; the columns"
        raise ConfigurationError(
            f"{option}: there is no column {name!r}{question} are {listed(columns)}.{why_unexpected(columns)}"
        )
    return found

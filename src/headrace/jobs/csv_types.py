"""The types of CSV columns: decided once, from the first rows, or set by the user. A cell must fit its column's type.

A cell fits only if nothing of it would be lost: ``00501``, ``1E5`` and ``+4930`` are codes, not numbers. An empty cell
without quotes is null, and quotes that a cell does not need say that it is text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from itertools import chain
from typing import Any, NamedTuple

from headrace.core.spelling import type_option
from headrace.jobs.json_blocks import strict_json

TEXT = "str"
NESTED = "json"
NUMERIC = ("int", "float", "bool")
"""The types that a matrix of numbers takes."""
EXACT = 2**53
"""The first whole number behind which a float has not all others."""
TRUE, FALSE = ("True", "TRUE", "true"), ("False", "FALSE", "false")
"""How booleans are written."""
_GUESSED = ("bool", "int", "float")
"""What a column of text may turn out to be, in the order in which it is tried."""
_CODE = re.compile(r"[+-]?0[0-9]|[0-9]+E[0-9]|\+[0-9]+\Z")
"""The beginning of digits that are no number; a telephone number."""
_NEEDS_QUOTES = re.compile(r'[,;\t|"\r\n]')
_SHOWN = 80
_WHOLE = r"[+-]?(0|[1-9][0-9]*)"
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"


class Quoted(str):
    """A field of a sample that is in quotes."""

    __slots__ = ()


class CellType(NamedTuple):
    """A type that the cells of a column may have."""

    pattern: re.Pattern[str]
    """Of the cells that fit, without the white space around them."""
    value: Callable[[str], Any]
    """The value of a cell with that pattern; raises ValueError if it is not exact, or no such day exists."""


def _exact_float(text: str) -> float:
    value = float(text)
    if math.isinf(value) and text[-1].isdigit():
        raise ValueError("a float cannot be so large")
    if abs(value) >= EXACT and text.lstrip("+-").isdigit() and int(text) != value:
        raise ValueError("a float cannot hold all of its digits")
    return value


def _moment(text: str) -> datetime:
    head, dot, rest = text.replace("Z", "+00:00").partition(".")
    digits = re.match("[0-9]*", rest)
    if dot and digits:  # Python 3.10 takes three or six
        rest = digits[0].ljust(6, "0") + rest[digits.end() :]
    return datetime.fromisoformat(head + dot + rest)


CELL_TYPES: Mapping[str, CellType] = {
    TEXT: CellType(re.compile(".*", re.DOTALL), str),
    "int": CellType(re.compile("-?(0|[1-9][0-9]*)"), int),
    "float": CellType(
        re.compile(
            rf"{_WHOLE}(e[+-]?[0-9]+|E[+-][0-9]+)?|({_WHOLE}\.[0-9]*|[+-]?\.[0-9]+)([eE][+-]?[0-9]+)?"
            "|[+-]?(?i:nan|inf|infinity)"
        ),
        _exact_float,
    ),
    "bool": CellType(re.compile("|".join(TRUE + FALSE)), TRUE.__contains__),
    "date": CellType(re.compile(_DAY), date.fromisoformat),
    "datetime": CellType(re.compile(rf"{_DAY}([ T]{_CLOCK}(Z|[+-][0-9]{{2}}:[0-9]{{2}})?)?"), _moment),
    NESTED: CellType(re.compile(r"[\[{].*", re.DOTALL), strict_json),
}
"""By the names that ``--types`` takes."""


def cell(kind: str, column: str, field: str | None) -> Any:
    """The value of a field; None of none, and of a blank one in a column that does not hold text.

    Raises:
        ValueError: the field does not fit; the message names ``--types``.
    """
    if kind == TEXT or field is None:
        return field
    text = field.strip()
    if not text:
        return None
    try:
        return value_of(kind, text)
    except ValueError:
        better = "float" if kind == "int" and _fits("float", text) and not _CODE.match(text) else TEXT
        raise ValueError(
            f"column {column!r} holds {field[:_SHOWN]!r}, which does not fit its type, {kind}; to change that, add "
            f"{type_option(column, better)}"
        ) from None


def types_of_sample(rows: Sequence[Mapping[str, str | None]]) -> dict[str, str]:
    """The type of each column: the narrowest that nearly all fields fit; text if some are codes, or quoted as text.

    Of the fields that are not blank, one may not fit, or one in twenty: mistakes, which cost their rows only. Lists and
    objects must be all of them.

    Args:
        rows: with ``Quoted`` fields where quotes tell text from numbers.
    """
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: _type_of(row.get(name) for row in rows) for name in names}


def _type_of(fields: Iterable[str | None]) -> str:
    known = [field for field in fields if field and not field.isspace()]
    texts = [field.strip() for field in known]
    if texts and all(_fits(NESTED, text) for text in texts):
        return NESTED
    if any(map(_CODE.match, texts)) or any(map(_is_quoted_text, known)):
        return TEXT
    unfit = {kind: sum(not _fits(kind, text) for text in texts) for kind in _GUESSED}
    kind = min(unfit, key=unfit.__getitem__)
    return kind if unfit[kind] <= max(1, len(texts) // 20) and 2 * unfit[kind] < len(texts) else TEXT


def _is_quoted_text(field: str) -> bool:
    return isinstance(field, Quoted) and not _NEEDS_QUOTES.search(field)


def _fits(kind: str, text: str) -> bool:
    try:
        value_of(kind, text)
    except ValueError:
        return False
    return True


def value_of(kind: str, text: str) -> Any:
    """The value of a text without white space around it; raises ValueError if it does not fit."""
    cell_type = CELL_TYPES[kind]
    if not cell_type.pattern.fullmatch(text):
        raise ValueError(text)
    return cell_type.value(text)

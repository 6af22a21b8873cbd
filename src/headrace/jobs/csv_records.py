"""CSV as Python reads it: records, which of them are broken, and the types of columns, which each cell must fit.

Records follow Python's ``csv`` in strict mode. A record that it refuses becomes one ``BrokenLine`` with all of its
lines, and reading continues after it. Types are decided once, from the first rows, or set by the user. A cell fits only
if nothing of it would be lost: ``00501``, ``1E5`` and ``+4930`` are codes, not numbers. An empty cell without quotes is
null, and quotes that a cell does not need say that it is text.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

from headrace.core.spelling import type_option
from headrace.jobs.json_lines import strict_json
from headrace.jobs.opening import not_utf8
from headrace.rows.blocks import BrokenLine, Record

TEXT = "str"
NESTED = "json"
COMMA = "comma_float"
"""Of floats with a decimal comma."""
EXACT = 2**53
"""The first whole number behind which a float has not all others."""
TRUE, FALSE = ("True", "TRUE", "true"), ("False", "FALSE", "false")
"""How booleans are written."""
_GUESSED = ("bool", "int", "float")
"""What a column of text may turn out to be, in the order in which it is tried."""
_CODE = re.compile(r"[+-]?0[0-9]|[0-9]+E[0-9]|\+[0-9]+\Z")
"""The beginning of digits that are no number; a telephone number."""
_NEEDS_QUOTES = re.compile(r'[,;\t|"\r\n]')
_DECIMAL_COMMA = re.compile(r",([0-9]{1,2}|[0-9]{4,})\Z")
"""No comma between thousands."""
_SHOWN = 80
_WHOLE = r"[+-]?(0|[1-9][0-9]*)"
_FLOAT = (
    rf"{_WHOLE}(e[+-]?[0-9]+|E[+-][0-9]+)?|({_WHOLE}\.[0-9]*|[+-]?\.[0-9]+)([eE][+-]?[0-9]+)?"
    "|[+-]?(?i:nan|inf|infinity)"
)
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_MOST_OF_A_QUOTE = 1 << 29
_TROUBLE = str.maketrans("\r\0", "\1\1")


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
    "float": CellType(re.compile(_FLOAT), _exact_float),
    COMMA: CellType(re.compile(_FLOAT.replace(r"\.", ",")), lambda text: _exact_float(text.replace(",", "."))),
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


def types_of_sample(rows: Sequence[Mapping[str, str | None]], *, commas: bool = False) -> dict[str, str]:
    """The type of each column: the narrowest that nearly all fields fit; text if some are codes, or quoted as text.

    Of the fields that are not blank, one may not fit, or one in twenty: mistakes, which cost their rows only. Lists and
    objects must be all of them. With ``commas``, a comma in a number is a decimal one, unless it may be one between
    thousands in all of them.
    """
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: _type_of([row.get(name) for row in rows], commas=commas) for name in names}


def value_types(types: Mapping[str, str]) -> dict[str, str]:
    """The types of the values of columns: a float is one, however it is written."""
    return {name: "float" if kind == COMMA else kind for name, kind in types.items()}


def _type_of(fields: Iterable[str | None], *, commas: bool) -> str:
    known = [field for field in fields if field and not field.isspace()]
    texts = [field.strip() for field in known]
    if texts and all(_fits(NESTED, text) for text in texts):
        return NESTED
    are_quoted_texts = (isinstance(field, Quoted) and not _NEEDS_QUOTES.search(field) for field in known)
    if any(map(_CODE.match, texts)) or any(are_quoted_texts):
        return TEXT
    most = max(1, len(texts) // 20)
    kinds = (*_GUESSED, COMMA) if commas and any(map(_DECIMAL_COMMA.search, texts)) else _GUESSED
    unfit = {kind: len([*islice((1 for text in texts if not _fits(kind, text)), most + 1)]) for kind in kinds}
    kind = min(unfit, key=unfit.__getitem__)
    return kind if unfit[kind] <= most and 2 * unfit[kind] < len(texts) else TEXT


def _fits(kind: str, text: str) -> bool:
    with suppress(ValueError):
        value_of(kind, text)
        return True
    return False


def value_of(kind: str, text: str) -> Any:
    """The value of a text without white space around it; raises ValueError if it does not fit."""
    cell_type = CELL_TYPES[kind]
    if not cell_type.pattern.fullmatch(text):
        raise ValueError(text)
    return cell_type.value(text)


class CsvRecords:
    """The CSV records in a sequence of lines.

    Creating one lifts the ``csv`` module's field limit of 131,072 characters. The limit is global to the process, so it
    is lifted only when a job reads a CSV file. ``before`` is how many lines of the file precede these.
    """

    def __init__(self, lines: Iterable[bytes], delimiter: str, path: str, before: int = 0) -> None:
        csv.field_size_limit(sys.maxsize)
        self._path = path
        self._delimiter = delimiter
        end = re.escape(delimiter)
        self._field = re.compile(rf'("[^"]*(?:""[^"]*)*"|[^{end}\r\n]*)(?:{end}|[\r\n]*\Z)')
        self._first = before + 1
        self._record: list[str] = []
        self._undecodable: UnicodeDecodeError | None = None
        self._is_at_end = False
        self._texts = self._decoded(lines)
        self._reader = csv.reader(self._texts, delimiter=delimiter, strict=True)
        self._records = self._fields()

    def header(self) -> list[str]:
        """The column names from the first record that is not empty; an empty list for an empty file.

        Raises:
            ValueError: the header cannot be read, or has a name twice.
        """
        header = next((fields for fields in self._records if fields), None) or []
        if isinstance(header, Exception):
            raise ValueError(f"the header cannot be read: {header}")
        if twice := sorted({name for name in header if header.count(name) > 1}):
            raise ValueError(
                f"the header has {', '.join(map(repr, twice))} twice, and a row can have it once only; rename one of "
                "them in the header"
            )
        return header

    def rows(self, header: list[str], types: Mapping[str, str]) -> Iterator[Record]:
        """The remaining records; empty lines are left out, and one with a field that does not fit is broken."""
        kinds = [types.get(name, TEXT) for name in header]
        columns = dict(zip(header, kinds, strict=True))
        self._read_as = {"format": "csv", "delimiter": self._delimiter, "columns": columns}
        for fields in self._records:
            if isinstance(fields, Exception):
                yield self._broken(fields)
            elif len(fields) == len(header):
                try:
                    row: Record = dict(zip(header, map(cell, kinds, header, self._with_nulls(fields)), strict=True))
                except ValueError as error:
                    row = self._broken(error)
                yield row
            elif fields:
                yield self._broken(ValueError(f"the line has {len(fields)} fields, the header {len(header)}"))

    def are_rows(self) -> Iterator[bool]:
        """For each of the remaining records, whether ``rows`` has it: that is not empty."""
        return (isinstance(fields, Exception) or bool(fields) for fields in self._records)

    def sample(self, header: list[str]) -> Iterator[Record]:
        """The remaining records as text; fields in quotes are ``Quoted``."""
        for row in self.rows(header, {}):
            fields = zip(row.items() if isinstance(row, dict) else (), self.in_quotes(), strict=False)
            yield {name: Quoted(text) if in_quotes else text for (name, text), in_quotes in fields} or row

    def in_quotes(self) -> Iterator[bool]:
        """Which fields of the record that was read last are in quotes."""
        record = "".join(self._record)
        if '"' not in record:
            return repeat(False)
        return (found[1].startswith('"') for found in self._field.finditer(record))

    def _with_nulls(self, fields: list[str]) -> Sequence[str | None]:
        """The fields, None in place of those that are empty and not in quotes."""
        if "" not in fields:
            return fields
        return [
            field if field or is_quoted else None for field, is_quoted in zip(fields, self.in_quotes(), strict=False)
        ]

    def _fields(self) -> Iterator[list[str] | Exception]:
        """The fields of each record; an exception in place of a record that cannot be read."""
        while True:
            try:
                for fields in self._reader:
                    yield self._undecodable or fields
                    self._next()
                return
            except csv.Error as error:
                yield self._mistake(error)
                self._next()

    def _next(self) -> None:
        self._first += len(self._record)
        self._record.clear()
        self._undecodable = None

    def _decoded(self, lines: Iterable[bytes]) -> Iterator[str]:
        size = 0
        for line in lines:
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                text = line.decode("utf-8", "backslashreplace")
                self._undecodable = self._undecodable or not_utf8(error)
            size = size + len(text) if self._record else 0
            if size > _MOST_OF_A_QUOTE:
                raise ValueError(
                    f"the record that begins in line {self._first} goes on for more than {_MOST_OF_A_QUOTE >> 20} MiB "
                    "of lines; is a quote not closed?"
                )
            self._record.append(text)
            yield text
        self._is_at_end = True

    def _mistake(self, error: csv.Error) -> Exception:
        """The error of a refused record; first reads the remaining lines of that record."""
        if self._is_at_end:
            return ValueError("a quote is never closed, so that this record goes on to the end of the file")
        # The strict reader stopped in the middle of the record. A lenient one, given the same lines and those that
        # follow, with quotes as the only special characters, finds its end.
        lines = chain(self._record[:], self._texts)
        harmless = (line.rstrip("\r\n").translate(_TROUBLE) + "\n" for line in lines)
        next(csv.reader(harmless, delimiter=self._delimiter), None)
        return error

    def _broken(self, error: Exception) -> BrokenLine:
        return BrokenLine("".join(self._record).rstrip("\r\n"), self._path, self._first, error, read_as=self._read_as)

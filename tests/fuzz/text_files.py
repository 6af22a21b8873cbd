"""Random files of CSV and JSONL, with what is to become of each record: it comes out as it was made, or as one that
cannot be read, with its text and place.

What is expected is known from how a file is made, not from any reader.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import json
import lzma
import math
import re
from datetime import date, datetime, timezone
from random import Random
from typing import Any, NamedTuple

import zstandard

BOM = b"\xef\xbb\xbf"
COMPRESSIONS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
_PLAIN = "abcxyz019 .-_+eE/'é\u00a0\u2028\ufeff\u0663\u4e2d\U0001f600\x85\x0b\x0c\x1c\x7f"
_SPECIAL = '"",;\t|\n\r\x00'
_FITTING: dict[str, list[tuple[str, Any]]] = {
    "int": [("0", 0), ("-7", -7), (" 12 ", 12), ("99999999999999999999", 10**20 - 1), ("\r9\n", 9)],
    "float": [
        ("0", 0.0),
        ("-1.25", -1.25),
        ("+.5", 0.5),
        (" 1e3 ", 1000.0),
        ("2", 2.0),
        ("1e+05", 100000.0),
        ("nan", math.nan),
        ("-inf", -math.inf),
        ("9007199254740994", 9007199254740994.0),
        ("\r9\n", 9.0),
    ],
    "bool": [("True", True), ("FALSE", False), (" true ", True)],
    "date": [("2024-02-29", date(2024, 2, 29)), (" 0001-01-01", date(1, 1, 1))],
    "datetime": [
        ("2024-02-29", datetime(2024, 2, 29)),
        ("2024-02-29T23:59", datetime(2024, 2, 29, 23, 59)),
        ("2024-02-29 01:02:03.5", datetime(2024, 2, 29, 1, 2, 3, 500000)),
        ("2024-02-29 01:02:03Z", datetime(2024, 2, 29, 1, 2, 3, tzinfo=timezone.utc)),
    ],
}
_EMPTY = [("", None), ("   ", None), ("\t", None)]
_OF_NO_TYPE = [
    "1_0",
    "0x1F",
    "smudge",
    "1,5",
    "--1",
    "\x00",
    "1\n2",
    "nan(7)",
    "1e",
    "\ufeff1",
    "00501",
    "-07.5",
    "yes",
]
_OF_NO_TYPE += ["2024-02-30", "2024-2-3", "2024-02-29 1", "2024-02-29T10", "\u0663"]
_UNFIT = {
    "int": ["1.5", "1e3", "nan", "-0x1", "+5"],
    "float": ["9007199254740993", "True", "1e400"],
    "bool": ["1", "0"],
    "date": ["20240229"],
    "datetime": ["20240229"],
}


class Wrong(NamedTuple):
    text: str
    """What is not UTF-8 as ``\\xNN``; without the end of its last line."""
    line: int
    """In which it begins, counted from 1."""


class Made(NamedTuple):
    """A file."""

    name: str
    content: bytes
    delimiter: str
    columns: tuple[str, ...]
    """Of the header, or of the first row."""
    types: dict[str, str]
    """Of the columns of a CSV file."""
    records: list[dict[str, Any] | Wrong]


def make(random: Random) -> Made:
    """A file of either kind, which may be compressed."""
    made = random.choice([make_csv, make_csv, make_jsonl])(random)
    if random.random() < 0.1:
        extension, compress = random.choice([*COMPRESSIONS.items()])
        return made._replace(name=made.name + extension, content=compress(made.content))
    return made


def make_csv(random: Random) -> Made:
    return _Csv(random).file()


def make_jsonl(random: Random) -> Made:
    """A JSONL file; its first row is good."""
    lines, records = [BOM if random.random() < 0.2 else b""], []
    end = random.choice([b"\n", b"\n", b"\r\n"])
    shape = {_text(random, 0.02): random.choice(_JSON_KINDS) for _ in range(random.randrange(5))}
    good, wrong = random.choice([(_good_json, 0.2), (functools.partial(_row_of_shape, shape=shape), 0.01)])
    for _ in range(_count(random)):
        while random.random() < wrong / 2:
            lines.append(random.choice([b"", b"  ", b"\t"]) + end)
        line, row = _wrong_json(random) if records and random.random() < wrong else good(random)
        number = sum(piece.count(b"\n") for piece in lines) + 1
        text = line + (end[:-1] if row is None else b"")
        records.append(Wrong(text.decode("utf-8", "backslashreplace"), number) if row is None else row)
        lines.append(line + end)
    content = b"".join(lines)
    if random.random() < 0.3 and records and not isinstance(records[-1], Wrong):
        content = content.removesuffix(end)
    columns = tuple(records[0]) if records else ()
    return Made("in.jsonl", content, ",", columns, {}, records)


def _good_json(random: Random) -> tuple[bytes, dict[str, Any]]:
    names = {_text(random) for _ in range(random.randrange(5))}
    row = {name: _value(random, 3) for name in names}
    text = json.dumps(row, ensure_ascii=random.random() < 0.5, separators=random.choice([(",", ":"), (" , ", "\t: ")]))
    pad = random.choice(["", "", " ", "\t"])
    return (pad + text + pad).encode(), row


def _row_of_shape(random: Random, shape: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """A row like most others: the same names in the same order, values of the same kinds or null."""
    row: dict[str, Any] = {name: kind(random) if random.random() < 0.9 else None for name, kind in shape.items()}
    if row and random.random() < 0.02:
        name = random.choice(list(row))
        row[name] = random.choice([_value(random, 1), row.pop(name), 1, 1.0])  # another kind, or in another place
        if random.random() < 0.3:
            del row[name]
    space = random.choice(["", "", "", " ", "\t"])
    text = json.dumps(row, ensure_ascii=random.random() < 0.5, separators=random.choice([(",", ":"), (", ", ": ")]))
    return (space + text + space).encode("utf-8", "backslashreplace"), row


_JSON_KINDS = [
    lambda random: random.choice([0, -1, 2**53 + 1, 10**17, random.randrange(10**6)]),
    lambda random: random.choice([10**18, 2**63, -(2**63)]) if random.random() < 0.05 else -5,
    lambda random: random.choice([0.1, -0.0, 1e308, 5e-324, 1e16, 1e-7, random.random(), random.gauss(0, 1e9)]),
    lambda random: random.gauss(0, 1),
    lambda random: random.randrange(100),
    lambda random: _text(random, 0.05),
    lambda random: random.choice(["2020-01-01 00:00:00", '":null', ":null", "\\", '\\"', "\U0001f600", "\u2028", "/"]),
    lambda random: random.random() < 0.5,
    lambda _: None,
]


def _wrong_json(random: Random) -> tuple[bytes, None]:
    good = _good_json(random)[0].strip()
    kinds = [
        good[:-1],
        good + b"}",
        good + good,
        b"[" + good + b"]",
        b'{"a": 1, "b": {"c": 1, "c": 1}}',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\x00"}',
        b"{'a': 1}",
        b'{"a": 01}',
        b'"text"',
        b"null",
        b"\xef\xbb\xbf" + good,
        good.decode().encode("utf-16-le").replace(b"\n", b""),
        b"[" * 100_000,
        b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
    ]
    return random.choice(kinds), None


def _value(random: Random, depth: int) -> Any:
    kind = random.randrange(10 if depth else 7)
    if kind == 0:
        return random.choice([None, True, False])
    if kind == 1:
        return random.choice([0, -1, 2**53 + 1, 2**63, -(10**30), random.randrange(1000)])
    if kind == 2:
        return random.choice([0.1, -0.0, 1e308, 5e-324, math.inf, math.nan, random.random()])
    if kind < 7:
        return _text(random)
    if kind < 9:
        return [_value(random, depth - 1) for _ in range(random.randrange(4))]
    return {_text(random): _value(random, depth - 1) for _ in range(random.randrange(4))}


def _count(random: Random) -> int:
    return random.choice([0, 1, 2, 3, 5, 10, 20, 60, 300])


def _text(random: Random, strange: float = 0.3) -> str:
    if random.random() < 0.0002:
        return (random.choice(["x", 'y"', "z\n", "é"]) * 140_000)[:140_000]
    alphabet = _PLAIN + _SPECIAL if random.random() < strange else _PLAIN
    return "".join(random.choices(alphabet, k=random.choice([0, 1, 3, 8])))


class _Csv:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.strange = random.choice([0, 0.01, 0.3])
        self.delimiter = random.choice(",,,;\t|")
        self.ends = random.choice([["\n"], ["\r\n"], ["\n", "\r\n"]])
        names = dict.fromkeys(self._name() for _ in range(random.choice([1, 2, 3, 6])))
        self.columns = tuple(names)
        self.types = {name: random.choice(["str", "str", *_FITTING]) for name in names}
        self.content = b""
        self.records: list[dict[str, Any] | Wrong] = []

    def file(self) -> Made:
        random = self.random
        header = self.delimiter.join(self._quoted(name, always='"' in name) for name in self.columns)
        self._add(header.encode())
        for _ in range(_count(random)):
            if random.random() < self.strange / 3:
                self._add(b"")
            self._wrong() if random.random() < self.strange / 2 else self._good()
        if random.random() < 0.05:
            self._unclosed()
        elif random.random() < 0.3 and self.content.count(b"\n") > 2:
            self.content = re.sub(rb"\r?\n\Z", b"", self.content)
        mark = BOM if random.random() < 0.2 else b""
        return Made("in.csv", mark + self.content, self.delimiter, self.columns, self.types, self.records)

    def _name(self) -> str:
        return "".join(self.random.choices('abcé "\n\r,;x', k=self.random.choice([1, 4])))

    def _add(self, record: bytes) -> None:
        self.content += record + self.random.choice(self.ends).encode()

    @property
    def _line(self) -> int:
        return self.content.count(b"\n") + 1

    def _cells(self) -> tuple[list[str], list[Any]]:
        made = [self._cell(self.types[name]) for name in self.columns]
        return [text for text, _ in made], [value for _, value in made]

    def _cell(self, kind: str) -> tuple[str, Any]:
        if kind == "str":
            text = _text(self.random, self.strange)
            return text, text
        return self.random.choice(_FITTING[kind] if self.random.random() > self.strange / 3 else _EMPTY)

    def _quoted(self, text: str, *, always: bool = False) -> str:
        if always or text[:1] == '"' or any(end in text for end in (self.delimiter, "\n", "\r")):
            always = True
        if len(self.columns) == 1 and not text:
            always = True  # else it would be an empty line
        if not always and self.random.random() < 0.8:
            return text
        return '"' + text.replace('"', '""') + '"'

    def _good(self) -> None:
        texts, values = self._cells()
        fields = list(map(self._quoted, texts))
        values = [value if field else None for field, value in zip(fields, values, strict=True)]
        self._add(self.delimiter.join(fields).encode())
        self.records.append(dict(zip(self.columns, values, strict=True)))

    def _wrong(self) -> None:
        texts = list(map(self._quoted, self._cells()[0]))
        place = self.random.randrange(len(texts))
        kind = self.random.randrange(6)
        typed = [place for place, name in enumerate(self.columns) if self.types[name] != "str"]
        if kind == 5 and typed:
            place = self.random.choice(typed)
            unfit = [*_OF_NO_TYPE, *_UNFIT.get(self.types[self.columns[place]], [])]
            texts[place] = self._quoted(self.random.choice(unfit))
        elif kind == 0 and len(texts) > 2:
            texts.pop()
        elif kind <= 1:
            texts.append(self.random.choice(["more", '"in\ntwo"', ""]))
        elif kind == 2:
            texts[place] = self.random.choice(['"a"b', '"a\nb" "c"', '"""" x', '"" x"\n"'.replace("\n", "")])
        elif kind == 3:
            texts[place] = "a\rb"
        else:
            texts[place] = self.random.choice(["\udcff", '"a\n\udce9"', "\udced\udca0\udc80", "\udcc3"])
        record = self.delimiter.join(texts).encode("utf-8", "surrogateescape")
        self.records.append(Wrong(record.decode("utf-8", "backslashreplace"), self._line))
        self._add(record)

    def _unclosed(self) -> None:
        line = self._line
        start = len(self.content)
        self._add(self.delimiter.join(["x"] * (len(self.columns) - 1) + ['"never closed']).encode())
        for _ in range(self.random.randrange(4)):
            self._add(self.delimiter.join(["y"] * len(self.columns)).encode())
        self.records.append(Wrong(self.content[start:].decode().rstrip("\r\n"), line))

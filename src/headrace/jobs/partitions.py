"""Folders partitioned as Hive does it: their names, such as ``year=2024``, are columns of the files in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow

from headrace.jobs.arrays import array_of
from headrace.rows.records import BrokenLine, Record

_NULL = "__HIVE_DEFAULT_PARTITION__"
_KEY = re.compile(r"([^=]+)=(.*)")
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")


class Key(NamedTuple):
    """A column that a folder's name gives to all rows below it."""

    name: str
    value: Any
    type: str
    """``int`` if all values of this column are whole numbers, else ``str``."""


def keys_of(paths: Mapping[str, str]) -> dict[str, tuple[Key, ...]]:
    """The keys of files, the same columns for all.

    Args:
        paths: the folder of each below which names of folders are keys.
    """
    found = {path: dict(_pairs(path[len(base) :])) for path, base in paths.items()}
    names = dict.fromkeys(name for pairs in found.values() for name in pairs)
    kinds = {name: _kind_of(pairs.get(name) for pairs in found.values()) for name in names}
    return {path: tuple(_key(name, pairs.get(name), kinds[name]) for name in names) for path, pairs in found.items()}


def is_partitioned(paths: Iterable[str], base: str) -> bool:
    """Whether any file is in a folder that gives a key."""
    return any(True for path in paths for _ in _pairs(path[len(base) :]))


def with_keys(pieces: Iterable[Any], keys: tuple[Key, ...]) -> Iterator[Any]:
    """The pieces of a file, as for ``placed``, with the columns of its folders, unless the file has such a column."""
    for piece in pieces:
        if isinstance(piece, int):
            yield piece
        else:
            yield [_row(row, keys) for row in piece] if isinstance(piece, list) else _batch(piece, keys)


def _pairs(path: str) -> Iterator[tuple[str, str | None]]:
    for folder in re.split(r"[/\\]", os.path.dirname(path)):
        if found := _KEY.fullmatch(folder):
            yield unquote(found[1]), None if found[2] == _NULL else unquote(found[2])


def _kind_of(values: Iterable[str | None]) -> str:
    known = [value for value in values if value is not None]
    return "int" if known and all(map(_WHOLE.fullmatch, known)) else "str"


def _key(name: str, value: str | None, kind: str) -> Key:
    return Key(name, int(value) if value is not None and kind == "int" else value, kind)


def _row(row: Record, keys: tuple[Key, ...]) -> Record:
    of_folders = {name: value for name, value, _ in keys}
    if isinstance(row, BrokenLine):
        return row._replace(read_as=row.read_as and {**row.read_as, "keys": of_folders})
    return {**row, **{name: value for name, value in of_folders.items() if name not in row}}


def _batch(batch: Any, keys: tuple[Key, ...]) -> Any:
    fields, columns = list(batch.schema), list(batch.columns)
    for name, value, kind in keys:
        if name not in batch.schema.names:
            values = array_of([value], pyarrow.int64() if kind == "int" else pyarrow.string())
            fields.append(pyarrow.field(name, values.type))
            columns.append(pyarrow.repeat(values[0], batch.num_rows))
    return pyarrow.RecordBatch.from_arrays(columns, schema=pyarrow.schema(fields, metadata=batch.schema.metadata))

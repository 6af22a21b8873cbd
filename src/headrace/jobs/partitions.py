"""Folders partitioned as Hive does it: their names, such as ``year=2024``, are columns of the files in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

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


def _pairs(path: str) -> Iterator[tuple[str, str | None]]:
    for folder in re.split(r"[/\\]", os.path.dirname(path)):
        if found := _KEY.fullmatch(folder):
            yield unquote(found[1]), None if found[2] == _NULL else unquote(found[2])


def _kind_of(values: Iterable[str | None]) -> str:
    known = [value for value in values if value is not None]
    return "int" if known and all(map(_WHOLE.fullmatch, known)) else "str"


def _key(name: str, value: str | None, kind: str) -> Key:
    return Key(name, int(value) if value is not None and kind == "int" else value, kind)

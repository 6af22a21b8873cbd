"""The Parquet types of JSON values: each column gets one type that represents all of its values exactly.

The type follows from all values of a column, regardless of their order and of how they are cut into chunks. A column
without such a type (1 and "a", a 70-bit integer, [1] and {"a": 2}) becomes text: strings unchanged, all else as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

import pyarrow

_LETTER = ("row", "stage", "operation", "error_type", "message", "traceback", "attempts", "model_id", "position")
_NUMBERS = ("operation", "attempts")
_EXACT = 2**53
_FIELDS = 1000
"""A column of objects with more distinct fields holds mappings rather than records, and becomes text."""
_LEVELS = 30


class Scalar(NamedTuple):
    """Null only, booleans, or strings."""

    type: Any


class Number(NamedTuple):
    """Integers in a range, and possibly floats."""

    least: int = 0
    most: int = 0
    has_floats: bool = False


class Array(NamedTuple):
    """Arrays of one kind of values."""

    of: Kind


class Object(NamedTuple):
    """Objects; missing fields are null."""

    fields: dict[str, Kind]


class Mixed(NamedTuple):
    """Values that no single type represents."""


Kind = Scalar | Number | Array | Object | Mixed
"""The kind of a column's values. ``either`` joins two; joining is commutative and associative."""

NOTHING, TRUTH, STRING = (Scalar(kind) for kind in (pyarrow.null(), pyarrow.bool_(), pyarrow.string()))
MIXED = Mixed()


def kind_of(values: Iterable[Any], levels: int = _LEVELS) -> Kind:
    """The kind of JSON values."""
    values = [value for value in values if value is not None]
    types = set(map(type, values))
    if not types:
        return NOTHING
    if types <= {int, float}:
        integers = values if float not in types else [value for value in values if type(value) is int]
        return Number(min(integers, default=0), max(integers, default=0), float in types)
    if types == {list} and levels:
        return Array(kind_of(chain.from_iterable(values), levels - 1))
    if types == {dict} and levels:
        return _kind_of_objects(values, levels - 1)
    if types == {str} and is_utf8("".join(values)):
        return STRING
    return TRUTH if types == {bool} else MIXED


def _kind_of_objects(values: list[dict[str, Any]], levels: int) -> Kind:
    names = dict.fromkeys(chain.from_iterable(values))
    if len(names) > _FIELDS or not is_utf8("".join(names)):
        return MIXED
    return Object({name: kind_of([value.get(name) for value in values], levels) for name in names})


def either(one: Kind, other: Kind) -> Kind:
    """The kind that represents the values of both."""
    if other in (one, NOTHING):
        return one
    if one == NOTHING:
        return other
    if isinstance(one, Number) and isinstance(other, Number):
        return Number(min(one.least, other.least), max(one.most, other.most), one.has_floats or other.has_floats)
    if isinstance(one, Array) and isinstance(other, Array):
        return Array(either(one.of, other.of))
    if isinstance(one, Object) and isinstance(other, Object):
        names = dict.fromkeys([*one.fields, *other.fields])
        if len(names) <= _FIELDS:
            return Object(
                {name: either(one.fields.get(name, NOTHING), other.fields.get(name, NOTHING)) for name in names}
            )
    return MIXED


def type_of(kind: Kind) -> Any:
    """Arrow's type for a column; text if no exact type exists."""
    return _exact_type(kind) or pyarrow.string()


def _exact_type(kind: Kind) -> Any:
    """None if no type represents the values exactly."""
    if isinstance(kind, Scalar):
        return kind.type
    if isinstance(kind, Number):
        return _type_of_numbers(kind)
    if isinstance(kind, Array):
        inner = _exact_type(kind.of)
        return inner and pyarrow.list_(inner)
    if isinstance(kind, Object) and kind.fields:  # Parquet has no objects without fields
        types = {name: _exact_type(field) for name, field in kind.fields.items()}
        return pyarrow.struct(list(types.items())) if all(types.values()) else None
    return None


def _type_of_numbers(kind: Number) -> Any:
    if kind.has_floats:
        return pyarrow.float64() if kind.least >= -_EXACT and kind.most <= _EXACT else None
    if kind.least >= -(2**63) and kind.most < 2**63:
        return pyarrow.int64()
    return pyarrow.uint64() if kind.least >= 0 and kind.most < 2**64 else None


class ColumnTypes:
    """Collects the kinds of columns, and derives types wide enough for all rows seen."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def widen(self, name: str, kind: Kind) -> None:
        """Widens a column to hold a kind."""
        self._kinds[name] = either(self._kinds.get(name, NOTHING), kind)

    @property
    def types(self) -> dict[str, Any]:
        """Arrow's types by column name."""
        return {name: type_of(kind) for name, kind in self._kinds.items()}


def schema_of(types: dict[str, Any]) -> Any:
    """The schema of columns; names are made UTF-8 and kept distinct."""
    names: dict[str, None] = {}
    for name in map(utf8, types):
        while name in names:
            name += "_"  # noqa: PLW2901 - converting a name to UTF-8 made it collide
        names[name] = None
    return pyarrow.schema(list(zip(names, types.values(), strict=True)))


def letter_types() -> dict[str, Any]:
    """The column types of dead letters, which do not depend on what failed; a row becomes JSON text."""
    return {name: pyarrow.int64() if name in _NUMBERS else pyarrow.string() for name in _LETTER}


def as_array(values: list[Any], kind: Any) -> Any:
    """Values as an array of a type that represents them."""
    if pyarrow.types.is_string(kind):
        values = [value if value is None else _as_text(value) for value in values]
    return pyarrow.array(values, kind)


def _as_text(value: Any) -> str:
    return utf8(value) if isinstance(value, str) else json.dumps(value)


def utf8(text: str) -> str:
    """Valid UTF-8: lone surrogates become their escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold the text: it has no lone surrogate."""
    return utf8(text) == text

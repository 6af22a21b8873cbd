"""What columns hold, by the names that users see: int, float, bool, str, date, datetime, or another of the source's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from itertools import chain
from typing import Any

_NAMES = {int: "int", float: "float", bool: "bool", str: "str", date: "date", datetime: "datetime"}
_MIXED = "mixed"


def types_of_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The types of columns by their values, in rows that have been read; ``mixed``: of several types."""
    rows = list(rows)
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: _type_of({type(row.get(name)) for row in rows}) for name in names}


def types_of_schema(schema: Any) -> dict[str, str]:
    """The types of the columns of an Arrow schema; numbers of all widths are ``int`` or ``float``."""
    return {field.name: _name_of_arrow(field.type) for field in schema}


def _type_of(kinds: set[type]) -> str:
    kinds = kinds - {type(None)}
    if kinds == {int, float}:
        return "float"
    names = [_NAMES.get(kind, kind.__name__) for kind in kinds]
    return names[0] if len(names) == 1 else _MIXED if names else "null"


def _name_of_arrow(kind: Any) -> str:
    from pyarrow import types  # noqa: PLC0415 - only where there are Arrow's types

    if types.is_dictionary(kind):
        return _name_of_arrow(kind.value_type)
    named = {
        "int": types.is_integer,
        "float": types.is_floating,
        "bool": types.is_boolean,
        "str": lambda one: str(one).endswith(("string", "string_view")),
        "date": types.is_date,
        "datetime": types.is_timestamp,
    }
    return next((name for name, is_kind in named.items() if is_kind(kind)), str(kind))

"""Takes rows of one make apart into columns, which travel better than rows, and puts them together again.

A column is sent in the cheapest way that holds: as an index, if its values are the very objects that the other process
already has, and cannot have changed or stand for what was sent; as one piece of memory, if they are arrays alike; in
columns of its own; once, if all are one object; else as a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, cycle, repeat
from operator import eq, is_
from typing import Any, cast

from headrace.core.arrays import Stacked
from headrace.ipc.serialization import Reducers, codec, framework_of

_DEPTH = 4
"""How deep rows are taken apart."""
_NARROW = 8
"""Rows with more parts than this, and than there are rows, stay whole: a column has a price of its own."""

_UNCHANGING = {str, bytes, int, float, complex, bool, type(None)}
_GIVEN_BACK = "example"
"""The field of a prediction that stands for what was sent: it comes back as it was, whatever was done to it since."""

Form = tuple[Any, ...]
"""How a column is sent: a word, and what belongs to it."""


class RequestColumns:
    """The columns into which rows were taken apart; the same in the process that took and in the one that put together.

    The first is the rows themselves; each is followed by those into which it was taken apart. All have one value for
    each row.
    """

    def __init__(self) -> None:
        self.lists: list[list[Any]] = []

    def __len__(self) -> int:
        """How many columns there are."""
        return len(self.lists)


class KnownColumns:
    """Columns that both processes have, seen from rows that answer to theirs.

    Args:
        columns: those of the request.
        positions: for each row the one of the request to which it belongs; None: the first to the first, and so on.
        count: how many rows there are.
    """

    def __init__(self, columns: RequestColumns | None, positions: Sequence[int] | None, count: int) -> None:
        enough = columns is not None and (positions is not None or count <= len(columns.lists[0]))
        self._lists = columns.lists if columns is not None and enough and count else []
        self._positions = positions
        self._count = count
        first = 0 if positions is None or not count else positions[0]
        self._firsts = [column[first] for column in self._lists]

    def has_first(self, value: Any) -> bool:
        """Whether a value of the first row may be known."""
        return any(map(is_, self._firsts, repeat(value)))

    def index(self, values: list[Any]) -> int | None:
        """Which known column has exactly these objects."""
        for index, first in enumerate(self._firsts):
            if first is values[0] and all(map(is_, values, self._at_positions(self._lists[index]))):
                return index
        return None

    def column(self, index: int) -> list[Any]:
        """A known column's objects, for each row."""
        return list(self._at_positions(self._lists[index]))

    def _at_positions(self, column: list[Any]) -> Iterable[Any]:
        if self._positions is None:
            return column[: self._count]
        return map(column.__getitem__, self._positions)


class RowEncoder:
    """Rows taken apart.

    Args:
        rows: left as they are.
        known: what the other process has.
        reducers: classes in it are not taken apart, since they have a way of their own to be pickled.
    """

    def __init__(self, rows: Sequence[Any], known: KnownColumns, reducers: Reducers) -> None:
        self.columns = RequestColumns()
        self.stacks: list[Stacked] = []
        self.echoes = False
        """Whether anything is sent as an index into what is known."""
        self._known = known
        self._reducers = reducers
        self.form: Form = self._form(list(rows), 0)

    def _form(self, values: list[Any], depth: int, name: str = "") -> Form:
        self.columns.lists.append(values)
        if not values:
            return "list", values
        index = self._known.index(values)
        if index is not None and (name == _GIVEN_BACK or set(map(type, values)) <= _UNCHANGING):
            self.echoes = True
            return "echo", index
        return self._parts(values, depth) or self._leaf(values)

    def _leaf(self, values: list[Any]) -> Form:
        first = values[0]
        if len(values) > 1 and first is values[-1] and all(map(is_, values, repeat(first))):
            return "same", first
        framework = framework_of(first)
        stacked = codec(framework).stack(values) if framework else None
        if stacked is None:
            return "list", values
        self.stacks.append(stacked)
        return "stack", framework, stacked.layout, len(self.stacks) - 1

    def _parts(self, values: list[Any], depth: int) -> Form | None:
        kind = type(values[0])
        if depth == _DEPTH or not self._can_part(kind) or not _are_alike(values):
            return None
        if kind is tuple:
            return "tuples", self._children(values, depth)
        if kind is not dict:
            return "named", kind, self._children(values, depth, kind._fields)
        keys = list(values[0])
        if not self._pays(values[0], depth) or not _have_keys(values, keys):
            return None
        return "dicts", keys, self._children(map(dict.values, values), depth)

    def _children(self, rows: Iterable[Iterable[Any]], depth: int, names: Iterable[str] = repeat("")) -> list[Form]:
        columns = zip(zip(*rows, strict=True), names)  # noqa: B905 - without names there is no end of empty ones
        return [self._form(list(column), depth + 1, name) for column, name in columns]

    def _can_part(self, kind: type) -> bool:
        return kind is tuple or kind is dict or (_is_named_tuple(kind) and kind not in self._reducers)

    def _pays(self, value: Any, depth: int) -> bool:
        """Whether a part of a first row may be stacked or echoed; dicts are slower in columns than in a pickle."""
        if depth <= _DEPTH and self._can_part(type(value)):
            parts = value.values() if type(value) is dict else value
            return any(self._known.has_first(part) or self._pays(part, depth + 1) for part in parts)
        return framework_of(value) is not None


def _are_alike(values: list[Any]) -> bool:
    """Whether rows have one type and one number of parts, not too many."""
    width = len(values[0])
    if not 0 < width <= max(_NARROW, len(values)):
        return False
    return len(set(map(type, values))) == 1 and set(map(len, values)) == {width}


def _have_keys(rows: list[dict[Any, Any]], keys: list[Any]) -> bool:
    """Whether all rows, of equal length, have these strings as keys, in this order."""
    if set(map(type, keys)) != {str}:
        return False
    if all(map(is_, chain.from_iterable(rows), cycle(keys))):
        return True
    return all(map(eq, map(list, rows), repeat(keys))) and set(map(type, chain.from_iterable(rows))) == {str}


def _is_named_tuple(kind: type) -> bool:
    """Whether an object of this class is its fields and nothing more."""
    as_tuple = ("__iter__", "__len__", "__getitem__", "__reduce__", "__reduce_ex__")
    return (
        issubclass(kind, tuple)
        and hasattr(kind, "_fields")
        and not kind.__dictoffset__
        and kind.__base__ is tuple
        and all(getattr(kind, name) is getattr(tuple, name) for name in as_tuple)
    )


class RowDecoder:
    """Rows put together.

    Args:
        form: how they are sent.
        count: how many there are.
        stacks: the memory of arrays side by side.
        known: what both processes have.
    """

    def __init__(self, form: Form, count: int, stacks: Sequence[memoryview], known: KnownColumns) -> None:
        self.columns = RequestColumns()
        self._count = count
        self._stacks = stacks
        self._known = known
        self._values(form)

    def _values(self, form: Form) -> list[Any]:
        place = len(self.columns)
        self.columns.lists.append([])  # before its parts, as when they were taken apart
        values = self.columns.lists[place] = getattr(self, f"_{form[0]}")(*form[1:])
        return cast("list[Any]", values)

    def _list(self, values: list[Any]) -> list[Any]:
        return values

    def _same(self, value: Any) -> list[Any]:
        return [value] * self._count

    def _echo(self, index: int) -> list[Any]:
        return self._known.column(index)

    def _stack(self, framework: str, layout: Any, index: int) -> list[Any]:
        return codec(framework).unstack(layout, self._stacks[index], self._count)

    def _tuples(self, forms: list[Form]) -> list[Any]:
        return list(self._rows(forms))

    def _named(self, kind: type, forms: list[Form]) -> list[Any]:
        return list(map(partial(tuple.__new__, kind), self._rows(forms)))

    def _dicts(self, keys: list[str], forms: list[Form]) -> list[Any]:
        rows: list[Any] = [dict.fromkeys(keys) for _ in range(self._count)]
        for key, form in zip(keys, forms, strict=True):  # column by column: twice as fast as dict(zip(...)) for a row
            for row, value in zip(rows, self._values(form), strict=True):
                row[key] = value
        return rows

    def _rows(self, forms: list[Form]) -> Iterable[tuple[Any, ...]]:
        return zip(*map(self._values, forms), strict=True)

"""Splits rows of the same structure into columns, which are cheaper to send than rows, and joins them again.

A column is sent in the cheapest form that is exact, in this order:

- "echo": an index, if its values are the very objects that the other process sent and they are immutable
  (or the ``example`` field of a prediction);
- "tuples", "results", "named", "dicts": one column per field, nested ("results" are ``PredictionResult``);
- "same": one value, if all rows hold the same object;
- "stack": one block of memory, if they are arrays of one framework, dtype and shape ("small", if that is pickled);
- "list": pickled as a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain, cycle, repeat
from operator import eq, is_
from typing import Any, TypeAlias

from headrace.core.arrays import Stacked
from headrace.core.result import PredictionResult
from headrace.ipc.serialization import Reducers, codec, framework_of

_DEPTH = 4
"""How many levels of nesting are split into columns."""
_NARROW = 8
"""Rows with more fields than this and than there are rows are not split: each column has a fixed cost."""

_SMALL = 1 << 13
"""Bytes. Stacked arrays of at most this size together are pickled: one memory less to manage pays for the copy."""

_FEW = 64
"""Of more rows, the values are not looked at one by one to save a few microseconds."""

_TEXTS = {str, bytes}
_UNCHANGING = {*_TEXTS, int, float, complex, bool, type(None)}
_GIVEN_BACK = "example"
"""The field of a prediction that holds the input: the sender gets back its own object, even if the host changed it."""

Form = tuple[Any, ...]
"""How a column is sent: the name of its form (the decoder's method), and that method's arguments."""


Columns: TypeAlias = list[list[Any]]
"""The columns of a message, with one value per row, in the same order in the encoding and the decoding process.

The first column is the rows themselves; each column is followed by its fields' columns (depth first)."""


class KnownColumns:
    """The request's columns, which both processes have, aligned with the rows of the response.

    Args:
        columns: the request's columns; None: there are none, so nothing can be echoed.
        positions: the index of the request row that each response row belongs to; None: row ``i`` to row ``i``.
        count: number of rows in the response.
    """

    def __init__(self, columns: Columns | None, positions: Sequence[int] | None, count: int) -> None:
        enough = columns is not None and (positions is not None or count <= len(columns[0]))
        self._columns = columns if columns is not None and enough and count else []
        self.has_columns = bool(self._columns)
        self._positions = positions
        self._count = count
        self._firsts: list[Any] | None = None

    def has_first(self, value: Any) -> bool:
        """Whether this value of the first response row occurs in that row's request."""
        return any(map(is_, self._of_first_row(), repeat(value)))

    def index(self, values: list[Any]) -> int | None:
        """The index of the request's column that holds exactly these objects; None if there is none."""
        for index, first in enumerate(self._of_first_row()):
            if first is values[0] and all(map(is_, values, self._at_positions(self._columns[index]))):
                return index
        return None

    def column(self, index: int) -> list[Any]:
        """The objects of a request column, one per response row."""
        return list(self._at_positions(self._columns[index]))

    def _of_first_row(self) -> list[Any]:
        """The values of the request row that the first response row belongs to; worked out when an encoder asks."""
        if self._firsts is None:
            first = self._positions[0] if self._positions and self._columns else 0
            self._firsts = [column[first] for column in self._columns]
        return self._firsts

    def _at_positions(self, column: list[Any]) -> Iterable[Any]:
        if self._positions is None:
            return column[: self._count]
        return map(column.__getitem__, self._positions)


NOTHING_KNOWN = KnownColumns(None, None, 0)
"""For a request."""


class RowEncoder:
    """Splits rows into columns; ``form`` and ``stacks`` are what to send.

    Classes with a reducer are not split: they pickle in their own way.
    """

    def __init__(self, rows: Sequence[Any], known: KnownColumns, reducers: Reducers) -> None:
        self.columns: Columns = []
        self.stacks: list[Stacked] = []
        self.echoes = False
        """Whether any column is sent as an index into ``known``."""
        self.is_plain = True
        """Whether ``form`` consists of few, short, plain values and layouts, which need neither reducers nor pieces."""
        self._known = known
        self._reducers = reducers
        self.form: Form = self._form(list(rows), 0)

    def _form(self, values: list[Any], depth: int, name: str = "") -> Form:
        self.columns.append(values)
        if not values:
            return "list", values
        index = self._known.index(values) if self._known.has_columns else None
        if index is not None and (name == _GIVEN_BACK or set(map(type, values)) <= _UNCHANGING):
            self.echoes = True
            return "echo", index
        is_scalar = type(values[0]) in _UNCHANGING
        return (None if is_scalar else self._parts(values, depth)) or self._leaf(values, is_scalar)

    def _leaf(self, values: list[Any], is_scalar: bool) -> Form:
        first = values[0]
        if len(values) > 1 and first is values[-1] and all(map(is_, values, repeat(first))):
            self.is_plain = self.is_plain and _are_plain([first])
            return "same", first
        kind: type = type(first)
        framework = None if is_scalar else framework_of(kind)
        stacked = codec(framework).stack(values) if framework else None
        if stacked is None:
            self.is_plain = self.is_plain and _are_plain(values)
            return "list", values
        if stacked.nbytes <= _SMALL:
            memory = bytearray(stacked.nbytes)
            stacked.write(memoryview(memory))
            return "small", framework, stacked.layout, memory
        self.stacks.append(stacked)
        return "stack", framework, stacked.layout, len(self.stacks) - 1

    def _parts(self, values: list[Any], depth: int) -> Form | None:
        kind = type(values[0])
        if not self._can_part(kind) or depth == _DEPTH or not _are_alike(values):
            return None
        if kind is tuple:
            return "tuples", self._children(values, depth)
        if kind is PredictionResult:  # as common as it is: its name in the pickle would take most of the time
            return "results", self._children(values, depth, kind._fields)
        if kind is not dict:
            self.is_plain = False
            return "named", kind, self._children(values, depth, kind._fields)
        keys = list(values[0])
        if not self._pays(values[0], depth) or not _have_keys(values, keys):
            return None
        return "dicts", keys, self._children(map(dict.values, values), depth)

    def _children(self, rows: Iterable[Iterable[Any]], depth: int, names: Iterable[str] = repeat("")) -> list[Form]:
        columns = zip(zip(*rows, strict=True), names)  # noqa: B905 - the default names are endless
        return [self._form(list(column), depth + 1, name) for column, name in columns]

    def _can_part(self, kind: type) -> bool:
        return _has_fields(kind) and kind not in self._reducers

    def _pays(self, value: Any, depth: int) -> bool:
        """Whether a field of the first row could be stacked or echoed; otherwise a dict is faster pickled whole."""
        if depth <= _DEPTH and self._can_part(type(value)):
            parts = value.values() if type(value) is dict else value
            return any(self._known.has_first(part) or self._pays(part, depth + 1) for part in parts)
        kind: type = type(value)
        return framework_of(kind) is not None


def _are_plain(values: list[Any]) -> bool:
    """Whether they are few, and all of them numbers or all short texts: pickled in one piece, long ones are copied."""
    if len(values) > _FEW:
        return False
    kinds = set(map(type, values))
    if kinds <= _TEXTS:
        return sum(map(len, values)) <= _SMALL
    return kinds <= _UNCHANGING and kinds.isdisjoint(_TEXTS)


def _are_alike(values: list[Any]) -> bool:
    """Whether all rows have the same type and the same number of fields, and not too many."""
    width, count = len(values[0]), len(values)
    if not 0 < width <= max(_NARROW, count):
        return False
    # list.count is the fastest way to compare many with one.
    return [*map(type, values)].count(type(values[0])) == count == [*map(len, values)].count(width)


def _have_keys(rows: list[dict[Any, Any]], keys: list[Any]) -> bool:
    """Whether all rows, which have equal lengths, have exactly these keys, all strings, in this order."""
    if set(map(type, keys)) != {str}:
        return False
    if all(map(is_, chain.from_iterable(rows), cycle(keys))):
        return True
    return all(map(eq, map(list, rows), repeat(keys))) and set(map(type, chain.from_iterable(rows))) == {str}


@lru_cache(maxsize=256)
def _has_fields(kind: type) -> bool:
    """Whether it is a tuple, a dict, or a named tuple class whose objects hold nothing but their fields."""
    if kind is tuple or kind is dict:
        return True
    as_tuple = ("__iter__", "__len__", "__getitem__", "__reduce__", "__reduce_ex__")
    return (
        issubclass(kind, tuple)
        and hasattr(kind, "_fields")
        and not kind.__dictoffset__
        and kind.__base__ is tuple
        and all(getattr(kind, name) is getattr(tuple, name) for name in as_tuple)
    )


class RowDecoder:
    """Joins an encoder's columns into rows, which are then ``columns[0]``."""

    def __init__(self, form: Form, count: int, stacks: Sequence[memoryview], known: KnownColumns) -> None:
        self.columns: Columns = []
        self._count = count
        self._stacks = stacks
        self._known = known
        self._values(form)

    def _values(self, form: Form) -> list[Any]:
        place = len(self.columns)
        self.columns.append([])  # before its fields, in the encoder's order: echo indices depend on it
        values: list[Any] = getattr(self, f"_{form[0]}")(*form[1:])
        self.columns[place] = values
        return values

    def _list(self, values: list[Any]) -> list[Any]:
        return values

    def _same(self, value: Any) -> list[Any]:
        return [value] * self._count

    def _echo(self, index: int) -> list[Any]:
        return self._known.column(index)

    def _stack(self, framework: str, layout: Any, index: int) -> list[Any]:
        return codec(framework).unstack(layout, self._stacks[index], self._count)

    def _small(self, framework: str, layout: Any, memory: bytearray) -> list[Any]:
        return codec(framework).unstack(layout, memoryview(memory), self._count)

    def _tuples(self, forms: list[Form]) -> list[Any]:
        return list(self._rows(forms))

    def _results(self, forms: list[Form]) -> list[Any]:
        return self._named(PredictionResult, forms)

    def _named(self, kind: type, forms: list[Form]) -> list[Any]:
        return list(map(partial(tuple.__new__, kind), self._rows(forms)))

    def _dicts(self, keys: list[str], forms: list[Form]) -> list[Any]:
        rows: list[Any] = [dict.fromkeys(keys) for _ in range(self._count)]
        for key, form in zip(keys, forms, strict=True):  # by column: twice as fast as dict(zip(...)) per row
            for row, value in zip(rows, self._values(form), strict=True):
                row[key] = value
        return rows

    def _rows(self, forms: list[Form]) -> Iterable[tuple[Any, ...]]:
        return zip(*map(self._values, forms), strict=True)

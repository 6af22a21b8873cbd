"""Elements on their way through a buffer: several of one bundle together, each in bytes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from apache_beam import coders
from apache_beam.utils import windowed_value
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, WindowedValue

from headrace.core.errors import as_type_name
from headrace.core.transferable import short_repr


class Misfit(NamedTuple):
    """In the place of an element that cannot be encoded, or not decoded again."""

    text: str
    """Stands for it."""
    problem: str
    """What is wrong, and the cure."""


class Chunk(NamedTuple):
    """Elements of one bundle and one buffer in order of arrival; plain values, so that Beam encodes it fast."""

    elements: Sequence[bytes]
    """Each encoded; nothing where it cannot be."""
    types: Sequence[str]
    """The name of each one's type; a single one if that is everybody's."""
    misfits: Mapping[int, tuple[str, str]]
    """By their places, the fields of those that cannot be encoded."""
    micros: Sequence[int]
    """The timestamp of each, in microseconds."""
    sizes: Sequence[float] | None
    """The size of each; None: each counts as 1."""
    panes: Sequence[tuple[Any, ...]] | None
    """The fields of each one's pane; None: no pane is known."""
    windows: Sequence[bytes] | None
    """The window of each; None: it is the buffer's."""
    model: int
    """Where among the models the one is that is asked how large a batch should be."""
    waited_secs: float
    """Since the first one came."""


Part: TypeAlias = tuple[tuple[Any, ...], int, int]
"""A chunk's fields, and where in it a batch's elements begin and end."""


class ChunkCoder:
    """How elements become a chunk, and come out of it.

    Each has its own bytes, which costs from half a microsecond (a dict) to 5 (an array) more than to pickle them
    together: one that does not come out would take the others of its chunk along, and come back for ever.

    Args:
        element_coder: of the PCollection. Where it is the one for any type, elements are pickled.
        window_coder: of its windows, if buffers are in the global window: where windows merge, every element has one of
            its own until they are grouped, and what is kept for one window never meets others. None: they are in these.
    """

    def __init__(self, element_coder: coders.Coder, window_coder: coders.Coder | None = None) -> None:
        any_type = type(element_coder) is coders.FastPrimitivesCoder
        self._coder = coders.PickleCoder() if any_type else element_coder
        self.window_coder = window_coder

    def encode(
        self, arrived: Sequence[WindowedValue], sizes: Sequence[float] | None, model: int, waited_secs: float
    ) -> Chunk:
        """A chunk of elements, which have one window each if buffers are in the global window."""
        panes = [one.pane_info for one in arrived]
        known = any(pane is not PANE_INFO_UNKNOWN and pane != PANE_INFO_UNKNOWN for pane in panes)
        coder, values = self.window_coder, [one.value for one in arrived]
        types = list(map(type, values))
        elements, errors = _each(self._coder.encode, values, b"")
        return Chunk(
            elements=elements,
            types=list(map(as_type_name, types if len(set(types)) > 1 else types[:1])),
            misfits={place: (short_repr(values[place]), _problem("encoded", error)) for place, error in errors.items()},
            micros=[one.timestamp_micros for one in arrived],
            sizes=sizes,
            panes=[_fields(pane) for pane in panes] if known else None,
            windows=None if coder is None else [coder.encode(one.windows[0]) for one in arrived],
            model=model,
            waited_secs=waited_secs,
        )

    def decode(self, chunk: Chunk, window: Any) -> list[WindowedValue]:
        """The elements in their places, or their misfits; ``window`` is the buffer's."""
        elements, errors = _each(self._coder.decode, chunk.elements)
        for place in {*errors, *chunk.misfits}:
            name = chunk.types[place % len(chunk.types)]
            text, problem = chunk.misfits.get(place) or (f"<{name}>", _problem("decoded", errors[place]))
            elements[place] = Misfit(text, f"an element of type {name} {problem}")
        return list(map(windowed_value.create, elements, chunk.micros, self._windows(chunk, window), _panes(chunk)))

    def _windows(self, chunk: Chunk, window: Any) -> Iterator[tuple[Any]]:
        if self.window_coder is None or chunk.windows is None:
            return iter([(window,)] * len(chunk.micros))
        return ((self.window_coder.decode(own),) for own in chunk.windows)


def _fields(pane: PaneInfo) -> tuple[Any, ...]:
    return (pane.is_first, pane.is_last, pane.timing, pane.index, pane.nonspeculative_index)


def _panes(chunk: Chunk) -> Iterator[PaneInfo]:
    if chunk.panes is None:
        return iter([PANE_INFO_UNKNOWN] * len(chunk.micros))
    return (PaneInfo(*fields) for fields in chunk.panes)


def _each(
    function: Callable[[Any], Any], items: Sequence[Any], instead: Any = None
) -> tuple[list[Any], dict[int, Exception]]:
    """What a function gives for each item, something else where it raises; and, by their places, what it raised."""
    try:
        return [function(item) for item in items], {}
    except Exception:
        results: list[Any] = []
        errors: dict[int, Exception] = {}
        for place, item in enumerate(items):
            try:
                results.append(function(item))
            except Exception as error:
                results.append(instead)
                errors[place] = error
        return results, errors


def _problem(what: str, error: Exception) -> str:
    return (
        f"cannot be {what}, as is needed while it waits for others ({short_repr(error)}); make its class one that "
        "pickles and unpickles, register a coder for it, or turn it into plain values before RunInference."
    )

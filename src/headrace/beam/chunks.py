"""Elements on their way through a buffer: several of one bundle together, encoded once and decoded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from apache_beam import coders
from apache_beam.utils import windowed_value
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, WindowedValue


class Chunk(NamedTuple):
    """Elements of one bundle and one buffer in order of arrival; plain values, so that Beam encodes it fast."""

    elements: bytes
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

    Args:
        element_coder: of the PCollection. Where it is the one for any type, elements are pickled together, which takes
            a third of the time that it takes one by one.
        window_coder: of its windows, if buffers are in the global window: where windows merge, every element has one of
            its own until they are grouped, and what is kept for one window never meets others. None: they are in these.
    """

    def __init__(self, element_coder: coders.Coder, window_coder: coders.Coder | None = None) -> None:
        any_type = type(element_coder) is coders.FastPrimitivesCoder
        self._coder = coders.PickleCoder() if any_type else coders.ListCoder(element_coder)
        self.window_coder = window_coder

    def encode(
        self, arrived: Sequence[WindowedValue], sizes: Sequence[float] | None, model: int, waited_secs: float
    ) -> Chunk:
        """A chunk of elements, which have one window each if buffers are in the global window."""
        panes = [one.pane_info for one in arrived]
        known = any(pane is not PANE_INFO_UNKNOWN and pane != PANE_INFO_UNKNOWN for pane in panes)
        coder = self.window_coder
        return Chunk(
            elements=self._coder.encode([one.value for one in arrived]),
            micros=[one.timestamp_micros for one in arrived],
            sizes=sizes,
            panes=[_fields(pane) for pane in panes] if known else None,
            windows=None if coder is None else [coder.encode(one.windows[0]) for one in arrived],
            model=model,
            waited_secs=waited_secs,
        )

    def decode(self, chunk: Chunk, window: Any) -> list[WindowedValue]:
        """The elements in their places; ``window`` is the buffer's."""
        elements = self._coder.decode(chunk.elements)
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

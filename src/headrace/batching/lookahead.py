"""Sorts many elements at once, so that those of a batch are of similar length and need little padding."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from headrace.batching.batcher import Batch, footprint, measured
from headrace.batching.size import SizeController
from headrace.core.config import BatchingConfig

_LITTLE, _MUCH = 1 / 8, 1 / 4
"""Shares of a padded batch: padding up to the first never ends a batch; above the second it is always too much."""


class LengthOfTag:
    """A ``length_fn`` for elements whose tags say how long they are, in an attribute ``length``."""

    def __call__(self, tag: Any) -> float:
        """The length of the tag's element."""
        length: float = tag.length
        return length


class _Measured(NamedTuple):
    element: Any
    tag: Any
    length: float
    size: float
    """Its size without padding; a batch's padded size is the number of elements times the largest size."""


class Lookahead:
    """Collects preprocessed elements until they are enough, and cuts them into batches on demand, longest first.

    Elements of equal length stay in order. A batch of fewer elements than ``config`` asks for does not end because of
    its target or its padding; a single element always leaves, however large it is.

    Args:
        config: of elements that are sorted.
        sizes: asked for each batch as it is cut; it counts padding unless all batches have the same size.
    """

    def __init__(self, config: BatchingConfig, sizes: SizeController) -> None:
        self._sizes = sizes
        self._size_fn, self._length_fn = config.element_size_fn, config.length_fn
        self._measures_tags = isinstance(config.length_fn, LengthOfTag)
        self._enough = config.lookahead if config.sizes_are_weights else max(config.lookahead, config.min_batch_size)
        self._boundaries = config.bucket_boundaries or ()
        self._target_is_padded = config.learns_from_weights
        self._minds_padding = config.learns_from_weights and not config.sizes_are_weights
        """Whether a batch ends before it has more padding than another batch costs."""
        self._min_count, self._max_count = float(config.min_batch_size), float(config.max_batch_size)
        self._max_padded: float = config.max_batch_weight or math.inf
        """Largest product of the number of elements and the largest size."""
        if config.sizes_are_weights:
            self._min_count, self._max_count, self._max_padded = 1.0, math.inf, config.max_batch_size
        self._elements: list[_Measured] = []
        self.bytes = 0.0
        """Roughly how many bytes the waiting elements take."""

    def __len__(self) -> int:
        return len(self._elements)

    def hold(self, element: Any, tag: Any) -> None:
        """Adds an element; raises if its size or length cannot be determined."""
        size = measured("element_size_fn", self._size_fn, element) if self._size_fn else 1
        length = (
            measured("length_fn", self._length_fn, tag if self._measures_tags else element) if self._length_fn else size
        )
        self._elements.append(_Measured(element, tag, length, size if self._size_fn else length))
        self.bytes += footprint(element)

    def add(self, element: Any, tag: Any) -> Iterable[Batch]:
        """Adds an element; returns the batches of all, if they are enough."""
        self.hold(element, tag)
        return self.all() if len(self) >= self._enough else ()

    def all(self) -> Iterator[Batch]:
        """Removes everything and yields it in batches; each is cut only on demand, after the last has been timed."""
        self.bytes = 0.0
        elements, self._elements = self._elements, []
        elements.sort(key=attrgetter("length"), reverse=True)
        for _, bucket in groupby(elements, self._bucket):
            rest = list(bucket)
            start = 0
            while start < len(rest):
                stop, padded = self._end(rest, start)
                yield _batch(rest[start:stop], padded)
                start = stop

    def _bucket(self, one: _Measured) -> int:
        return bisect_right(self._boundaries, one.length)

    def _end(self, elements: Sequence[_Measured], start: int) -> tuple[int, float]:
        """Index after the last element of the batch that begins at ``start``, and the batch's padded size."""
        target, max_size, overhead = self._sizes.target(), self._sizes.max_size(), self._sizes.overhead()
        largest = useful = elements[start].size
        count = 1
        for element in elements[start + 1 :]:
            larger = max(largest, element.size)
            padded = larger * (count + 1)
            if count >= self._max_count or padded > self._max_padded:
                break
            size = padded if self._target_is_padded else count + 1
            useful += element.size
            is_enough = size > target or (self._minds_padding and _is_wasteful(padded, useful, overhead))
            if size > max_size or (is_enough and count >= self._min_count):
                break
            largest, count = larger, count + 1
        return start + count, largest * count


def _is_wasteful(padded: float, useful: float, overhead: float) -> bool:
    return padded - useful > min(max(overhead, padded * _LITTLE), padded * _MUCH)


def _batch(elements: Sequence[_Measured], padded: float) -> Batch:
    useful = sum(one.size for one in elements)
    return Batch([one.element for one in elements], [one.tag for one in elements], padded, useful)

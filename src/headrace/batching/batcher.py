"""Collects elements until a batch is full, by number, by weight, or by the bytes that they are estimated to take."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from headrace.core.config import BatchingConfig

_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))
_DEEPEST = 3
_SAMPLE = 16
"""How many items of a longer container are measured; they stand for all."""


class Batch(NamedTuple):
    """Elements and their tags in two parallel lists, which cost less per element than a list of pairs."""

    elements: list[Any]
    tags: list[Any]
    weight: float = 0
    """Sum of the elements' weights, or number of elements times the largest if padding counts; 0 without weights."""
    useful: float = 0
    """Sum of the elements' weights if ``weight`` counts padding; else 0."""
    cache_keys: Sequence[bytes | None] = ()
    """If predictions are cached: what the cache knows each element's by; None: it cannot be known."""

    @property
    def total(self) -> int:
        """The number of elements."""
        return len(self.elements)

    def pick(self, positions: Sequence[int]) -> tuple[Batch, Sequence[int]]:
        """The elements at these positions, in that order, with a proportional weight; and each one's position."""
        share = len(positions) / max(1, len(self.elements))
        elements, tags = ([these[place] for place in positions] for these in (self.elements, self.tags))
        cache_keys = [self.cache_keys[place] for place in positions] if self.cache_keys else ()
        return Batch(elements, tags, self.weight * share, self.useful * share, cache_keys=cache_keys), positions


class Batcher:
    """Cuts a stream of elements into batches, in order.

    A batch never exceeds ``max_count`` elements or ``max_weight`` in total, except that an element heavier than
    ``max_weight`` forms a batch alone. A batch leaves when its size reaches ``target()``, where size is the number of
    elements, or their weight if ``target_is_weight``. It also leaves when its elements take about ``max_bytes`` and
    its size is at least ``min_size``.

    Args:
        target: the size at which a batch leaves; called once for each batch, at its first element.
        max_weight: largest sum of weights; None: no limit.
        target_is_weight: whether ``target`` counts weight rather than elements.
        max_bytes: the bytes at which a batch leaves before its target.
        min_size: the smallest size of a batch that leaves for its bytes.
    """

    def __init__(
        self,
        target: Callable[[], int],
        max_count: float,
        max_weight: float | None = None,
        *,
        target_is_weight: bool = False,
        max_bytes: float = math.inf,
        min_size: float = 1,
    ) -> None:
        self._ask_target = target
        self._max_count = max_count
        self._max_weight = max_weight
        self._target_is_weight = target_is_weight
        self._max_bytes = max_bytes
        self._min_size = min_size
        self._waiting = WaitingBytes(max_bytes)
        self._begin()

    def __len__(self) -> int:
        return len(self._elements)

    @property
    def bytes(self) -> float:
        """Estimated bytes of the waiting elements."""
        return self._waiting.bytes

    def add(self, element: Any, tag: Any) -> Batch | None:
        """Adds an element without weight; returns the batch that it completes, if any."""
        if self._max_count == 1:
            return Batch([element], [tag])
        self._tags.append(tag)
        self._elements.append(element)
        if len(self._elements) < self._next_count:
            return None
        return self.flush() if self._is_full() else None

    def add_weighed(self, element: Any, tag: Any, weight: float) -> list[Batch]:
        """Adds an element with a weight; returns the batches that leave: none, one or two."""
        leaving = []
        if self._elements and self._max_weight is not None and self._weight + weight > self._max_weight:
            leaving.append(self.flush())
        self._elements.append(element)
        self._tags.append(tag)
        self._weight += weight
        if self._is_full():
            leaving.append(self.flush())
        return leaving

    def flush(self) -> Batch:
        """Returns what has been collected, possibly nothing, as a batch."""
        batch = Batch(self._elements, self._tags, self._weight)
        self._begin()
        return batch

    def _begin(self) -> None:
        self._elements: list[Any] = []
        self._tags: list[Any] = []
        self._weight: float = 0
        if self._waiting.next_measurement > 1:
            self._waiting.clear()
        self._target: float = 0  # asked for with the first element, when the last batch has been timed
        self._next_count: float = 0
        """Without weights, a batch of fewer elements is not full."""

    def _is_full(self) -> bool:
        if self._target == 0:
            self._target = self._ask_target()
        count, waiting = len(self._elements), self._waiting
        size = self._weight if self._target_is_weight else count
        heavy = self._max_weight is not None and self._weight >= self._max_weight
        full = heavy or size >= self._target or count >= self._max_count
        if full and count == 1:
            return True  # nothing waits for it, however large it is: there is nothing to measure
        if count >= waiting.next_measurement:
            waiting.measure(self._elements)
        self._next_count = min(self._target, self._max_count, waiting.next_measurement)
        return full or (waiting.bytes >= self._max_bytes and size >= self._min_size)


def measured(name: str, function: Callable[[Any], float], element: Any) -> float:
    """The size or length of an element, by the function that is called so; raises ValueError if it is none."""
    size = function(element)
    if not 0 <= size < math.inf:  # NaN fails this test, too
        raise ValueError(f"{name} must return a finite number of at least 0, not {size!r}.")
    return size


def footprint(value: Any, depth: int = 0) -> float:
    """Estimated bytes of an array's buffer, a text, or the contents of a container or object; never raises."""
    try:
        nbytes = None if type(value) in _PLAIN else getattr(value, "nbytes", None)  # arrays, tensors, memory views
        if isinstance(nbytes, int):
            return nbytes
        own = sys.getsizeof(value, 64)
        if type(value) in _PLAIN or isinstance(value, str | bytes | bytearray) or depth == _DEEPEST:
            return own
        if isinstance(value, Mapping):
            return own + _items(list(islice(value.values(), _SAMPLE)), len(value), depth)
        if isinstance(value, list | tuple):
            return own + _items(value[:_SAMPLE], len(value), depth)
        fields = getattr(value, "__dict__", None)
        return own + (_items(list(fields.values())[:_SAMPLE], len(fields), depth) if fields else 0)
    except Exception:  # from a user's property or container
        return 64


def _items(sample: Any, count: int, depth: int) -> float:
    return sum(footprint(item, depth + 1) for item in sample) * count / max(1, len(sample))


class WaitingBytes:
    """Estimates the bytes of a growing list's elements, and measures only some of them, block by block.

    Measuring an element takes longer than queueing it, so of a block of small elements only a few are measured. After
    a large one all are, until many blocks in a row are small. The larger the elements, the shorter the blocks, so that
    the bound is exceeded by at most a sixteenth, unless large elements begin to arrive after very many small ones.

    Args:
        bound: the number of bytes whose crossing must be noticed in time.
    """

    _LONGEST_BLOCK = 128
    _SHARE = 1 / 16
    """Largest part of the bound that one block may take."""
    _LIGHT = 1 / 1024
    """Part of the bound below which an element is small, so that a few stand for all."""
    _FEW = 4
    _PATIENCE = 32
    """How many small blocks in a row are measured in full after a large element."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._block = 1
        self._drawn = 0
        self._careful = 0
        """How many more blocks of small elements to measure in full."""
        self.clear()

    def clear(self) -> None:
        """Starts with an empty list, but keeps the block length: elements are likely to be as large as before."""
        self.bytes = 0.0
        self._seen = 0
        self.next_measurement: float = 1
        """The length of the list at which to call ``measure`` again."""

    def measure(self, elements: Sequence[Any]) -> None:
        """Measures the elements that are new in the list."""
        count = len(elements) - self._seen
        looks_at_all = self._careful or count <= self._FEW
        sizes = list(map(footprint, elements[self._seen :] if looks_at_all else self._few_of(elements, count)))
        largest = max(sizes)
        if largest > self._LIGHT * self._bound:
            self._careful = self._PATIENCE
            sizes = sizes if looks_at_all else list(map(footprint, elements[self._seen :]))
            largest = max(sizes)
        elif self._careful:
            self._careful -= 1
        self.bytes += sum(sizes) * (count / len(sizes))
        self._seen += count
        fitting = min(self._LONGEST_BLOCK, self._SHARE * self._bound / max(1, largest))
        self._block = max(1, min(2 * self._block, int(fitting)))
        self.next_measurement = self._seen + self._block

    def _few_of(self, elements: Sequence[Any], count: int) -> Sequence[Any]:
        """A few of the last ``count``, at pseudo-random places that avoid patterns in the data but are reproducible."""
        drawn = self._drawn = (self._drawn * 1_664_525 + 1_013_904_223) % 2**32  # Knuth, Lewis: Numerical Recipes
        return [elements[-1 - (drawn >> shift) % count] for shift in (4, 10, 16, 22)]


class Gathered(NamedTuple):
    """A summary of elements that wait together, in plain numbers that any state can hold."""

    target: float
    """The size at which they leave, set when the first one arrived."""
    due: float
    """When they leave at the latest, in seconds of the caller's clock."""
    earliest: int
    """Their smallest timestamp in microseconds, at which the caller holds the watermark until they have left."""
    elements: int = 0
    total: float = 0
    largest: float = 0

    def plus(self, size: float, timestamp: int) -> Gathered:
        """The summary with one more element."""
        target, due, earliest, elements, total, largest = self
        earliest = min(earliest, timestamp)
        return Gathered(target, due, earliest, elements + 1, total + size, size if size > largest else largest)


class GatherPolicy:
    """Decides when elements fill a batch.

    Args:
        measured: whether sizes are known while elements wait; they are not if preprocessing comes later. Then a batch
            whose size is a weight is never full, and at most ``lookahead`` elements wait.
    """

    def __init__(self, config: BatchingConfig, *, measured: bool) -> None:
        self._config = config
        self._blind = config.learns_from_weights and not measured
        self._weighs = measured and (config.sizes_are_weights or config.sorts)
        self._most = config.lookahead if self._blind else config.max_batch_size
        self._heaviest = config.max_batch_size if config.sizes_are_weights else config.max_batch_weight or math.inf

    def take(self, gathered: Gathered, micros: Sequence[int], sizes: Sequence[float] | None) -> tuple[Gathered, int]:
        """Adds elements in order until the batch is full; returns the new summary and how many were added.

        Elements have timestamps in microseconds, ``micros``, and ``sizes``; None: 1 each.
        """
        for count, (size, stamp) in enumerate(zip(sizes or [1] * len(micros), micros, strict=True)):
            more = gathered.plus(size, stamp)
            is_too_heavy = self._weighs and self._weight(more) > self._heaviest
            if gathered.elements and (is_too_heavy or self.is_full(gathered)):
                return gathered, count
            gathered = more
        return gathered, len(micros)

    def is_full(self, gathered: Gathered) -> bool:
        """Whether the elements should leave."""
        if gathered.elements >= self._most or (self._weighs and self._weight(gathered) >= self._heaviest):
            return True
        if self._blind:
            return False
        if not self._config.learns_from_weights:
            return gathered.elements >= gathered.target
        enough = self._config.sizes_are_weights or gathered.elements >= self._config.min_batch_size
        return enough and self._weight(gathered) >= gathered.target

    def _weight(self, gathered: Gathered) -> float:
        """Weight of a batch of these elements; includes padding if elements are sorted to reduce it."""
        return gathered.elements * gathered.largest if self._config.sorts else gathered.total

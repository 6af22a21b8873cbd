"""Of equal elements one is on its way, and the others wait for it."""

from __future__ import annotations

from headrace.batching.batcher import Batch
from headrace.runtime.duplicates import Duplicates


def batch_of(*keys):
    return Batch([*map(str, keys)], [*range(len(keys))], cache_keys=keys)


def test_batch_without_duplicates_is_left_alone():
    batch = batch_of(b"a", None, b"b", None)
    assert Duplicates().hold("m", batch) is batch


def test_duplicates_wait_until_the_first_is_back():
    duplicates = Duplicates()
    first = duplicates.hold("m", batch_of(b"a", b"b", b"a", None))
    assert first.cache_keys == [b"a", b"b", None]
    assert first.tags == [0, 1, 3]
    assert duplicates.hold("m", batch_of(b"b", b"b")) is None
    assert [(name, batch.tags) for name, batch in duplicates.release([b"b", None])] == [("m", [0]), ("m", [1])]
    assert [batch.tags for _, batch in duplicates.release([b"a", b"b"])] == [[2]]
    assert duplicates.hold("m", batch_of(b"a", b"b")).total == 2

"""Of equal elements one is on its way, and the others wait for it."""

from __future__ import annotations

import threading

from headrace import RemoteModelHandler, predict
from headrace.batching.batcher import Batch
from headrace.runtime.request_executor import InFlightDedup


def batch_of(*keys):
    return Batch([*map(str, keys)], [*range(len(keys))], cache_keys=keys)


def test_duplicates_wait_until_the_first_is_back():
    duplicates = InFlightDedup()
    first = duplicates.defer("m", batch_of(b"a", b"b", b"a", None))
    assert first.cache_keys == [b"a", b"b", None]
    assert first.tags == [0, 1, 3]
    assert duplicates.defer("m", batch_of(b"b", b"b")) is None
    assert [(name, batch.tags) for name, batch in duplicates.resume([b"b", None])] == [("m", [0]), ("m", [1])]
    assert [batch.tags for _, batch in duplicates.resume([b"a", b"b"])] == [[2]]
    assert duplicates.defer("m", batch_of(b"a", b"b")).total == 2


def test_elements_whose_equal_has_failed_are_asked_for_side_by_side(tmp_path):
    """Each but the first one waits for another one. Answers come before, so that several may be in flight."""
    pair, sent = threading.Barrier(2), []

    class Refused(Exception):
        status_code = 422

    class Failing(RemoteModelHandler):
        def create_client(self):
            return None

        def request(self, batch, model, inference_args=None):
            if batch[0] > 1:
                return batch
            sent.append(batch)
            if len(sent) > 1:
                pair.wait(60)
            raise Refused

        def batch_elements_kwargs(self):
            return {"max_batch_size": 1}

        def cache_key(self):
            return "failing"

    found = list(predict(Failing(), [*range(2, 302), *[1] * 5], on_failure="yield", cache=str(tmp_path / "cache")))
    assert found[:300] == [*range(2, 302)]
    assert [type(one.error) for one in found[300:]] == [Refused] * 5
    assert len(sent) == 5

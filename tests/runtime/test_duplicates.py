"""Of equal elements one is on its way, and the others wait for it."""

from __future__ import annotations

import threading

from headrace import RemoteModelHandler, predict


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

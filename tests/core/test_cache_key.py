"""What decides a handler's predictions is in its key; secrets, and when and how it asks, are not."""

from __future__ import annotations

import os
import threading

import pytest

from headrace import ConfigurationError, ModelHandler, RemoteModelHandler
from headrace.core.cache_key import default_cache_key, file_stamps
from headrace.core.fingerprint import fingerprint


class Asks(RemoteModelHandler):
    def __init__(self, model="m", url="u", api_key="k", temperature=0.0, **options):
        super().__init__(**options)
        self.model = model
        self.url = url
        self.api_key = api_key
        self._auth_token = api_key
        self.temperature = temperature

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        return batch


class Local(ModelHandler):
    def __init__(self, model_uri, **options):
        super().__init__(**options)
        self.model_uri = model_uri


def key(handler):
    return fingerprint(default_cache_key(handler))


@pytest.mark.parametrize("other", [{"model": "n"}, {"url": "v"}, {"temperature": 1.0}])
def test_model_endpoint_and_parameters_decide(other):
    assert key(Asks(**other)) != key(Asks())


@pytest.mark.parametrize("other", [{"api_key": "l"}, {"num_retries": 1}, {"namespace": "n"}, {"retry_filter": bool}])
def test_secrets_and_ways_to_ask_do_not_decide(other):
    assert key(Asks(**other)) == key(Asks())


def test_batch_sizes_and_functions_before_and_after_do_not_decide():
    changed = Local("m", max_batch_size=3).with_preprocess_fn(str).with_postprocess_fn(int)
    assert key(changed) == key(Local("m"))


def test_class_decides():
    class Others(Asks):
        pass

    assert key(Others()) != key(Asks())


def test_file_that_changes_decides(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"one")
    before = key(Local(str(path)))
    assert key(Local(str(path))) == before
    path.write_bytes(b"other")
    assert key(Local(str(path))) != before


def test_folder_of_files_that_change_decides(tmp_path):
    (tmp_path / "deep").mkdir()
    weights = tmp_path / "deep" / "weights"
    weights.write_bytes(b"one")
    before = key(Local(str(tmp_path)))
    assert key(Local(str(tmp_path))) == before
    os.utime(weights, ns=(1, 1))
    assert key(Local(str(tmp_path))) != before


def test_stamps_are_those_of_existing_files_only(tmp_path):
    assert file_stamps(3) == file_stamps("no such file") == file_stamps("gs://bucket/model") == []
    (tmp_path / "a").write_bytes(b"123")
    assert [(name, size) for name, size, _ in file_stamps(tmp_path)] == [("a", 3)]


def test_attribute_that_cannot_be_compared_is_an_error_with_its_cure():
    handler = Asks()
    handler.lock = threading.Lock()
    with pytest.raises(ConfigurationError, match=r"predictions of Asks, .* 'lock' cannot be compared .* cache_key\(\)"):
        default_cache_key(handler)


def test_how_many_requests_an_engine_is_given_does_not_decide():
    handlers = [Local("m"), Local("m")]
    handlers[1].max_concurrent = 3
    assert key(handlers[0]) == key(handlers[1])

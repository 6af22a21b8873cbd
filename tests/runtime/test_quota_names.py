"""Handlers that ask the same endpoint share a limit, and others do not."""

from __future__ import annotations

import threading

import pytest

from headrace import ConfigurationError, KeyedModelHandler, KeyModelMapping, RemoteModelHandler
from headrace.runtime.prepare import InferenceRequest, prepare


class Asking(RemoteModelHandler):
    def __init__(self, url, **options):
        super().__init__(**options)
        self.url = url

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        return batch


class AskingElsewhere(Asking):
    pass


class Named(Asking):
    def quota_name(self):
        return "ours"


class NamedToo(AskingElsewhere, Named):
    pass


def name_of(handler):
    return dict(prepare(handler, InferenceRequest()).quota_names).get(None)


def test_handlers_that_differ_in_how_they_send_share_a_limit():
    options = {"namespace": "n", "num_retries": 1, "retry_filter": lambda _: False, "requests_per_minute": 5}
    assert name_of(Asking("a")) == name_of(Asking("a", **options)) is not None


def test_functions_are_told_apart_by_what_they_do():
    a, b = "a", "b"
    assert name_of(Asking(lambda: a)) != name_of(Asking(lambda: b))


def test_handler_names_its_quota():
    assert name_of(Named("a")) == name_of(NamedToo("b")) == "given ours"


def test_handler_that_cannot_be_pickled_shares_with_nobody():
    assert name_of(Asking(threading.Lock())) is None


def test_each_keyed_model_has_its_quota():
    handlers = [KeyModelMapping(["x"], Asking("a")), KeyModelMapping(["y"], Asking("b"))]
    names = prepare(KeyedModelHandler(handlers), InferenceRequest()).quota_names
    assert len({quota for _, quota in names}) == 2


def test_quota_name_that_is_no_text_is_refused(monkeypatch):
    monkeypatch.setattr(Named, "quota_name", lambda self: 5)
    with pytest.raises(ConfigurationError, match=r"Named\.quota_name must return a str or None, not 5"):
        prepare(Named("a"), InferenceRequest())

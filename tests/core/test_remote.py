"""The remote contract: what a subclass must and must not define."""

from __future__ import annotations

import pytest

from headrace import RemoteModelHandler, UnsupportedError, predict


class Echo(RemoteModelHandler):
    def create_client(self):
        return "client"

    def request(self, batch, model, inference_args=None):
        return batch


def test_both_methods_are_required():
    with pytest.raises(TypeError, match="create_client"):
        RemoteModelHandler()


def test_the_client_is_the_model():
    assert Echo(namespace="n", num_retries=1).load_model() == "client"


@pytest.mark.parametrize(("method", "instead"), [("load_model", "create_client"), ("run_inference", "request")])
def test_methods_that_headrace_calls_cannot_be_overridden(method, instead):
    with pytest.raises(TypeError, match=f"Cannot override RemoteModelHandler.{method}, implement {instead}"):
        type("Bad", (Echo,), {method: lambda self: None})


def test_running_a_remote_handler_is_refused_for_now():
    with pytest.raises(UnsupportedError, match=r"Remote inference \(Echo\)"):
        predict(Echo(), [1])
    with pytest.raises(UnsupportedError, match="Remote inference"):
        Echo().run_inference([1], "client")

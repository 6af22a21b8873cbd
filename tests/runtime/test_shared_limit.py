"""Endpoints obey what the user and the endpoint say, together with others that ask the same one."""

from __future__ import annotations

import threading
import time

import pytest

from headrace import (
    SKIP,
    ConfigurationError,
    ElementFailure,
    KeyedModelHandler,
    KeyModelMapping,
    RemoteModelHandler,
    predict,
    report_rate_limit,
    report_usage,
)
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, prepare
from http_endpoint import Answer, AsyncRemote, Remote, once, serving
from toys import run

pytestmark = pytest.mark.usefixtures("requests_end", "directory")

BOTH = pytest.mark.parametrize("kind", [Remote, AsyncRemote])


class Telling(RemoteModelHandler):
    """Reports what a function of the example says, and notes when requests leave."""

    def __init__(self, tell=lambda example: None, **options):
        super().__init__(**options)
        self.tell = tell
        self.times = []

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        self.times.append(time.monotonic())
        self.tell(batch[0])
        return batch

    def batch_elements_kwargs(self):
        return {"max_batch_size": 1}


class AsyncTelling(Telling):
    async def request(self, batch, model, inference_args=None):
        return super().request(batch, model)


TELLING = pytest.mark.parametrize("kind", [Telling, AsyncTelling])


def use_five_tokens(example):
    report_usage("m", input_tokens=3, output_tokens=2)


@TELLING
@pytest.mark.parametrize(
    "rate", [{"requests_per_minute": 1200}, {"tokens_per_minute": 6000}], ids=["requests", "tokens"]
)
def test_rates_that_the_user_gives_are_obeyed(kind, rate):
    handler, began = kind(use_five_tokens, **rate), time.monotonic()
    assert list(predict(handler, range(9))) == list(range(9))
    assert handler.times[-1] - began >= 7 * 0.05


def test_tokens_per_minute_without_usage_is_a_warning_once_there_is_a_prediction(caplog):
    class Sparing(Telling):
        def request(self, batch, model, inference_args=None):
            return [SKIP if example % 2 else ElementFailure(ValueError(example)) for example in batch]

    list(predict(Sparing(tokens_per_minute=6000), range(5), on_failure="yield"))
    assert "does not report" not in caplog.text
    list(predict(Telling(tokens_per_minute=6000), range(5)))
    assert caplog.text.count("does not report what requests use, so tokens_per_minute has no effect") == 1


@TELLING
def test_rate_limit_that_the_handler_reports_is_obeyed(kind):
    def tell(example):
        if example == 0:
            report_rate_limit({"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "300ms"})

    handler = kind(tell)
    assert list(predict(handler, range(3))) == [0, 1, 2]
    assert handler.times[1] - handler.times[0] >= 0.3


@BOTH
def test_rate_limit_in_the_headers_of_an_error_is_obeyed(kind):
    headers = {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "0.3"}
    with serving(once(Answer(429, headers=headers))) as server:
        began = time.monotonic()
        assert list(predict(kind(server.url), [1, 2])) == [2, 4]
        assert time.monotonic() - began >= 0.3


def test_transforms_that_ask_one_endpoint_share_its_limit(close_later):
    handlers = Telling(requests_per_minute=1200), Telling(requests_per_minute=1200)
    workers = [close_later(open_worker(prepare(handler, InferenceRequest()))) for handler in handlers]
    began = time.monotonic()
    assert [run(worker, [1]) for worker in 4 * workers] == [[1]] * 8
    assert max(handlers[0].times + handlers[1].times) - began >= 6 * 0.05


class Named(Remote):
    def quota_name(self):
        return "ours"


class NamedToo(Named):
    pass


def name_of(handler):
    return dict(prepare(handler, InferenceRequest()).quota_names).get(None)


def test_handlers_that_differ_in_how_they_send_share_a_limit_and_others_do_not():
    options = {"namespace": "n", "num_retries": 1, "retry_filter": lambda _: False, "requests_per_minute": 5}
    assert name_of(Remote("a")) == name_of(Remote("a", **options)) is not None
    a, b = "a", "b"
    assert name_of(Remote(lambda: a)) != name_of(Remote(lambda: b))
    assert name_of(Remote(threading.Lock())) is None
    handlers = [KeyModelMapping(["x"], Remote("a")), KeyModelMapping(["y"], Remote("b"))]
    names = prepare(KeyedModelHandler(handlers), InferenceRequest()).quota_names
    assert len({quota for _, quota in names}) == 2


def test_handler_names_its_quota():
    assert name_of(Named("a")) == name_of(NamedToo("b")) == "given ours"


def test_quota_name_that_is_no_text_is_refused(monkeypatch):
    monkeypatch.setattr(Named, "quota_name", lambda self: 5)
    with pytest.raises(ConfigurationError, match=r"Named\.quota_name must return a str or None, not 5"):
        prepare(Named("a"), InferenceRequest())

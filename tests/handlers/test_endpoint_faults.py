"""What can go wrong between a remote handler and its endpoint, with OpenAI's client.

A server on localhost does it; each element comes out once, as a prediction or as a dead letter.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import EndpointError, RetryConfig, predict
from headrace.core.events import BatchRetried
from headrace.handlers.openai_inference import OpenAIChatModelHandler
from http_endpoint import Answer, events_and_outcomes, failures_among, serving
from openai_endpoint import completion, prompts_of, refusing, self_signed, speaking

pytestmark = pytest.mark.usefixtures("module_travels")


@pytest.fixture(autouse=True)
def _key_in_the_environment(monkeypatch, requests_end):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")


def once(answer):
    return speaking(fault=lambda asked, before: None if before else answer)


def texts_of(outcomes):
    return sorted(getattr(one, "inference", one) for one in outcomes)


def asking(url, examples, **options):
    return events_and_outcomes(OpenAIChatModelHandler("m", url=f"{url}v1", num_retries=2), examples, **options)


@pytest.mark.parametrize(
    "fault",
    [
        refusing(429, headers={"Retry-After": "0.05"}),
        refusing(429, headers={"retry-after-ms": "50"}),
        refusing(429),
        refusing(500),
        refusing(503),
        refusing(529),
        Answer(503, b"<html>Bad gateway</html>", {"Content-Type": "text/html"}),
        Answer(cut=True),
        completion("a")._replace(cut_body=True),
    ],
    ids=["429-after", "429-after-ms", "429", "500", "503", "529", "503-html", "cut", "cut-body"],
)
def test_fault_that_passes_costs_a_retry_and_no_element(fault):
    with serving(once(fault)) as server:
        events, outcomes = asking(server.url, ["a", "b", "c"])
        assert len(server.requests) == 4
    assert texts_of(outcomes) == ["A", "B", "C"]
    assert len(events.of(BatchRetried)) == 1


@pytest.mark.large
@pytest.mark.parametrize("slow", [Answer(delay=60), completion("b")._replace(pause=60)], ids=["first-byte", "body"])
def test_answer_that_is_too_slow_costs_its_element(slow):
    with serving(speaking(fault=lambda asked, before: slow if prompts_of(asked) == ["b"] else None)) as server:
        _, outcomes = asking(server.url, ["a", "b", "c"], timeout_secs=3)
    (failure,) = failures_among(outcomes)
    assert failure.element == "b"
    assert isinstance(failure.error, TimeoutError)
    assert texts_of(one for one in outcomes if one is not failure) == ["A", "C"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "no-such-host.invalid"])
def test_server_that_was_never_there_is_one_error(host, nobody):
    with pytest.raises(EndpointError, match=r"nobody has answered for 0\.2 s: .*Check the URL"):
        asking(nobody.replace("127.0.0.1", host), ["a", "b"], retry=RetryConfig(timeout_secs=0.2))


def test_server_that_comes_late_is_waited_for_by_a_name_of_several_addresses(closed_port):
    handler = OpenAIChatModelHandler("m", url=f"http://localhost:{closed_port}/v1", num_retries=0)
    with ThreadPoolExecutor(1) as one:
        found = one.submit(list, predict(handler, ["a", "b"]))
        with serving(speaking(), address=("127.0.0.1", closed_port)):
            assert texts_of(found.result(60)) == ["A", "B"]


def test_certificate_that_nobody_trusts_is_one_error(tmp_path):
    with serving(speaking(), tls=self_signed(tmp_path)) as server:
        with pytest.raises(EndpointError, match="CERTIFICATE_VERIFY_FAILED"):
            list(predict(OpenAIChatModelHandler("m", url=f"{server.url}v1"), ["a"] * 9, on_failure="yield"))
        assert server.requests == []

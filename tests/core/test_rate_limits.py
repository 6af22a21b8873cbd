"""Headers of an answer reach the limit of the request during which they are reported."""

from __future__ import annotations

import contextvars
from email.message import Message

import pytest

from headrace import ConfigurationError, report_rate_limit
from headrace.core.rate_limits import headers_go_to


def test_report_outside_a_request_does_nothing():
    assert report_rate_limit({"x-ratelimit-remaining": "0"}) is None


def test_report_goes_to_the_sink_of_its_context_only():
    found = []

    def request():
        headers_go_to(found.append)
        report_rate_limit({"X-RateLimit-Remaining": 5})

    contextvars.copy_context().run(request)
    report_rate_limit({"X-RateLimit-Remaining": 6})
    assert found == [{"x-ratelimit-remaining": "5"}]


def test_headers_may_be_a_message():
    message = Message()
    message["X-Other"] = "5"
    assert report_rate_limit(message) is None


@pytest.mark.parametrize("wrong", [None, 5, "text", ["a"]], ids=repr)
def test_report_that_is_no_mapping_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="report_rate_limit needs an answer's headers"):
        report_rate_limit(wrong)

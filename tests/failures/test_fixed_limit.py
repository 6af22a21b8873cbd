"""How many requests an engine takes is known."""

from __future__ import annotations

import math

from headrace.core.phases import Look
from headrace.failures.concurrency import FixedLimit
from headrace.failures.known_rates import Allowance
from headrace.failures.outages import Verdict


def test_limit_is_kept_and_never_moves():
    limit = FixedLimit(2)
    assert limit.take(0, 3) == (2, math.inf)
    assert limit.look() == Look(gauges={"in_flight": 2})
    assert limit.take(1, 3) == (0, math.inf)
    for verdict in Verdict:
        limit.finished(2, 0, verdict, retry_after=5, size=1, tokens=3)
        assert limit.take(2, 1) == (1, math.inf)
    assert limit.take(3, 0) == (0, math.inf)
    assert limit.limit == limit.in_flight == 2


def test_nothing_holds_requests_back():
    limit = FixedLimit(1)
    limit.observe_headers(0, [Allowance(counts_tokens=False, remaining=0, reset_secs=60, limit=100)])
    assert limit.take(0, 1) == (1, math.inf)
    assert not limit.is_throttled
    assert limit.outage_began is None

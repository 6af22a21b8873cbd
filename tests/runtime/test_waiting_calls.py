"""Which of the calls that wait is next."""

from __future__ import annotations

import contextvars

import pytest

from headrace.batching.batcher import Batch
from headrace.runtime.endpoint_calls import EndpointCall, Inbox
from headrace.runtime.waiting_calls import WaitingCalls


def call_for(name, inbox=None):
    batch, context = Batch([name], [name], 1), contextvars.copy_context()
    return EndpointCall("", batch, None, [name], None, inbox or Inbox(), context, prefix=name)


@pytest.fixture
def waiting():
    """Three calls, whose first one is over."""
    waiting = WaitingCalls(for_engine=False)
    for name in "bca":
        waiting.append(call_for(name))
    waiting.finish_canary()
    return waiting


def names(waiting, *, newest=False):
    found = []
    while waiting:
        found += waiting.take(newest=newest).examples
    return "".join(found)


def test_calls_leave_in_the_order_in_which_they_came(waiting):
    assert (len(waiting), waiting.ready()) == (3, 3)
    assert names(waiting) == "bca"


def test_call_that_is_sent_again_goes_first_but_is_the_last_to_be_a_probe(waiting):
    waiting.put_in_front(call_for("z"))
    assert names(waiting, newest=True) == "acbz"


def test_first_call_goes_alone_until_it_is_over(waiting):
    waiting.reset_canary()
    assert waiting.ready() == 1
    first = waiting.take(newest=False)
    assert waiting.ready() == 0
    waiting.put_in_front(call_for("z"))
    waiting.append(first)
    assert waiting.ready() == 1
    assert waiting.take(newest=True) is first
    waiting.finish_canary()
    assert (waiting.ready(), names(waiting)) == (3, "zca")


def test_first_call_whose_bundle_is_abandoned_makes_room_for_another_one(waiting):
    waiting.reset_canary()
    first = waiting.take(newest=False)
    first.inbox.abandoned = True
    waiting.append(first)
    waiting.abandon()
    assert (len(waiting), waiting.ready()) == (2, 1)


def test_calls_for_an_engine_are_sorted_by_prefix_round_by_round():
    waiting = WaitingCalls(for_engine=True)
    for name in "bca":
        waiting.append(call_for(name))
    found = waiting.take(newest=False).examples
    waiting.append(call_for("a"))
    assert "".join(found) + names(waiting) == "abca"


def test_calls_are_removed_in_their_order(waiting):
    assert [call.prefix for call in waiting.remove(lambda call: call.prefix != "c")] == ["b", "a"]
    assert [call.prefix for call in waiting.remove()] == ["c"]
    assert not waiting.remove()

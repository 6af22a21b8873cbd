"""Hosts that are stopped in the middle of an answer: they are killed, and cost the element that they were at."""

from __future__ import annotations

import signal
import sys
import threading

import cloudpickle
import pytest

from headrace import predict
from headrace.ipc.channel import Channel
from http_endpoint import failures_among
from toy_engine import Engine
from toys import Acting, each

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("census", "requests_end")

LIMIT_SECS = 3.0
SIZE = 5_000
"""Of an answer: it leaves by the socket."""


def stop_in_the_middle():
    """Has this process stop, once, in the middle of the next large message."""
    whole = Channel._send

    def send(channel, parts, files):
        framed = b"".join(parts)
        if len(framed) >= SIZE:
            channel._socket.sendall(framed[: SIZE // 2])
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # before this thread goes on
        return whole(channel, parts, files)

    Channel._send = send


def answer(example):
    if example == 13:
        stop_in_the_middle()
        return bytes(SIZE)
    return example


async def act(example, engine):
    return answer(example)


@pytest.mark.large
@pytest.mark.parametrize("handler", [Acting(each(answer), max_batch_size=1), Engine(act)], ids=["batches", "engine"])
def test_host_that_is_stopped_in_the_middle_of_an_answer_is_killed(handler):
    found = list(predict(handler, [1, 13, 2], isolate=True, timeout=LIMIT_SECS, on_failure="yield"))
    (failure,) = failures_among(found)
    assert (failure.element, type(failure.error)) == (13, TimeoutError)
    assert sorted(one for one in found if one is not failure) == [1, 2]

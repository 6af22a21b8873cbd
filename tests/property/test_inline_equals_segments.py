"""A request and its response are the same, whether they go through the channel or through shared memory."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import PredictionResult
from headrace.hosts import connection, host
from headrace.hosts.client import ModelHosts
from headrace.hosts.host import Response
from headrace.hosts.provider import HostHandle
from headrace.ipc.channel import Channel
from headrace.ipc.progress import Progress
from headrace.ipc.segment import Segment


class Handler(host.RequestHandler):
    """Answers some rows, and may keep them."""

    unreadable = unsendable = None  # never called

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def answer(self, head, rows, progress):
        positions, keeps = head
        if keeps:
            self.kept = [rows, list(map(repr, rows))]
        return Response(
            head, [PredictionResult(rows[place], (place, repr(rows[place]))) for place in positions], positions
        )


class HostInThisProcess:
    """A provider of one host, which serves when it is told to."""

    def __init__(self) -> None:
        self.handler = Handler()
        self._progress = Segment.create(0, Progress.SIZE)
        self._mine, theirs = Channel.pair()
        self._client = host._Client(self.handler, Progress(self._progress.memory), theirs)
        self.serve = partial(self._client.serve, None)

    def host(self, number):
        return HostHandle(os.getpid(), self._mine, self._progress, None)

    def after_fork(self):
        pass

    def release(self, hosts):
        hosts._connections[0].release()
        self._client.close()


ROWS = st.lists(
    st.one_of(
        st.text(max_size=9),
        st.integers(),
        st.binary(max_size=5000),
        st.integers(0, 3000).map(lambda size: numpy.arange(size, dtype="f4")),
        st.integers(0, 2000).map(lambda size: {"x": numpy.full(size, 7), "y": [b"z" * size]}),
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def requests(draw):
    """Rows, the positions of those that are answered, whether the handler keeps them, and how many are in flight."""
    rows = draw(ROWS) if draw(st.booleans()) else [draw(ROWS)[0]] * draw(st.integers(1, 4))
    positions = draw(st.lists(st.integers(0, len(rows) - 1), max_size=5))
    return rows, positions, draw(st.booleans())


def responses(all_requests, longest_inline):
    provider = HostInThisProcess()
    hosts = ModelHosts(provider, "host", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "LONGEST_INLINE", longest_inline)
        patch.setattr(host, "LONGEST_INLINE", longest_inline)
        answers = [answer for some in all_requests for answer in _responses(provider, hosts, some)]
    provider.release(hosts)
    return answers


def _responses(provider, hosts, some):
    calls = [hosts.submit((positions, keeps), rows) for rows, positions, keeps in some]
    for _ in calls:
        provider.serve()
        if provider.handler.kept:
            kept, shown = provider.handler.kept
            assert list(map(repr, kept)) == shown
    for call, (rows, positions, keeps) in zip(calls, some, strict=True):
        answer = hosts.result(call)
        assert answer.head == (positions, keeps)
        assert all(row.example is rows[place] for row, place in zip(answer.rows, positions, strict=True))
        yield repr(answer.rows)


@given(st.lists(st.lists(requests(), min_size=1, max_size=12), min_size=1, max_size=3))
@settings(max_examples=40)
def test_responses_are_the_same_however_they_are_sent(all_requests):
    assert responses(all_requests, host.LONGEST_INLINE) == responses(all_requests, 300) == responses(all_requests, -1)

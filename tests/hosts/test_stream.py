"""The connection to a host that answers many requests side by side."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import cloudpickle
import pytest

from headrace.core.errors import HostStartError
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.hosts.provider import ExitCause, HostExit, HostFailure
from headrace.hosts.stream import HostStream, StreamedAnswer
from headrace.ipc.progress import Activity
from toy_hosts import has_ended
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("census")


class Streaming:
    """Answers as a function says, which gets each message, and a function that answers."""

    def __init__(self, act, farewell=None):
        self.act = act
        self.farewell = farewell

    def serve_stream(self, channel, progress):
        progress.mark(Activity.INFERENCE)
        with suppress(EOFError):
            while True:
                (number, content), _ = channel.receive()
                self.act(number, bytes(content), lambda to, text: channel.send_content(to, [text]))
        if self.farewell is not None:
            Path(self.farewell).touch()


@pytest.fixture
def open_stream(close_later):
    def make(act, timeout_secs=None, farewell=None):
        provider = close_later(ForkServerClient(cloudpickle.dumps(Streaming(act, farewell)), "toy"))
        return HostStream(provider, timeout_secs)

    return make


def echo(number, content, answer):
    answer(number, content)


def kill(number, content, answer):
    os.kill(os.getpid(), int(content))
    signal.pause()


def ended(stream):
    """How the host was lost, after all that it had to say."""
    while not isinstance(received := stream.receive(), HostFailure):
        pass
    return received


def test_answers_come_with_the_numbers_of_requests_in_any_order(open_stream):
    held = []

    def act(number, content, answer):
        held.append((number, content))
        if len(held) == 3:
            for one in reversed(held):
                answer(*one)

    stream = open_stream(act)
    for number in (7, 8, 9):
        stream.send(number, [b"content ", b"%d" % number])
    assert [stream.receive() for _ in range(3)] == [StreamedAnswer(n, b"content %d" % n) for n in (9, 8, 7)]
    stream.end()


def test_sending_does_not_wait_for_a_host_that_does_not_read(open_stream):
    stream = open_stream(lambda *_: signal.pause())
    for number in range(1, 20):
        stream.send(number, [bytes(1 << 20)])
    stream.end()


def test_message_may_be_large(open_stream):
    stream, large = open_stream(echo), os.urandom(10 << 20)
    stream.send(1, [large])
    assert stream.receive() == StreamedAnswer(1, large)
    stream.end()


def test_end_lets_the_host_finish_and_waits_for_it(open_stream, tmp_path):
    stream = open_stream(echo, farewell=str(tmp_path / "farewell"))
    stream.send(1, [b"x"])
    stream.end()
    assert (tmp_path / "farewell").exists()
    assert wait_until(lambda: has_ended(stream.process))


def test_host_that_does_not_end_is_killed(open_stream):
    stream = open_stream(lambda *_: signal.pause())
    stream.send(1, [b"x"])
    stream.end()
    assert wait_until(lambda: has_ended(stream.process))


def test_answers_before_a_death_arrive(open_stream):
    def act(number, content, answer):
        answer(number, content)
        if number == 3:
            kill(number, b"%d" % signal.SIGKILL, answer)

    stream = open_stream(act)
    for number in (1, 2, 3):
        stream.send(number, [b"x"])
    assert [stream.receive().number for _ in range(3)] == [1, 2, 3]
    failure = ended(stream)
    assert (failure.exit_text, failure.timed_out, failure.out_of_memory) == ("was killed by SIGKILL", False, False)


def test_exit_code_is_told(open_stream):
    stream = open_stream(lambda *_: os._exit(7))
    stream.send(1, [b"x"])
    assert ended(stream).exit_text == "ended itself with exit code 7"


def test_lack_of_memory_is_told(open_stream, monkeypatch):
    real = ForkServerClient.reap

    def reap(self, host, **options):
        return HostExit(real(self, host, **options).code, ExitCause.MEMORY)

    monkeypatch.setattr(ForkServerClient, "reap", reap)
    stream = open_stream(kill)
    stream.send(1, [b"%d" % signal.SIGKILL])
    failure = ended(stream)
    assert failure.out_of_memory
    assert failure.exit_text == "was killed by SIGKILL, since the machine had run out of memory"


def test_host_that_marks_nothing_for_longer_than_the_limit_is_killed(open_stream):
    stream = open_stream(lambda *_: signal.pause(), timeout_secs=0.5)
    stream.send(1, [b"x"])
    failure = ended(stream)
    assert (failure.timed_out, failure.exit_text) == (True, "was killed, having taken longer than 0.5 s")
    assert has_ended(stream.process)


def test_waiting_ends_when_another_thread_hangs_up(open_stream):
    stream = open_stream(echo)
    waiting = threading.Thread(target=ended, args=[stream])
    waiting.start()
    stream.hang_up()
    waiting.join(60)
    assert not waiting.is_alive()


def test_host_that_cannot_start_is_an_error(close_later):
    provider = close_later(ForkServerClient(b"no pickle", "toy"))
    with pytest.raises(HostStartError, match="toy"):
        HostStream(provider, None)

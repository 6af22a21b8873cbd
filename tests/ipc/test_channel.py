"""Messages and descriptors arrive whole and in order, or the end of the connection is seen."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading

import pytest

from headrace.ipc.channel import Channel

pytestmark = pytest.mark.usefixtures("census")

LONG = 60
MEGABYTE = 1 << 20


@pytest.fixture
def ends():
    ends = Channel.pair()
    yield ends
    for end in ends:
        end.close()


@contextlib.contextmanager
def thread(work, *args):
    one = threading.Thread(target=work, args=args)
    one.start()
    yield one
    one.join(LONG)
    assert not one.is_alive()


def raw(channel):
    """The socket itself, to send through it what no channel sends."""
    return socket.socket(fileno=os.dup(channel.fileno()))


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_message_arrives(ends):
    one, other = ends
    for message in (None, 0, "", {"a": [1, (2.5, b"x")]}, ["wörd"] * 1000):
        one.send(message)
        assert other.receive() == (message, [])
        other.send(message)
        assert one.receive() == (message, [])


def test_descriptors_arrive_with_their_message(ends, pipe):
    one, other = ends
    one.send("before")
    one.send("with", pipe)
    one.send("after")
    assert other.receive() == ("before", [])
    message, (read, write) = other.receive()
    assert other.receive() == ("after", [])
    os.write(write, b"through")
    assert (message, os.read(pipe[0], 100)) == ("with", b"through")
    assert not os.get_inheritable(read)
    assert not os.get_inheritable(write)
    os.close(read)
    os.close(write)


def test_an_end_that_is_closed_is_seen(ends):
    one, other = ends
    one.send("last")
    one.close()
    assert one.fileno() == -1
    assert other.receive() == ("last", [])
    for _ in range(2):
        with pytest.raises(EOFError):
            other.receive()
    with pytest.raises(BrokenPipeError):
        other.send("to nobody")


def test_an_end_in_the_middle_of_a_message_is_seen(pipe, descriptors):
    for size in (1, 7, 8, 16, 17, 255, 256, 257, 1015):
        one, other = Channel.pair()
        before = descriptors()
        with raw(one) as naked:
            socket.send_fds(naked, [(struct.pack("!QQ", 1000, 0) + bytes(1000))[:size]], pipe)
        one.close()
        with pytest.raises(EOFError):
            other.receive()
        assert descriptors() < before
        other.close()


def test_waiting_has_a_limit(ends):
    one, other = ends
    with pytest.raises(TimeoutError):
        other.receive(0.01)
    one.send("late")
    assert other.receive(0.01) == ("late", [])


@pytest.mark.parametrize("limit", ["timeout_secs", "stall_secs"])
@pytest.mark.parametrize("length", [30, 300])
def test_waiting_for_the_rest_of_a_message_has_a_limit(ends, limit, length):
    one, other = ends
    with raw(one) as naked:
        naked.sendall((struct.pack("!QQ", 1000, 0) + bytes(1000))[:length])
    with pytest.raises(TimeoutError):
        other.receive(**{limit: 0.01})
    with pytest.raises(EOFError):  # what would come next is no message
        other.receive(0.01)
    with pytest.raises(BrokenPipeError):
        one.send("next")


def test_several_threads_may_send(ends):
    one, other = ends

    def send(name):
        for number in range(50):
            one.send((name, number, bytes(number * 1000)))

    with contextlib.ExitStack() as stack:
        for name in range(8):
            stack.enter_context(thread(send, name))
        got = [other.receive(LONG)[0] for _ in range(8 * 50)]
    for name in range(8):
        assert [number for sender, number, _ in got if sender == name] == list(range(50))
    assert all(content == bytes(number * 1000) for _, number, content in got)


def test_a_message_that_does_not_pickle_harms_nothing(ends):
    one, other = ends
    with pytest.raises(Exception, match="pickle"):
        one.send(lambda: None)
    one.send("next")
    assert other.receive() == ("next", [])


def test_descriptors_for_which_there_is_no_room_are_an_error(ends, pipe, descriptors, no_more_files):
    one, other = ends
    one.send("with", pipe)
    before = descriptors()
    with no_more_files(spare=1), pytest.raises(OSError, match="Too many open files"):
        other.receive()
    assert descriptors() == before
    with pytest.raises(EOFError):
        other.receive()


def test_a_message_that_is_broken_off_by_ctrl_c_ends_the_connection(ends, interruptible):
    """The other side reads only part of it; what came after would be taken for the rest."""
    one, other = ends
    main = threading.main_thread().ident

    def interrupt():
        with raw(other) as naked:
            naked.recv(100)
        signal.pthread_kill(main, signal.SIGINT)

    with thread(interrupt), pytest.raises(KeyboardInterrupt):
        one.send(bytes(16 * MEGABYTE))
    with pytest.raises(BrokenPipeError):
        one.send("next")

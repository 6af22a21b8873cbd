"""Processes find one manager, in any order and whichever of them die meanwhile; never another user's."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from endpoints import running_managers, stale_endpoints
from headrace.core.errors import ConfigurationError
from headrace.machine.discovery import (
    _LONGEST_ADDRESS,
    DIRECTORY_VARIABLE,
    LONGEST_NAME,
    ManagerEndpoint,
    find,
    find_or_launch,
    runtime_directory,
)

PREAMBLE = """
import os, select, signal, socket, sys, threading
from headrace.machine.discovery import ManagerEndpoint, find, find_or_launch
directory = sys.argv[1]
def forked(serve):
    def launch(lock, listening):
        if os.fork() == 0:
            serve(ManagerEndpoint(directory, name, lock, listening))
            os._exit(0)
    return launch
def greeting(connection):
    with connection:
        try:
            return connection.recv(100)
        except ConnectionError:
            return b""
def say(*words):
    print(*words, flush=True)
"""

pytestmark = pytest.mark.usefixtures("census")


@pytest.fixture
def start(directory, popen):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return lambda code: popen([sys.executable, "-c", PREAMBLE + code, directory], **pipes)


@pytest.fixture
def take_endpoint(directory):
    endpoints = []

    def take(name="m"):
        def launch(lock, listening):
            endpoints.append(ManagerEndpoint(directory, name, os.dup(lock), os.dup(listening)))

        find_or_launch(directory, name, launch).close()
        endpoints[-1].accept().close()
        return endpoints[-1]

    yield take
    for endpoint in endpoints:
        endpoint.remove()


def no_launch(lock, listening):
    raise AssertionError("somebody sits there already")


def ends(connection):
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionError:
            return True


CHURN = """
name = "m"
def serve(endpoint):
    os.close(os.open(directory + "-sits", os.O_CREAT | os.O_EXCL))
    for _ in range(3):
        if not select.select([endpoint], [], [], 1)[0]:
            break
        endpoint.accept().sendall(b"welcome")
    os.remove(directory + "-sits")
    endpoint.remove()
def visit():
    while greeting(find_or_launch(directory, name, forked(serve))) != b"welcome":
        pass
for _ in range(60):
    visit()
"""


def test_managers_come_and_go_one_at_a_time_and_every_client_is_served(start, directory, wait_until):
    assert [visitor.wait(60) for visitor in [start(CHURN) for _ in range(4)]] == [0] * 4
    assert wait_until(lambda: not os.path.exists(directory))
    assert not os.path.exists(directory + "-sits")


def test_an_endpoint_that_is_taken_is_found(take_endpoint, directory):
    endpoint = take_endpoint()
    with find_or_launch(directory, "m", no_launch) as client, endpoint.accept() as served:
        assert not client.get_inheritable()
        assert client.gettimeout() is served.gettimeout() is None
        served.sendall(b"x")
        assert client.recv(1) == b"x"
    assert sorted(os.listdir(directory)) == ["m.lock", "m.sock"]
    assert {os.stat(os.path.join(directory, file)).st_mode & 0o777 for file in os.listdir(directory)} == {0o600}


def test_removing_an_endpoint_leaves_nothing_and_ends_waiting_connections(take_endpoint, directory):
    endpoint = take_endpoint()
    waiting = [find(directory, "m") for _ in range(3)]
    endpoint.remove()
    assert [ends(connection) for connection in waiting] == [True] * 3
    assert not os.path.exists(directory)
    assert endpoint.fileno() == -1
    endpoint.remove()
    with pytest.raises(OSError, match="Bad file descriptor"):
        endpoint.accept()


def test_removing_an_endpoint_spares_what_belongs_to_others(take_endpoint, directory):
    endpoint = take_endpoint()
    open(os.path.join(directory, "another.lock"), "w").close()
    endpoint.remove()
    assert os.listdir(directory) == ["another.lock"]
    assert stale_endpoints(directory) == ["another"]


def test_a_lock_file_that_was_cleaned_away_makes_no_second_manager(take_endpoint, directory):
    endpoint = take_endpoint()
    os.remove(os.path.join(directory, "m.lock"))
    find_or_launch(directory, "m", no_launch).close()
    endpoint.accept().close()


def test_a_lock_file_that_was_removed_before_it_was_locked_is_not_trusted(directory, monkeypatch):
    lock = fcntl.flock

    def remove_and_lock(file, operation):
        monkeypatch.setattr(fcntl, "flock", lock)
        os.remove(os.path.join(directory, "m.lock"))
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    find_or_launch(directory, "m", lambda lock, listening: None).close()
    assert sorted(os.listdir(directory)) == ["m.lock", "m.sock"]


def test_a_manager_keeps_the_lock_when_its_launcher_has_released_it(take_endpoint, directory):
    take_endpoint()
    os.remove(os.path.join(directory, "m.sock"))
    with pytest.raises(TimeoutError):
        find_or_launch(directory, "m", no_launch, timeout_secs=0)


def test_a_manager_whose_files_were_cleaned_away_spares_those_of_the_next(take_endpoint, directory):
    endpoint = take_endpoint()
    os.remove(os.path.join(directory, "m.lock"))
    os.remove(os.path.join(directory, "m.sock"))
    following = take_endpoint()
    endpoint.remove()
    find_or_launch(directory, "m", no_launch).close()
    following.accept().close()


LAUNCHER = """
name = "m"
def launch(lock, listening):
    say("bound")
    input()
find_or_launch(directory, name, launch)
"""


def test_a_launcher_that_is_killed_makes_room_for_another(start, take_endpoint, directory):
    launcher = start(LAUNCHER)
    assert launcher.stdout.readline() == "bound\n"
    assert (running_managers(directory), stale_endpoints(directory)) == (["m"], [])
    waiting = find(directory, "m")
    launcher.kill()
    assert launcher.wait(60) == -signal.SIGKILL
    assert ends(waiting)
    assert (running_managers(directory), stale_endpoints(directory)) == ([], ["m"])
    take_endpoint()
    assert (running_managers(directory), stale_endpoints(directory)) == (["m"], [])


def test_a_manager_that_dies_at_once_is_not_launched_again(directory):
    launches = []
    with find_or_launch(directory, "m", lambda lock, listening: launches.append(listening)) as client:
        assert ends(client)
    assert len(launches) == 1


def test_a_launch_that_fails_leaves_nothing(directory):
    with pytest.raises(ZeroDivisionError):
        find_or_launch(directory, "m", lambda lock, listening: 1 // 0)
    assert not os.path.exists(directory)


def test_waiting_for_a_stalled_launcher_times_out(directory):
    with open(os.path.join(directory, "m.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"held .*/m\.lock for 0\.05 s .* HEADRACE_RUNTIME_DIR"):
            find_or_launch(directory, "m", no_launch, timeout_secs=0.05)
        assert (running_managers(directory), stale_endpoints(directory)) == ([], [])


def test_waiting_with_too_many_others_times_out(take_endpoint, directory):
    take_endpoint()
    full = pytest.raises(TimeoutError, match=r"m\.sock has let nobody in for 0\.05 s")
    with contextlib.ExitStack() as waiting, full:
        for _ in range(1000):
            waiting.enter_context(find(directory, "m", timeout_secs=0.05))


# Where it is

NOBODY = 65534
IS_ROOT = os.geteuid() == 0


def test_the_directory_is_made_private(directory, monkeypatch):
    monkeypatch.setenv(DIRECTORY_VARIABLE, directory + "/a/b/")
    assert runtime_directory(make=False) == directory + "/a/b"
    assert os.listdir(directory) == []
    assert runtime_directory() == runtime_directory() == runtime_directory(make=False) == directory + "/a/b"
    assert os.stat(directory + "/a/b").st_mode & 0o777 == 0o700


def test_the_directory_survives_a_manager_that_removes_it_while_it_is_made(directory, monkeypatch):
    make = os.mkdir

    def make_in_vain(path, mode=0o777):
        monkeypatch.setattr(os, "mkdir", make)
        make(path, mode)
        os.rmdir(path)

    os.rmdir(directory)
    monkeypatch.setattr(os, "mkdir", make_in_vain)
    assert runtime_directory() == directory
    assert os.path.isdir(directory)


def test_the_sessions_directory_is_used_only_if_it_is_this_users(directory, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", directory)
    monkeypatch.setenv(DIRECTORY_VARIABLE, "")
    temporary = os.path.join(directory, f"headrace-{os.geteuid()}")
    for session in ("", str(tmp_path / "missing"), somebody_else_s(tmp_path)):
        monkeypatch.setenv("XDG_RUNTIME_DIR", session)
        assert runtime_directory() == temporary
    assert os.stat(temporary).st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    assert runtime_directory() == os.path.join(directory, "headrace")


def somebody_else_s(directory):
    """A directory of another user's."""
    if not IS_ROOT:
        return "/usr"
    theirs = os.path.join(directory, "theirs")
    os.mkdir(theirs)
    os.chown(theirs, NOBODY, NOBODY)
    return theirs


def as_public(directory):
    os.chmod(directory, 0o711)
    return directory, rf"other users have access to it \(mode 711; run: chmod 700 {directory}\). Cure"


def as_link(directory):
    os.symlink(directory, directory + "/link")
    return directory + "/link", "it is not a directory. Cure that, or set HEADRACE_RUNTIME_DIR to another directory"


def as_file(directory):
    open(directory + "/file", "w").close()
    return directory + "/file", "it is not a directory. Cure"


def in_file(directory):
    path, _ = as_file(directory)
    return path + "/run", "it cannot be made: Not a directory. Cure"


def of_another_user(directory):
    user = NOBODY if IS_ROOT else 0
    return somebody_else_s(directory), f"it belongs to user {user}, and this process to user {os.geteuid()}. Cure that"


@pytest.mark.parametrize("spoil", [as_public, as_link, as_file, in_file, of_another_user])
def test_an_unusable_directory_is_refused_with_the_cure(directory, monkeypatch, spoil):
    path, reason = spoil(directory)
    monkeypatch.setenv(DIRECTORY_VARIABLE, path)
    with pytest.raises(ConfigurationError, match=f"through the runtime directory {path}: {reason}"):
        runtime_directory()


def test_the_longest_path_has_room_for_an_endpoint(directory, monkeypatch):
    longest = _LONGEST_ADDRESS - len("/" + "n" * LONGEST_NAME + ".sock")
    path = os.path.join(directory, "x" * (longest - len(directory) - 1))
    monkeypatch.setenv(DIRECTORY_VARIABLE, path)
    assert len(runtime_directory()) == longest
    find_or_launch(path, "n" * LONGEST_NAME, lambda lock, listening: None).close()
    monkeypatch.setenv(DIRECTORY_VARIABLE, path + "x")
    with pytest.raises(ConfigurationError, match="its path is too long to hold the address of a socket"):
        runtime_directory()

"""How the processes of one user find their machine's manager: through its endpoint in a private directory.

An endpoint is two files: ``<name>.lock``, which the manager keeps locked for life, and ``<name>.sock``, on which it
listens. A process that finds no manager and gets the lock launches one; the manager inherits both descriptors. No other
user can connect, or listen, since the directory is this user's alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable

from headrace.core.errors import ConfigurationError
from headrace.core.files import is_at

DIRECTORY_VARIABLE = "HEADRACE_RUNTIME_DIR"
LONGEST_NAME = 32
"""Longest name of an endpoint, in characters; a runtime directory's path must leave room for it in socket addresses."""
_LONGEST_ADDRESS = 107 if sys.platform == "linux" else 103
"""Longest path of a Unix socket, in bytes, without the final zero."""
SOCKET = ".sock"
_LOCK = ".lock"
_WAITING_CLIENTS = 128
_POLL_SECS = 0.005


class ManagerEndpoint:
    """Where a manager can be reached: a locked lock file and a listening socket, both of which it takes over."""

    def __init__(self, directory: str, name: str, lock: int, listening: socket.socket | int) -> None:
        self._directory = directory
        self._socket_path, self._lock_path = address(directory, name), _lock_path(directory, name)
        self._lock = lock
        self._listening = listening if isinstance(listening, socket.socket) else socket.socket(fileno=listening)
        os.set_inheritable(lock, False)  # flock holds as long as any process keeps the descriptor open
        self._listening.set_inheritable(False)
        self._listening.settimeout(None)
        self._is_removed = False

    def fileno(self) -> int:
        """For polling: readable when a client connects; -1 once removed."""
        return self._listening.fileno()

    def accept(self) -> socket.socket:
        """Waits for the next client.

        Raises:
            OSError: the client has left, the endpoint was removed, or this process has too many open files.
        """
        client, _ = self._listening.accept()
        client.settimeout(None)
        return client

    def remove(self) -> None:
        """Removes the endpoint's files, and the directory if it is then empty. Idempotent.

        Clients not yet accepted see end of file; a thread in ``accept`` gets an OSError.
        """
        if self._is_removed:
            return
        if is_at(self._lock, self._lock_path):  # else both files are another manager's by now
            _remove(self._socket_path, self._lock_path)
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self.leave()
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)

    def leave(self) -> None:
        """Closes this process's descriptors only: the launched manager has inherited the endpoint."""
        self._is_removed = True
        self._listening.close()
        os.close(self._lock)


def find(directory: str, name: str, timeout_secs: float = 30.0) -> socket.socket | None:
    """Connects to the manager at an endpoint; returns None if no manager listens there.

    Raises:
        TimeoutError: the backlog stayed full for ``timeout_secs`` seconds.
    """
    place = address(directory, name)
    deadline = time.monotonic() + timeout_secs
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        while (code := connection.connect_ex(place)) == errno.EAGAIN:  # the backlog is full
            _pause(deadline, f"The manager at {place} has let nobody in for {timeout_secs:g} s.")
        if code:
            raise OSError(code, os.strerror(code), place)
    except BaseException as error:
        connection.close()
        if isinstance(error, ConnectionError | FileNotFoundError):
            return None
        raise
    connection.settimeout(None)
    return connection


def find_or_launch(
    directory: str, name: str, launch: Callable[[int, int], None], timeout_secs: float = 30.0
) -> socket.socket:
    """Connects to the manager at an endpoint, and launches one first if there is none.

    Args:
        directory: the runtime directory; created again if it is gone.
        name: the endpoint's name, valid as a file name, at most ``LONGEST_NAME`` characters.
        launch: given the descriptors of the lock and of the listening socket, starts a manager that inherits both and
            makes a ``ManagerEndpoint`` of them. If it raises, it must not have started one.
        timeout_secs: how long to wait, in seconds, for another process to launch the manager or for an old one to end.

    Raises:
        ConfigurationError: other users own the directory or can access it.
        TimeoutError: a process holds the lock, but none listens.
        Exception: whatever ``launch`` raises.
    """
    deadline = time.monotonic() + timeout_secs
    # Leader election: the holder of the lock launches the manager, which inherits the lock and keeps it until it exits.
    # A process that can neither connect nor get the lock meets a launch or a shutdown in progress, and polls.
    while True:
        secure_directory(directory)  # the last manager may have removed it
        connection = find(directory, name, max(0.0, deadline - time.monotonic())) or _launch(directory, name, launch)
        if connection is not None:
            return connection
        lock = _lock_path(directory, name)
        _pause(
            deadline,
            f"A process that is about to start or to end a manager has held {lock} for {timeout_secs:g} s without "
            "listening there; end that process (fuser names it), or set "
            f"{DIRECTORY_VARIABLE} to another directory.",
        )


def _launch(directory: str, name: str, launch: Callable[[int, int], None]) -> socket.socket | None:
    """Launches a manager and connects to it; returns None if another process holds the lock."""
    lock = open_locked(_lock_path(directory, name), _locked)
    if lock is None:
        return None
    listening = None
    try:
        connection = find(directory, name)  # a manager whose lock file was deleted, as old temporary files are
        if connection is not None:
            return connection
        listening = _listen(address(directory, name))
    finally:
        if listening is None:
            _remove(_lock_path(directory, name))
            os.close(lock)
    endpoint = ManagerEndpoint(directory, name, lock, listening)
    try:
        launch(lock, endpoint.fileno())
        # This process still has the socket open, so connecting succeeds even if the manager dies at once; the caller
        # then sees end of file. A refused connection would make this process launch managers until the deadline.
        connection = find(directory, name)
    except BaseException:
        endpoint.remove()
        raise
    endpoint.leave()
    return connection


def open_locked(path: str, lock: Callable[[int], bool]) -> int | None:
    """Descriptor of a file, made if need be, that ``lock`` has locked; None: it cannot, or the file is just removed."""
    with contextlib.ExitStack() as undo, contextlib.suppress(FileNotFoundError):  # the directory is gone
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        undo.callback(os.close, file)
        if lock(file) and is_at(file, path):  # it may have been removed before it was locked: then the lock is void
            undo.pop_all()
            return file
    return None


def _locked(file: int) -> bool:
    """Locks a lock file, if no other process has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _listen(place: str) -> socket.socket:
    _remove(place)  # left by a manager that was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(place)
        os.chmod(place, 0o600)
        listening.listen(_WAITING_CLIENTS)
    except BaseException:
        listening.close()
        _remove(place)
        raise
    return listening


def _pause(deadline: float, message: str) -> None:
    """Sleeps for one polling interval; after the deadline raises a TimeoutError with ``message``.

    Other processes change what the callers look at, a lock and a file, and notify nobody.
    """
    if time.monotonic() >= deadline:
        raise TimeoutError(message)
    time.sleep(_POLL_SECS)


def _lock_path(directory: str, name: str) -> str:
    return os.path.join(directory, name + _LOCK)


def _remove(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def manager_names(directory: str) -> list[str]:
    """Sorted names of all endpoints that have any file."""
    try:
        files = [os.path.splitext(file) for file in os.listdir(directory)]
    except FileNotFoundError:
        return []
    return sorted({name for name, kind in files if kind in (SOCKET, _LOCK)})


def is_free(directory: str, name: str) -> bool:
    """Whether no process holds the endpoint's lock."""
    with contextlib.suppress(FileNotFoundError), open(_lock_path(directory, name), "rb") as lock:
        return _locked(lock.fileno())
    return True


def remove_stale(directory: str, name: str) -> None:
    """Removes the files that a killed manager left, and the directory if it is then empty."""
    lock = open_locked(_lock_path(directory, name), _locked)
    if lock is not None:
        ManagerEndpoint(directory, name, lock, socket.socket(socket.AF_UNIX)).remove()


def runtime_directory(make: bool = True) -> str:
    """The directory that holds the endpoints of this user's managers on this machine.

    HEADRACE_RUNTIME_DIR if set; else ``headrace`` in XDG_RUNTIME_DIR, if this user owns that; else
    ``headrace-<user id>`` in the directory for temporary files. A missing directory is created with mode 700,
    unless ``make`` is False.

    Raises:
        ConfigurationError: it cannot be created, other users own it or can access it, or its path is too long.
    """
    session = os.environ.get("XDG_RUNTIME_DIR")
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory and session and os.path.isdir(session) and os.stat(session).st_uid == os.geteuid():
        directory = os.path.join(session, "headrace")
    directory = os.path.abspath(directory or os.path.join(tempfile.gettempdir(), f"headrace-{os.geteuid()}"))
    if len(os.fsencode(address(directory, "n" * LONGEST_NAME))) > _LONGEST_ADDRESS:
        raise _unusable(directory, "its path is too long to hold the address of a socket")
    if make or os.path.lexists(directory):
        secure_directory(directory)
    return directory


def secure_directory(directory: str) -> None:
    """Creates the directory if it is missing.

    Raises:
        ConfigurationError: it cannot be created, is no directory, or other users own it or can access it.
    """
    try:
        found = _made(directory)
    except OSError as error:
        raise _unusable(directory, f"it cannot be made: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise _unusable(directory, "it is not a directory")
    if found.st_uid != os.geteuid():
        raise _unusable(directory, f"it belongs to user {found.st_uid}, and this process to user {os.geteuid()}")
    if mode & 0o077:
        raise _unusable(directory, f"other users have access to it (mode {mode:o}; run: chmod 700 {directory})")


def _made(directory: str) -> os.stat_result:
    """Creates the directory and returns its status, even if managers that end keep removing it."""
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError):
            with contextlib.suppress(FileExistsError):
                os.makedirs(directory, 0o700, exist_ok=True)
            return os.lstat(directory)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)


def _unusable(directory: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"Models cannot be shared through the runtime directory {directory}: {reason}. Cure that, or "
        f"set {DIRECTORY_VARIABLE} to another directory."
    )


def address(directory: str, name: str) -> str:
    """The path of an endpoint's socket."""
    return os.path.join(directory, name + SOCKET)

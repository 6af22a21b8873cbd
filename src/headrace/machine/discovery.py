"""Where the processes of one user on one machine meet: a private directory, and in it the seat of a manager.

A seat is two files: ``<name>.lock``, which its manager keeps locked for life, and ``<name>.sock``, at which it listens.
Whoever finds nobody there and gets the lock launches the manager, which inherits both.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable

from headrace.core.errors import ConfigurationError

DIRECTORY_VARIABLE = "HEADRACE_RUNTIME_DIR"
LONGEST_NAME = 32
"""Characters of a seat's name for which a runtime directory must leave room in a socket's address."""
_LONGEST_ADDRESS = 107 if sys.platform == "linux" else 103
"""Bytes, without the zero at the end."""
_SOCKET, _LOCK = ".sock", ".lock"
_WAITING_CLIENTS = 128
_POLL_SECS = 0.005
if sys.platform == "linux":
    _PEER = (socket.SOL_SOCKET, socket.SO_PEERCRED)
else:
    _PEER = (0, 1)
"""Level and option that tell of the process at the other end; elsewhere LOCAL_PEERCRED of macOS and the BSDs."""
_IDS = struct.Struct("II")
"""How either answer begins: the process, or the version of the structure, and then the user."""

_LOGGER = logging.getLogger(__name__)


def runtime_directory(make: bool = True) -> str:
    """The directory in which this user's processes on this machine find each other's managers.

    It is what the environment's HEADRACE_RUNTIME_DIR names, else ``headrace`` in XDG_RUNTIME_DIR, if that is a
    directory of this user's, else ``headrace-<user id>`` among the temporary files. Made if missing, for this user
    alone, with the parents of a HEADRACE_RUNTIME_DIR; with ``make=False`` a missing one is just named.

    Raises:
        ConfigurationError: it cannot be made, is not a directory of this user's alone, or its path is too long.
    """
    directory = _named_directory()
    if len(os.fsencode(_address(directory, "n" * LONGEST_NAME))) > _LONGEST_ADDRESS:
        raise _unusable(directory, "its path is too long to hold the address of a socket", "a shorter path")
    if make or os.path.lexists(directory):
        _secure(directory)
    return directory


class ManagerEndpoint:
    """A manager's place: it has the lock and the listening socket.

    Args:
        directory: the runtime directory.
        name: of the seat.
        lock: the file descriptor of the locked lock file. The seat owns it, and ``listening``.
        listening: the socket.
    """

    def __init__(self, directory: str, name: str, lock: int, listening: socket.socket) -> None:
        os.set_inheritable(lock, False)  # the lock is held as long as any process has it
        listening.set_inheritable(False)
        listening.settimeout(None)
        self._directory = directory
        self._name = name
        self._lock = lock
        self._listening = listening
        self._is_vacated = False

    @classmethod
    def inherited(cls, directory: str, name: str, lock: int, listening: int) -> ManagerEndpoint:
        """In the process that was launched: of the descriptors that it was given."""
        return cls(directory, name, lock, socket.socket(fileno=listening))

    def fileno(self) -> int:
        """For polling: readable when somebody comes; -1 once vacated."""
        return self._listening.fileno()

    def accept(self) -> socket.socket:
        """The next client; whoever is not of this user is turned away.

        Raises:
            OSError: the seat has been vacated, or this process has too many open files.
        """
        while True:
            with contextlib.suppress(ConnectionAbortedError):
                client, _ = self._listening.accept()
                if (user := _user_of(client)) == os.geteuid():
                    client.settimeout(None)
                    return client
                client.close()
                _LOGGER.warning(
                    "Turned a process of %s away from %s, which serves user %d only.",
                    "an unknown user" if user is None else f"user {user}",
                    _address(self._directory, self._name),
                    os.geteuid(),
                )

    def remove(self) -> None:
        """Leaves: removes what is in the directory, and it if that was all. Does nothing the second time.

        Whoever was not accepted sees the connection end; a thread that is in ``accept`` gets its OSError.
        """
        if self._is_vacated:
            return
        self._is_vacated = True
        if _is_at(self._lock, _lock_path(self._directory, self._name)):  # else both are another manager's by now
            _remove(_address(self._directory, self._name), _lock_path(self._directory, self._name))
        self._turn_away()
        self.leave()
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)

    def leave(self) -> None:
        """Closes the descriptors of this process only: the seat is with the one to whom it gave them."""
        self._is_vacated = True
        self._listening.close()
        os.close(self._lock)

    def _turn_away(self) -> None:
        """Ends the connections of those who wait, and what would wait, whoever else has a copy of the socket."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._listening.setblocking(False)
            while True:
                self._listening.accept()[0].close()


def find(directory: str, name: str, timeout_secs: float = 30.0) -> socket.socket | None:
    """A connection to the manager that sits there; None: nobody does.

    Raises:
        ConfigurationError: a process of another user listens there.
        TimeoutError: so many clients wait there that there was no room for this one for so many seconds.
    """
    address = _address(directory, name)
    deadline = time.monotonic() + timeout_secs
    with contextlib.ExitStack() as undo:
        undo.enter_context(contextlib.suppress(ConnectionError, FileNotFoundError))
        connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            while not _connect(connection, address):
                _pause(deadline, f"The manager at {address} has let nobody in for {timeout_secs:g} s.")
        except PermissionError as error:
            raise _unusable(directory, f"this user may not connect to {address}", "a directory of your own") from error
        user = _user_of(connection)
        if user == os.geteuid():
            undo.pop_all()
            connection.settimeout(None)
            return connection
        if user is not None:
            raise _unusable(directory, f"user {user} listens at {address}", "a directory of your own")
    return None


def find_or_launch(
    directory: str, name: str, launch: Callable[[int, int], None], timeout_secs: float = 30.0
) -> socket.socket:
    """A connection to the manager that sits there; if nobody does, this process launches one.

    Args:
        directory: the runtime directory; made again if it has gone.
        name: of the seat; of characters that file names may have, at most ``LONGEST_NAME``.
        launch: starts a manager that inherits two descriptors, the lock's and the listening socket's, and makes a
            ``ManagerEndpoint`` of them. If it raises, it has started none.
        timeout_secs: how long to wait, in seconds, while another one is about to launch it, or it is about to end.

    Raises:
        ConfigurationError: the directory is not this user's alone, or another user's process listens there.
        TimeoutError: somebody holds the lock, yet nobody listens.
        Exception: whatever ``launch`` raises.
    """
    deadline = time.monotonic() + timeout_secs
    while True:
        _secure(directory)  # the last manager may have removed it
        connection = find(directory, name, max(0.0, deadline - time.monotonic())) or _launch(directory, name, launch)
        if connection is not None:
            return connection
        lock = _lock_path(directory, name)
        _pause(
            deadline,
            f"A process that is about to start or to end a manager has held {lock} for {timeout_secs:g} s and nobody "
            "listens there; end that process (fuser names it), or set "
            f"{DIRECTORY_VARIABLE} to another directory.",
        )


def sitting(directory: str) -> list[str]:
    """The names of the seats whose managers take connections, sorted."""
    return [name for name in manager_names(directory) if _answers(directory, name)]


def stale(directory: str) -> list[str]:
    """The names of the seats of which only files are left: no manager, nor anybody about to launch one; sorted."""
    return [name for name in manager_names(directory) if not _answers(directory, name) and is_free(directory, name)]


def _launch(directory: str, name: str, launch: Callable[[int, int], None]) -> socket.socket | None:
    """A connection to a new manager, or None: it is for another one to launch it, or to go."""
    lock = _locked(_lock_path(directory, name))
    if lock is None:
        return None
    listening = None
    try:
        connection = find(directory, name)  # a manager whose lock file was removed, as old temporary files are
        if connection is not None:
            return connection
        listening = _listen(_address(directory, name))
    finally:
        if listening is None:
            _remove(_lock_path(directory, name))
            os.close(lock)
    endpoint = ManagerEndpoint(directory, name, lock, listening)
    try:
        launch(lock, endpoint.fileno())
        connection = find(directory, name)  # while this process listens too: a manager that dies at once is found
    except BaseException:
        endpoint.remove()
        raise
    endpoint.leave()
    return connection


def _locked(path: str) -> int | None:
    """The descriptor of the lock file, locked by this process; None: another one holds it, or has just removed it."""
    with contextlib.ExitStack() as undo:
        undo.enter_context(contextlib.suppress(BlockingIOError, FileNotFoundError))  # which is: no directory any more
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(lock, path):
            undo.pop_all()
            return lock
    return None


def _listen(address: str) -> socket.socket:
    _remove(address)  # what a manager that was killed has left
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(address)
        os.chmod(address, 0o600)
        listening.listen(_WAITING_CLIENTS)
    except BaseException:
        listening.close()
        _remove(address)
        raise
    return listening


def _connect(connection: socket.socket, address: str) -> bool:
    """Connects; False: too many others wait there."""
    connection.setblocking(False)
    try:
        connection.connect(address)
    except BlockingIOError:
        return False
    return True


def _user_of(connection: socket.socket) -> int | None:
    """The user id of the process at the other end: of the one that connected, or of the one that listens."""
    try:
        return int(_IDS.unpack_from(connection.getsockopt(_PEER[0], _PEER[1], 128))[1])
    except OSError:  # gone already
        return None


def _pause(deadline: float, message: str) -> None:
    """Sleeps a little.

    Raises:
        TimeoutError: with the message: the deadline has passed.
    """
    if time.monotonic() >= deadline:
        raise TimeoutError(message)
    time.sleep(_POLL_SECS)


def _named_directory() -> str:
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return os.path.abspath(named)
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and os.path.isdir(session) and os.stat(session).st_uid == os.geteuid():
        return os.path.join(os.path.abspath(session), "headrace")
    return os.path.join(os.path.abspath(tempfile.gettempdir()), f"headrace-{os.geteuid()}")


def _secure(directory: str) -> None:
    """Makes the directory if it is missing.

    Raises:
        ConfigurationError: there is something else, or somebody else may use it.
    """
    try:
        found = _made(directory)
    except OSError as error:
        raise _unusable(directory, f"it cannot be made: {error.strerror}", "one that can") from error
    if not stat.S_ISDIR(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a directory"
        raise _unusable(directory, f"it is {what}", "a real directory")
    if found.st_uid != os.geteuid():
        reason = f"it belongs to user {found.st_uid}, and this process to user {os.geteuid()}"
        raise _unusable(directory, reason, "a directory of your own")
    if mode := stat.S_IMODE(found.st_mode) & 0o077:
        reason = f"other users have access to it (mode {mode | 0o700:o})"
        raise _unusable(directory, reason, "another directory", f"run: chmod 700 {directory}; or ")


def _made(directory: str) -> os.stat_result:
    """What is there once the directory is made, even where managers that end remove it all the time."""
    for _ in range(100):
        _make(directory)
        with contextlib.suppress(FileNotFoundError):
            return os.lstat(directory)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)


def _make(directory: str) -> None:
    """With its parents; unlike with ``os.makedirs`` they are private too."""
    if not os.path.lexists(directory):
        _make(os.path.dirname(directory))
        with contextlib.suppress(FileExistsError):  # another process makes it as well
            os.mkdir(directory, 0o700)


def _unusable(directory: str, reason: str, instead: str, cure: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"Models cannot be shared through the runtime directory {directory}: {reason}; {cure}set "
        f"{DIRECTORY_VARIABLE} to {instead}."
    )


def _address(directory: str, name: str) -> str:
    return os.path.join(directory, name + _SOCKET)


def _lock_path(directory: str, name: str) -> str:
    return os.path.join(directory, name + _LOCK)


def _is_at(file: int, path: str) -> bool:
    """Whether the open file is the one that is found under the path."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def manager_names(directory: str) -> list[str]:
    """The names of all seats of which there is any file, sorted."""
    try:
        files = [os.path.splitext(file) for file in os.listdir(directory)]
    except FileNotFoundError:
        return []
    return sorted({name for name, kind in files if kind in (_SOCKET, _LOCK)})


def _answers(directory: str, name: str) -> bool:
    connection = find(directory, name)
    if connection is not None:
        connection.close()
    return connection is not None


def is_free(directory: str, name: str) -> bool:
    """Whether nobody holds the lock of a seat."""
    try:
        lock = os.open(_lock_path(directory, name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True

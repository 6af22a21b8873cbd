"""The private directory in which the processes of one user find their machine's managers."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile

from headrace.core.errors import ConfigurationError

DIRECTORY_VARIABLE = "HEADRACE_RUNTIME_DIR"
LONGEST_NAME = 32
"""Longest name of an endpoint, in characters; a runtime directory's path must leave room for it in socket addresses."""
_LONGEST_ADDRESS = 107 if sys.platform == "linux" else 103
"""Longest path of a Unix socket, in bytes, without the final zero."""
SOCKET = ".sock"


def runtime_directory(make: bool = True) -> str:
    """The directory that holds the endpoints of this user's managers on this machine.

    HEADRACE_RUNTIME_DIR if set; else ``headrace`` in XDG_RUNTIME_DIR, if this user owns that; else
    ``headrace-<user id>`` in the directory for temporary files. A missing directory is created with mode 700,
    unless ``make`` is False.

    Raises:
        ConfigurationError: it cannot be created, other users own it or can access it, or its path is too long.
    """
    directory = _configured_directory()
    if len(os.fsencode(address(directory, "n" * LONGEST_NAME))) > _LONGEST_ADDRESS:
        raise unusable(directory, "its path is too long to hold the address of a socket", "a shorter path")
    if make or os.path.lexists(directory):
        secure_directory(directory)
    return directory


def _configured_directory() -> str:
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return os.path.abspath(named)
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and os.path.isdir(session) and os.stat(session).st_uid == os.geteuid():
        return os.path.join(os.path.abspath(session), "headrace")
    return os.path.join(os.path.abspath(tempfile.gettempdir()), f"headrace-{os.geteuid()}")


def secure_directory(directory: str) -> None:
    """Creates the directory if it is missing.

    Raises:
        ConfigurationError: it cannot be created, is no directory, or other users own it or can access it.
    """
    try:
        found = _made(directory)
    except OSError as error:
        raise unusable(directory, f"it cannot be made: {error.strerror}", "one that can") from error
    if not stat.S_ISDIR(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a directory"
        raise unusable(directory, f"it is {what}", "a real directory")
    if found.st_uid != os.geteuid():
        reason = f"it belongs to user {found.st_uid}, and this process to user {os.geteuid()}"
        raise unusable(directory, reason, "a directory of your own")
    if mode := stat.S_IMODE(found.st_mode) & 0o077:
        reason = f"other users have access to it (mode {mode | 0o700:o})"
        raise unusable(directory, reason, "another directory", f"run: chmod 700 {directory}; or ")


def _made(directory: str) -> os.stat_result:
    """Creates the directory and returns its status, even if managers that end keep removing it."""
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.makedirs(directory, 0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return os.lstat(directory)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)


def unusable(directory: str, reason: str, instead: str, cure: str = "") -> ConfigurationError:
    """The error for a directory that cannot be used; ``cure`` comes before setting the variable to ``instead``."""
    return ConfigurationError(
        f"Models cannot be shared through the runtime directory {directory}: {reason}; {cure}set "
        f"{DIRECTORY_VARIABLE} to {instead}."
    )


def address(directory: str, name: str) -> str:
    """The path of an endpoint's socket."""
    return os.path.join(directory, name + SOCKET)


def is_at(file: int, path: str) -> bool:
    """Whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False

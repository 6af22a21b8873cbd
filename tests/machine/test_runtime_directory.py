"""The runtime directory is this user's alone, or an error tells what to do."""

from __future__ import annotations

import os
import tempfile

import pytest

from headrace.core.errors import ConfigurationError
from headrace.machine.discovery import (
    _LONGEST_ADDRESS,
    DIRECTORY_VARIABLE,
    LONGEST_NAME,
    find_or_launch,
    runtime_directory,
)

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
    return directory, rf"other users have access to it \(mode 711\); run: chmod 700 {directory}; or set HEADRACE"


def as_link(directory):
    os.symlink(directory, directory + "/link")
    return directory + "/link", "it is a symbolic link; set HEADRACE_RUNTIME_DIR to a real directory"


def as_file(directory):
    open(directory + "/file", "w").close()
    return directory + "/file", "it is not a directory; set"


def in_file(directory):
    open(directory + "/file", "w").close()
    return directory + "/file/run", "it cannot be made: Not a directory; set"


def as_long_path(directory):
    return os.path.join(directory, "x" * 65), "its path is too long to hold the address of a socket"


@pytest.mark.parametrize("spoil", [as_public, as_link, as_file, in_file, as_long_path])
def test_an_unusable_directory_is_refused_with_the_cure(directory, monkeypatch, spoil):
    path, reason = spoil(directory)
    monkeypatch.setenv(DIRECTORY_VARIABLE, path)
    with pytest.raises(ConfigurationError, match=f"through the runtime directory {path}: {reason}"):
        runtime_directory()


def test_a_directory_of_another_user_is_refused(directory, monkeypatch):
    monkeypatch.setenv(DIRECTORY_VARIABLE, somebody_else_s(directory))
    reason = f"it belongs to user {NOBODY if IS_ROOT else 0}, and this process to user {os.geteuid()}; set HEADRACE"
    with pytest.raises(ConfigurationError, match=reason):
        runtime_directory()


def test_the_longest_path_has_room_for_an_endpoint(directory, monkeypatch):
    longest = _LONGEST_ADDRESS - len("/" + "n" * LONGEST_NAME + ".sock")
    path = os.path.join(directory, "x" * (longest - len(directory) - 1))
    monkeypatch.setenv(DIRECTORY_VARIABLE, path)
    assert len(runtime_directory()) == longest
    find_or_launch(path, "n" * LONGEST_NAME, lambda lock, listening: None).close()
    monkeypatch.setenv(DIRECTORY_VARIABLE, path + "x")
    with pytest.raises(ConfigurationError, match="too long"):
        runtime_directory()

"""What holds for every test session: no deadlines, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import settings

with suppress(ImportError):  # see headrace.handlers.tensorflow_inference: some tests import TensorFlow before that
    import triton  # noqa: F401

# How long an example takes is the machine's affair. The same ones each time: whoever changes nothing breaks nothing.
settings.register_profile("headrace", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("headrace")

_HELPERS = ("multiprocessing.resource_tracker", "loky.backend.resource_tracker")
"""Python's own housekeepers: they end with the process that started them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses names that differ from process to process, with which tests cannot be shared out among workers.

    And leaves out, on older versions of Beam, what is marked ``since_beam``.
    """
    beam = _numbers(version("apache-beam"))
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} has a memory address in its name; give that parameter an id.")
        for mark in item.iter_markers("since_beam"):
            (since,), reason = mark.args, mark.kwargs["reason"]
            if beam < _numbers(since):
                item.add_marker(pytest.mark.skip(reason=f"holds since Beam {since}: {reason}"))


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")[:2]))


@pytest.fixture(scope="session", autouse=True)
def _no_stray_children() -> Iterator[None]:
    """Fails the session when a process that a test started is still running at its end (where /proc tells).

    A manager of the machine's models may be about to end.
    """
    yield
    deadline = time.monotonic() + 10
    while (left := _strays()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == []


@contextmanager
def _own_runtime() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="hr", dir="/tmp"))  # a socket's address is short
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_RUNTIME_DIR", str(directory))
            yield directory
            assert _wait_until(lambda: not directory.exists(), 5), list(directory.iterdir())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def own_runtime() -> Callable[[], AbstractContextManager[Path]]:
    """A context in which this machine's models have a runtime directory of their own, which the last manager removes.

    It fails if nobody has: then somebody still holds a model.
    """
    return _own_runtime


@pytest.fixture
def runtime(own_runtime: Callable[[], AbstractContextManager[Path]]) -> Iterator[Path]:
    """The test's own runtime directory."""
    with own_runtime() as directory:
        yield directory


def _wait_until(condition: Callable[[], object], seconds: float = 20.0) -> object:
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.002)
    return value


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., object]:
    """Waits for a condition, which it calls, to be true; returns its last value, true or not."""
    return _wait_until


def _strays() -> list[str]:
    return [command for command in _children() if not any(name in command for name in _HELPERS)]


def _children() -> list[str]:
    """The command lines of this process's children."""
    children = [folder for folder in Path("/proc").glob("[0-9]*") if _parent(folder) == os.getpid()]
    return [_read(folder / "cmdline").replace("\0", " ") for folder in children]


def _parent(folder: Path) -> int | None:
    """The parent of a process; the name before it, in brackets, may contain anything."""
    state_and_parent = _read(folder / "stat").rpartition(")")[2].split()
    return int(state_and_parent[1]) if state_and_parent else None


def _read(path: Path) -> str:
    """What a file of /proc says; nothing where its process has just ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

"""What holds for every test session: no deadlines, and nothing left behind."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hypothesis import HealthCheck, settings

import large
import waiting
from headrace.models.memory import hold_heap, release_heap
from ports import new_port

# No deadline: how long an example takes, or finding one, depends on the machine. The same examples each time: without a
# change nothing breaks.
_ANY_TIME = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("headrace", **_ANY_TIME, derandomize=True)
settings.register_profile("explore", **_ANY_TIME, max_examples=2000)
settings.load_profile("headrace")

pytest_plugins = ["toy_hosts", "toy_workers"]

_HELPERS = ("multiprocessing.resource_tracker", "loky.backend.resource_tracker")
"""Python's own housekeepers: they end with the process that started them."""


def pytest_configure(config: pytest.Config) -> None:
    """Without what is large nothing large can be imported; see ``large.py``."""
    if config.option.markexpr == "not large":
        large.leave_out()
    else:
        with suppress(ImportError):  # see headrace.handlers.tensorflow_inference: some tests import TensorFlow before
            importlib.import_module("triton")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No collection of garbage visits what the tests import, a million objects: neither meanwhile nor afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _hold_heap()


def _hold_heap() -> None:
    gc.collect()
    hold_heap()


def pytest_unconfigure() -> None:
    """What the process ends with is looked at by the interpreter, which else reports leaks of what it imported."""
    gc.unfreeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that are large as a whole, or not at all."""
    return large.is_left_out(collection_path, config.option.markexpr) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses names that differ from process to process, with which tests cannot be shared out among workers.

    And large tests in files that do not look it. Leaves out, on older versions of Beam, what is marked ``since_beam``.
    """
    beam = _numbers(version("apache-beam"))
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} has a memory address in its name; give that parameter an id.")
        if item.get_closest_marker("large") and not large.may_be_in(item.path):
            raise pytest.UsageError(f"{item.nodeid} is large, and nothing in its file is marked so.")
        for mark in item.iter_markers("since_beam"):
            (since,), reason = mark.args, mark.kwargs["reason"]
            if beam < _numbers(since):
                item.add_marker(pytest.mark.skip(reason=f"holds since Beam {since}: {reason}"))


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")[:2]))


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 where nobody listens but a server that asks for it: no other gets it, as it is bound."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", new_port()))
        yield held.getsockname()[1]


@pytest.fixture
def nobody(closed_port: int) -> str:
    """A URL where nobody listens."""
    return f"http://127.0.0.1:{closed_port}/"


@pytest.fixture(scope="session", autouse=True)
def _children_hear_ctrl_c() -> Iterator[None]:
    """Where SIGINT is ignored, as by what a script has started with ``&``, the tests go on ignoring it themselves.

    But what they start does not: programs inherit that a signal is ignored, and not that a function does nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def _own_machine() -> Iterator[None]:
    """This process's tests share neither limits, budgets nor models with those that run beside them, in another one.

    And a manager that is busy for long is no silent one. Nor does the machine lose power: no disk is waited for.
    """
    folder = tempfile.TemporaryDirectory(prefix="hr", dir="/tmp", ignore_cleanup_errors=True)
    with folder as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_RUNTIME_DIR", f"{directory}/run")
        patch.setattr("headrace.machine.status._TIMEOUT_SECS", 60.0)
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _endpoints_are_unknown() -> Iterator[None]:
    """To the next test: whether an endpoint is wrong depends on what it has said to this process before."""
    yield
    if endpoints := sys.modules.get("headrace.runtime.endpoints"):
        endpoints._record_of.cache_clear()


@pytest.fixture(scope="module")
def module_travels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hosts cannot import test modules, so what is defined in this one is pickled by value."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture
def requests_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Retries follow at once, but for delays that the endpoint names; no thread that sends requests is left."""
    monkeypatch.setattr("headrace.runtime.dispatcher.pause_before_retry", lambda *_, **__: 0.0)

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace-request")]

    yield
    assert waiting.wait_until(lambda: not threads()), threads()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Returns the ids of the processes that descend from this test, even if their parents are gone."""
    token = uuid.uuid4().hex
    monkeypatch.setenv("HEADRACE_TEST_TOKEN", token)

    def find() -> list[int]:
        return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if token.encode() in _environment(folder)]

    return find


def _environment(folder: Path) -> bytes:
    try:
        return (folder / "environ").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def own_heap() -> Iterator[None]:
    """Nothing is frozen when the test begins."""
    release_heap()
    yield
    _hold_heap()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, whatever it does outside this test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class _Child(subprocess.Popen[Any]):
    """Is ended where the block that it is for fails, which would wait for it otherwise."""

    def __exit__(self, *raised: Any) -> None:
        if raised[0] is not None:
            self.end()
        super().__exit__(*raised)

    def end(self) -> None:
        """With its group, if it leads one."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # of that number is only the group that it leads
            self.kill()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()


@pytest.fixture
def popen() -> Iterator[Callable[..., subprocess.Popen[Any]]]:
    """Starts a process as ``subprocess.Popen`` does; it ends with the test, however that ends."""
    started: list[_Child] = []

    def start(*args: Any, **options: Any) -> subprocess.Popen[Any]:
        started.append(_Child(*args, **options))
        return started[-1]

    yield start
    for child in started:
        child.end()


@pytest.fixture(scope="session", autouse=True)
def _no_stray_children() -> Iterator[None]:
    """Fails the session when a process that a test started is still running at its end (where /proc tells).

    Ends it, too. A manager of the machine's models may be about to end.
    """
    yield
    waiting.wait_until(lambda: not _strays())
    left = _strays()
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert list(left.values()) == []


@contextmanager
def _own_runtime() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="hr", dir="/tmp"))  # a socket's address is short
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_RUNTIME_DIR", str(directory))
            yield directory
            assert waiting.wait_until(lambda: not directory.exists()), list(directory.iterdir())
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


@pytest.fixture
def close_later() -> Iterator[Callable[[Any], Any]]:
    """Closes what it is called with at the end of the test, the last first; returns it."""
    with ExitStack() as stack:
        yield lambda thing: stack.enter_context(closing(thing))


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A runtime directory with a short path, for which sockets have room; managers may leave it, or something in it."""
    directory = tempfile.mkdtemp(prefix="hr")
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", directory)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., object]:
    """Waits for a condition, which it calls, to be true; returns its last value, true or not."""
    return waiting.wait_until


def _strays() -> dict[int, str]:
    return {
        process: command for process, command in _children().items() if not any(name in command for name in _HELPERS)
    }


def _children() -> dict[int, str]:
    """This process's children, and their command lines."""
    children = [folder for folder in Path("/proc").glob("[0-9]*") if _parent(folder) == os.getpid()]
    return {int(folder.name): _read(folder / "cmdline").replace("\0", " ") for folder in children}


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

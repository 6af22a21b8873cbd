"""The owner's side of one fork server, the messages between the two, and a spare fork server."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.output import OutputReader
from headrace.hosts.provider import describe_exit
from headrace.hosts.system import MARK, kill_marked, kill_orphans, new_mark, reset_in_forks
from headrace.ipc.channel import Channel
from headrace.ipc.weights_file import WeightsLayout

_LONGEST_IMPORT_SECS = 600
"""How long the imports of the handler's modules may take."""
_LONGEST_ANSWER_SECS = 60
"""Far more than a fork server needs: reaping a host takes 20 ms per GB of its memory."""


class ForkServerSetup(NamedTuple):
    """The first message from owner to fork server; the descriptors of an ``OutputReader`` are attached."""

    environment: ProcessEnvironment
    modules: Sequence[str] = ()
    """Modules to import before the configuration is known."""


class ForkServerConfig(NamedTuple):
    """The second message; the answer is None once hosts can be forked."""

    request_handler: bytes
    """The pickled request handler of every host."""
    environment: ProcessEnvironment
    imports: bool
    """Whether the fork server unpickles the request handler, which imports its modules; else each host does."""


class Failed(NamedTuple):
    """The fork server's answer: unpickling the request handler or the model, or forking a host, has failed."""

    lines: list[str]
    """Lines of the traceback."""
    threads: Sequence[str] = ()
    """Threads that importing the modules has started: they do not survive a fork, so it exits."""


class Preload(NamedTuple):
    """The owner's request to preload what future hosts inherit; the answer is None.

    The descriptors remain the owner's. They are attached in this order: page, files, copies.
    """

    work: bytes
    """Pickled head of the request with which the model was loaded."""
    files: Sequence[int] = ()
    """Descriptors of the files that ``layout`` describes."""
    layout: WeightsLayout | None = None
    """Description of what to map; None: nothing."""
    page: int | None = None
    """Descriptor of the page of a ``ThreadBudget``."""
    copies: Mapping[str, int] = {}
    """Descriptors of local copies of the remote files that loading the model reads, by URI."""

    @property
    def descriptors(self) -> list[int]:
        """All of them, in that order."""
        return [*([] if self.page is None else [self.page]), *self.files, *self.copies.values()]


class Fork(NamedTuple):
    """The owner's request for a host; the answer is its process id. Attached: its channel, and its progress page."""

    environment: Mapping[str, str]
    """Additional environment variables of this host."""


class Reap(NamedTuple):
    """The owner's request to kill a host and the processes that it started; the answer is a ``HostExit`` or None."""

    host: int
    """Its process id."""
    only_if_exited: bool = False
    """Whether a host that does not exit by itself within a second is left running."""


class ForkServerProcess:
    """One fork server process; it imports modules ahead, and waits for its configuration.

    Args:
        output: reads what it and its hosts print and log.
        environment: the environment it runs in.
        modules: to import ahead.

    Raises:
        EOFError: it exited at once.
        OSError: it cannot be started.
        RuntimeError: no thread can be started: there are too many, or the interpreter is shutting down.
    """

    def __init__(self, output: OutputReader, environment: ProcessEnvironment, modules: Sequence[str] = ()) -> None:
        self._mark = new_mark()
        self.output = output
        try:
            self._process, self._channel = _spawned(environment, self._mark)
        except BaseException:
            output.close(0)
            raise
        reset_in_forks(self)
        with self._ending_if_it_fails():
            self._channel.send(ForkServerSetup(environment, modules), [output.printed, output.logged])
            output.release()

    def ask(self, request: ForkServerConfig | Fork | Reap | Preload, *files: int) -> Any:
        """Returns the answer to a request. If none comes it ends: its late answer could pass for the next one.

        Raises:
            EOFError: the fork server has died; says how.
            TimeoutError: it has not answered within 60 s; its imports may take 600 s.
        """
        imports = isinstance(request, ForkServerConfig)
        limit = _LONGEST_IMPORT_SECS if imports else _LONGEST_ANSWER_SECS
        with self._ending_if_it_fails(f"{'its imports took' if imports else 'did not answer for'} {limit:g} s"):
            self._channel.send(request, files)
            return self._channel.receive(limit)[0]

    @contextmanager
    def _ending_if_it_fails(self, late: str = "") -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            self.close(0)
            raise TimeoutError(late) from None
        except (EOFError, OSError):
            raise EOFError(self.close()) from None
        except BaseException:
            self.close(0)
            raise

    @property
    def process(self) -> int:
        """Its process id."""
        return self._process.pid

    def kill(self) -> None:
        """Kills it, so that every wait for its answer ends; ``close`` is still necessary."""
        self._process.kill()

    def after_fork(self) -> None:
        """In a forked child of the owner: closes the parent's channel without ending the fork server."""
        self._channel.close()
        self._process.poll()  # notes that it is no child of this process, which silences Popen's ResourceWarning

    def close(self, patience_secs: float | None = None) -> str:
        """Ends it, its hosts and every process that they started; returns how it exited, in words that follow "it".

        Args:
            patience_secs: how long to wait before it is killed; None: 60 s.
        """
        self._channel.shut_down()
        self._channel.close()
        try:
            self._process.wait(_LONGEST_ANSWER_SECS if patience_secs is None else patience_secs)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            kill_marked(self._mark)
        self.output.close()
        return describe_exit(self._process.returncode)


_kill_orphans_once = cache(kill_orphans)  # before the first start: what killed owners have left behind


def _spawned(environment: ProcessEnvironment, mark: str) -> tuple[subprocess.Popen[bytes], Channel]:
    """Starts a fork server; returns its process and the channel to it, whose end ends the process."""
    _kill_orphans_once()
    mine, theirs = Channel.pair()
    try:
        process = subprocess.Popen(  # noqa: S603 - this Python, with our own module
            [environment.executable, "-m", "headrace.hosts.fork_server", str(os.getpid()), str(theirs.fileno())],
            env={**environment.variables, "PYTHONPATH": environment.python_path, MARK: mark},
            cwd=os.sep,  # "-m" puts the directory first on sys.path: files in the owner's may shadow our imports
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # the terminal's Ctrl-C does not reach it: its owner decides when it ends
        )
    except BaseException:
        mine.close()
        raise
    finally:
        theirs.close()
    return process, mine


class SpareForkServer:
    """At most one fork server that a process has started in advance; its next client takes it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: ForkServerProcess | None = None
        self._threads: int | None = None

    def start(self, name: str, modules: Sequence[str], threads: int | None = None) -> None:
        """Starts one that imports modules, while this process does the same; if that fails, there is none.

        Args:
            name: for the log, until somebody takes it.
            modules: those that the handler needs.
            threads: how many each framework may compute with; None: its default.
        """
        self.drop()
        with suppress(EOFError, OSError, RuntimeError), self._lock:
            here = ProcessEnvironment.here()
            environment = here if threads is None else here.with_threads(threads)
            self._threads = environment.threads
            self._process = ForkServerProcess(OutputReader(name), environment, modules)

    def take(self, name: str, environment: ProcessEnvironment) -> ForkServerProcess | None:
        """The fork server, if there is one with this limit of threads; it is then the caller's, for the named model."""
        process = self._taken() if environment.threads == self._threads else None
        if process is not None:
            process.output.name = name
        return process

    def drop(self) -> None:
        """Ends it if nobody has taken it."""
        process = self._taken()
        if process is not None:
            process.kill()
            process.close(0)

    def after_fork(self) -> None:
        """In a forked child: leaves it to the parent."""
        self._lock, self._process = threading.Lock(), None

    def _taken(self) -> ForkServerProcess | None:
        with self._lock:
            process, self._process = self._process, None
        return process


SPARE = SpareForkServer()
reset_in_forks(SPARE)

"""Starts fork servers, one at a time, and has them fork and reap hosts; one may start before somebody needs it."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

from headrace.core.errors import HostStartError
from headrace.hosts.environment import (
    Failed,
    Fork,
    ForkServerConfig,
    ForkServerSetup,
    Preload,
    ProcessEnvironment,
    Reap,
)
from headrace.hosts.output import OutputReader
from headrace.hosts.provider import HostExit, HostHandle, describe_exit
from headrace.hosts.system import MARK, kill_marked, kill_orphans, new_mark, reset_in_forks, watch
from headrace.ipc.channel import Channel
from headrace.ipc.progress import Progress
from headrace.ipc.segment import Segment

_LOGGER = logging.getLogger(__name__)
_LONGEST_IMPORT_SECS = 600
"""How long the imports of the handler's modules may take."""
_LONGEST_ANSWER_SECS = 60
"""Far more than a fork server needs: reaping a host takes 20 ms per GB of its memory."""
_EXIT_GRACE_SECS = 1
"""How long a fork server that cannot fork hosts may take to exit."""
_TRIES = 3
_MODULE = "headrace.hosts.fork_server"

_kill_orphans_once = cache(kill_orphans)  # before the first start: what killed owners have left behind


class ForkServerProcess:
    """One fork server process; it imports modules ahead, and waits for its configuration.

    Raises:
        EOFError: it exited at once.
        OSError: it cannot be started.
        RuntimeError: no thread can be started: there are too many, or the interpreter is shutting down.
    """

    def __init__(self, output: OutputReader, environment: ProcessEnvironment, modules: Sequence[str] = ()) -> None:
        _kill_orphans_once()
        self._mark = new_mark()
        self.output = output
        self.threads = environment.threads
        with ExitStack() as undo:
            undo.callback(output.close, 0)
            self._channel, theirs = Channel.pair()
            undo.callback(self._channel.close)
            with closing(theirs):
                marked = replace(environment, variables={**environment.variables, MARK: self._mark})
                self._process = marked.start(_MODULE, os.getpid(), theirs.fileno(), files=[theirs.fileno()])
            undo.pop_all()
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


class SpareForkServer:
    """At most one fork server that this process has started in advance; its next client takes it. Thread-safe."""

    def __init__(self) -> None:
        self._spare: list[ForkServerProcess] = []

    def start(self, name: str, modules: Sequence[str], threads: int | None = None) -> None:
        """Starts one that imports modules, while this process does the same; if that fails, there is none.

        Args:
            name: for the log, until somebody takes it.
            modules: those that the handler needs.
            threads: how many each framework may compute with; None: its default.
        """
        self.drop()
        here = ProcessEnvironment.here()
        with suppress(EOFError, OSError, RuntimeError):
            environment = here if threads is None else here.with_threads(threads)
            self._spare.append(ForkServerProcess(OutputReader(name), environment, modules))

    def take(self, name: str, environment: ProcessEnvironment) -> ForkServerProcess | None:
        """The fork server, if there is one with this limit of threads; it is then the caller's, for the named model."""
        with suppress(IndexError):  # there is none, or another thread has just taken it
            if self._spare[0].threads == environment.threads:
                spare = self._spare.pop()
                spare.output.name = name
                return spare
        return None

    def drop(self) -> None:
        """Ends it if nobody has taken it."""
        with suppress(IndexError):
            spare = self._spare.pop()
            spare.kill()
            spare.close(0)

    def after_fork(self) -> None:
        """In a forked child: leaves it to the parent."""
        self._spare.clear()


SPARE = SpareForkServer()
reset_in_forks(SPARE)


class ForkServerClient:
    """A ``HostProvider`` whose own fork server is started on first use, and replaced when it dies; thread-safe.

    Args:
        request_handler: the pickled request handler of every host.
        name: the model's name, for the log and for errors.
        preload: what hosts inherit; its descriptors must stay open, for the next fork server.
        environment: of the hosts; None: this process's when the fork server is started.
        output: makes a reader for what hosts print and log; None: it goes to this process's logging.
        environment_of: additional environment variables of host ``number``.
    """

    def __init__(
        self,
        request_handler: bytes,
        name: str,
        *,
        preload: Preload | None = None,
        environment: ProcessEnvironment | None = None,
        output: Callable[[], OutputReader] | None = None,
        environment_of: Callable[[int], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self._request_handler = request_handler
        self._name = name
        self._preload_config = preload
        self._environment = environment
        self._output = output or (lambda: OutputReader(name))
        self._environment_of = environment_of
        self.after_fork()
        reset_in_forks(self)

    def after_fork(self) -> None:
        """Starts afresh: in a forked child the fork server is the parent's."""
        self._imports = True
        self._fork_server: ForkServerProcess | None = None
        self._starting: ForkServerProcess | None = None
        """A fork server that is still importing modules."""
        self._is_closed = False
        self._lock = threading.Lock()

    def host(self, number: int = 0) -> HostHandle:
        """As of ``HostProvider``: starts a host for this process alone."""
        progress = Segment.create(0, Progress.SIZE)
        channel, theirs = Channel.pair()
        with ExitStack() as undo, closing(theirs):
            undo.callback(progress.close)
            undo.callback(channel.close)
            with self._lock:
                answer = self._ask(Fork(self._environment_of(number)), theirs.fileno(), progress.file)
            if isinstance(answer, Failed):
                raise HostStartError(self._name, "it cannot be forked.", answer.lines)
            undo.pop_all()
        return HostHandle(answer, channel, progress, watch(answer))

    def preload(self, preload: Preload) -> None:
        """Sets what future hosts inherit.

        Raises:
            HostStartError: the fork server cannot map the model.
        """
        with self._lock:
            if self._fork_server is not None:
                self._refuse(self._ask(preload, *preload.descriptors))
            self._preload_config = preload

    def _ask(self, request: Fork | Preload, *files: int) -> Any:
        """Asks the fork server, starting one if there is none; if it dies or hangs, asks another, up to 3 in all."""
        # Trying again is safe: a failed exchange ends the fork server, and every host that it forked with it.
        problem = ""
        for _ in range(_TRIES):
            if self._is_closed:
                raise HostStartError(self._name, "its owner no longer wants one.")
            problem = "it {} while it imported the handler's modules"
            try:
                self._fork_server = self._fork_server or self._new_fork_server()
                problem = "the process that forks it {}"
                return self._exchange(self._fork_server, request, *files)
            except (EOFError, TimeoutError) as error:
                problem = problem.format(error)
        raise HostStartError(self._name, f"{problem}, {_TRIES} times in a row.")

    def _exchange(self, fork_server: ForkServerProcess, request: Fork | Preload | Reap, *files: int) -> Any:
        try:
            return fork_server.ask(request, *files)
        except BaseException:
            self._fork_server = None  # a failed exchange ends it
            raise

    def reap(self, host: int, *, late: bool = False, only_if_exited: bool = False) -> HostExit | None:
        """As of ``HostProvider``; with ``only_if_exited``, a host that does not exit within a second is left alone."""
        with self._lock, suppress(EOFError, TimeoutError):
            if self._fork_server is not None:  # else the host was killed together with it
                answer: HostExit | None = self._exchange(self._fork_server, Reap(host, only_if_exited))
                return answer
        return None

    @property
    def fork_server(self) -> int | None:
        """The fork server's process id; None: there is none now."""
        fork_server = self._fork_server
        return fork_server.process if fork_server is not None else None

    def stop(self) -> None:
        """Ends the fork server and its hosts; the next host gets a new fork server."""
        with self._lock:
            fork_server, self._fork_server = self._fork_server, None
            if fork_server is not None:
                fork_server.close()

    def close(self) -> None:
        """Ends the fork server and its hosts, and any wait for a host."""
        self.cancel_waits()
        self.stop()

    def cancel_waits(self) -> None:
        """Makes every current and future wait for a fork server's imports fail."""
        self._is_closed = True
        if (starting := self._starting) is not None:
            starting.kill()

    def _new_fork_server(self) -> ForkServerProcess:
        """Starts a fork server and waits until it can fork.

        If importing starts threads, another is started that leaves the imports to each host.
        """
        environment = self._environment or ProcessEnvironment.here()
        self._starting = fork_server = self._started(environment)
        try:
            if self._is_closed:
                fork_server.kill()
            answer = fork_server.ask(ForkServerConfig(self._request_handler, environment, self._imports))
            if answer is None and self._preload_config is not None:
                self._refuse(fork_server.ask(self._preload_config, *self._preload_config.descriptors))
        except TimeoutError as error:
            raise HostStartError(self._name, f"{error} while it imported the handler's modules.") from None
        except HostStartError:
            fork_server.close(0)
            raise
        finally:
            self._starting = None
        if answer is None:
            return fork_server
        fork_server.close(_EXIT_GRACE_SECS)
        if not answer.threads:
            raise HostStartError(self._name, "the handler cannot be unpickled there.", answer.lines)
        text = "%s: its modules have started threads (%s) as they were imported, so each host imports them itself."
        _LOGGER.info(text, self._name, ", ".join(answer.threads))
        self._imports = False
        return self._new_fork_server()

    def _started(self, environment: ProcessEnvironment) -> ForkServerProcess:
        try:
            spare = SPARE.take(self._name, environment) if self._imports else None
            return spare or ForkServerProcess(self._output(), environment)
        except EOFError as error:
            raise HostStartError(self._name, f"it {error} as it started.") from None
        except (OSError, RuntimeError) as error:  # a limit on files, processes or threads is reached
            raise HostStartError(self._name, f"{error}.") from error

    def _refuse(self, answer: Failed | None) -> None:
        if answer is not None:
            raise HostStartError(self._name, "the model cannot be unpickled there.", answer.lines)

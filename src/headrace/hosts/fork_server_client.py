"""A provider of hosts that has a fork server fork and reap them, and replaces it when it has died."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.errors import HostStartError
from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.fork_server_process import (
    SPARE,
    Failed,
    Fork,
    ForkServerConfig,
    ForkServerProcess,
    Preload,
    Reap,
)
from headrace.hosts.output import OutputReader
from headrace.hosts.provider import HostExit, HostHandle
from headrace.hosts.system import reset_in_forks, watch
from headrace.ipc.channel import Channel
from headrace.ipc.progress import Progress
from headrace.ipc.segment import Segment

_LOGGER = logging.getLogger(__name__)
_EXIT_GRACE_SECS = 1
"""How long a fork server that cannot fork hosts may take to exit."""
_TRIES = 3


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
        try:
            with self._lock:
                answer = self._ask(Fork(self._environment_of(number)), theirs.fileno(), progress.file)
            if isinstance(answer, Failed):
                raise HostStartError(self._name, "it cannot be forked.", answer.lines)
        except BaseException:
            channel.close()
            progress.close()
            raise
        finally:
            theirs.close()
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
                return self._fork_server.ask(request, *files)
            except BaseException as error:
                self._fork_server = None  # a failed exchange ends it
                if not isinstance(error, EOFError | TimeoutError):
                    raise
                problem = problem.format(error)
        raise HostStartError(self._name, f"{problem}, {_TRIES} times in a row.")

    def reap(self, host: int, *, late: bool = False, only_if_exited: bool = False) -> HostExit | None:
        """As of ``HostProvider``; with ``only_if_exited``, a host that does not exit within a second is left alone."""
        with self._lock:
            if self._fork_server is None:
                return None  # the host was killed together with its fork server
            try:
                answer: HostExit | None = self._fork_server.ask(Reap(host, only_if_exited))
                return answer
            except BaseException as error:
                self._fork_server = None
                if not isinstance(error, EOFError | TimeoutError):
                    raise
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
        _LOGGER.info(
            "%s: its modules have started threads (%s) as they were imported, so each host imports them itself.",
            self._name,
            ", ".join(answer.threads),
        )
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

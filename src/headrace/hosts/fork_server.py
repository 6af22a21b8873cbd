"""The fork server: a single-threaded process that imports the handler's modules once and forks hosts.

The owner starts it with ``python -m headrace.hosts.fork_server``. When the owner ends, the fork server exits and kills
its hosts and every process that they started.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from headrace.core.files import keep_copies
from headrace.hosts.environment import Failed, Fork, ForkServerConfig, ForkServerSetup, Preload, ThreadBudget
from headrace.hosts.host import serve
from headrace.hosts.output import redirect_output
from headrace.hosts.provider import ExitCause, HostExit
from headrace.hosts.system import (
    KILLED_FIRST,
    adopt_orphans,
    change_oom_score,
    children,
    die_with_parent,
    has_ended,
    is_manager,
)
from headrace.ipc.channel import Channel, is_readable
from headrace.ipc.segment import Segment
from headrace.ipc.serialization import all_reducers, codecs
from headrace.ipc.weights_file import attach
from headrace.models.memory import oom_kills

_EXIT_GRACE_SECS = 1.0
"""How long a host that has closed its connection may take to exit by itself."""
_OWNER_CHECK_SECS = 1.0
_LONGEST_STALL_SECS = 60.0


class ForkServer:
    """Forks and reaps hosts at the request of its owner (a process id), one request at a time."""

    def __init__(self, channel: Channel, owner: int, config: ForkServerConfig) -> None:
        self._channel = channel
        self._owner = owner
        self._config = config
        self._request_handler: Any = None
        self._model_for_hosts: tuple[Preload, list[int]] | None = None
        """A preloaded model and its descriptors, for hosts that import the modules and so map the model themselves."""
        self._has_model = False
        """Whether this process has mapped the model, which hosts then inherit."""
        self._hosts: dict[int, int | None] = {}
        """For each host, by process id, the kernel's count of out-of-memory kills when it was forked; None: unknown."""
        self._helpers: set[int] = set()
        """Processes started by modules while they were imported."""

    def prepare(self) -> Failed | None:
        """Unpickles the request handler, unless hosts do it, which imports the handler's modules; None: it can fork."""
        if self._config.imports:
            try:
                with _ending_with(self._owner), _without_collections():
                    self._request_handler = pickle.loads(self._config.request_handler)
                    all_reducers(None)  # loads array plug-ins, once for all hosts
            except Exception:
                return Failed(traceback.format_exc().splitlines())
            others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
            if others:
                return Failed([], others)
            self._helpers = set(children())
        gc.collect()
        gc.freeze()  # a collection in a host would write to every object's header, and so copy the shared pages
        return None

    def run(self) -> NoReturn:
        """Serves the owner until it closes the channel or ends; then ends this process with all that it started."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # the kernel would reap children before waitpid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with contextlib.suppress(EOFError, OSError):
            self._serve()
        for host in list(self._hosts):
            self._reap(host)
        self.kill_helpers()
        if not self._has_model:  # whose finalizers do not run: this process has never used it
            atexit._run_exitfuncs()
        _flush()
        os._exit(0)  # at once: to take apart all modules would keep the owner waiting

    def kill_helpers(self) -> None:
        """Kills the processes that modules started while they were imported, and orphans."""
        self._helpers = set()
        self._kill_orphans()

    def _serve(self) -> NoReturn:
        while True:
            request, files = _next_message(self._channel, self._owner)
            answer: Any
            if isinstance(request, Fork):
                answer = self._fork(request, *files)
            elif isinstance(request, Preload):
                answer = self._preload_model(request, files)
            else:
                answer = self._reap(request.host, only_if_exited=request.only_if_exited)
            self._channel.send(answer)

    def _preload_model(self, request: Preload, files: list[int]) -> Failed | None:
        if request.page is not None:
            ThreadBudget.inherited = ThreadBudget(Segment.received(files.pop(0)))
        if request.layout is None:
            keep_copies(dict(zip(request.copies, files, strict=True)))
        elif self._request_handler is None:
            self._model_for_hosts = request, files
        else:
            try:
                _preload_model(self._request_handler, request, files)
            except Exception:
                return Failed(traceback.format_exc().splitlines())
            finally:
                for file in files:
                    os.close(file)
            self._has_model = True
            gc.collect()
            gc.freeze()
        return None

    def _fork(self, request: Fork, channel: int, progress: int) -> int | Failed:
        fork_server, killed = os.getpid(), oom_kills()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # native threads: their libraries survive forks
                host = os.fork()
            if not host:
                os.environ.update(request.environment)
                self._become_host(fork_server, channel, progress)
            self._hosts[host] = killed
        except OSError:
            return Failed(traceback.format_exc().splitlines())
        finally:
            os.close(channel)
            os.close(progress)
        with contextlib.suppress(OSError):  # parent and child both do this, since either may run first
            os.setpgid(host, host)
        return host

    def _become_host(self, fork_server: int, channel: int, progress: int) -> NoReturn:
        code = 1
        try:
            to_owner = Channel.inherited(channel)  # this reference keeps it open until the process exits
            os.setpgid(0, 0)  # it and what it starts end together, with the fork server at the latest
            die_with_parent(signal.SIGKILL, fork_server)
            adopt_orphans()
            change_oom_score(KILLED_FIRST)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            self._channel.close()
            request_handler = self._request_handler or pickle.loads(self._config.request_handler)
            self._request_handler = None
            if (threads := self._config.environment.threads) is not None:
                for codec in codecs():
                    codec.limit_threads(threads)
            if self._model_for_hosts is not None:
                _preload_model(request_handler, *self._model_for_hosts)
            serve(request_handler, to_owner, progress)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            logging.getLogger(__name__).critical("The model host has failed.", exc_info=True)
        finally:
            _flush()
            os._exit(code & 0xFF)

    def _reap(self, host: int, *, only_if_exited: bool = False) -> HostExit | None:
        if host not in self._hosts:
            return None
        ended = HostExit(None)
        with contextlib.suppress(ChildProcessError):  # some module has reaped it; its id may be in use again
            ended_itself = has_ended(host, _EXIT_GRACE_SECS if only_if_exited else 0)
            if only_if_exited and not ended_itself:
                return None
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses a group of zombies
                os.killpg(host, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(host, signal.SIGKILL)  # in case it has left its process group
            code = os.waitstatus_to_exitcode(os.waitpid(host, 0)[1])
            is_killed = ended_itself and code == -signal.SIGKILL
            ended = HostExit(code, self._why_killed(host) if is_killed else ExitCause.OTHER)
        self._hosts.pop(host)
        self._kill_orphans()
        return ended

    def _why_killed(self, host: int) -> ExitCause:
        before, now = self._hosts[host], oom_kills()
        if before is None or now is None or now <= before:
            return ExitCause.OTHER
        for other, count in self._hosts.items():  # one out-of-memory kill must not explain the exit of two hosts
            self._hosts[other] = None if count is None else count + 1
        return ExitCause.MEMORY

    def _kill_orphans(self) -> None:
        """Kills processes that exited hosts left behind, which this process has adopted.

        Children of running hosts are not affected, and a manager is left alone: other programs use it.
        """
        kept = self._hosts.keys() | self._helpers
        while orphans := [child for child in children() if child not in kept and not is_manager(child)]:
            for orphan in orphans:
                with contextlib.suppress(ChildProcessError):  # reaped by somebody else
                    if not has_ended(orphan):
                        os.kill(orphan, signal.SIGKILL)
                    os.waitpid(orphan, 0)


def _preload_model(request_handler: Any, request: Preload, files: list[int]) -> None:
    assert request.layout is not None
    request_handler.attach(pickle.loads(request.work), attach(files, request.layout))


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """What is imported stays: to visit it again and again takes a tenth of the time in which PyTorch is imported."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _ending_with(owner: int) -> Iterator[None]:
    """Ends this process if its owner ends meanwhile: imports may take long, or hang."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_OWNER_CHECK_SECS):
            if os.getppid() != owner:
                os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _next_message(channel: Channel, owner: int) -> tuple[Any, list[int]]:
    """Waits for the owner's next message.

    Raises:
        EOFError: the owner has closed the channel, or has ended while its forks hold the channel open.
        TimeoutError: half a message came.
    """
    while not is_readable(channel.fileno(), _OWNER_CHECK_SECS):
        if os.getppid() != owner:  # the kernel tells only of the end of the thread that started this process
            raise EOFError
    return channel.receive(stall_secs=_LONGEST_STALL_SECS)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def main() -> None:
    """Entry point; the arguments are the owner's process id and the channel's descriptor."""
    owner, descriptor = map(int, sys.argv[1:])
    adopt_orphans()
    channel = Channel.inherited(descriptor)
    setup: ForkServerSetup
    setup, (printed, logged) = channel.receive()
    redirect_output(printed, logged)
    faulthandler.enable(2)
    setup.environment.take(setup.environment)
    with _ending_with(owner), _without_collections():
        for module in setup.modules:
            with contextlib.suppress(Exception):  # which the request handler will raise, too
                importlib.import_module(module)
    try:
        config: ForkServerConfig = _next_message(channel, owner)[0]
    except (EOFError, OSError):  # nobody has needed it
        return
    config.environment.take(setup.environment)
    fork_server = ForkServer(channel, owner, config)
    answer = fork_server.prepare()
    if answer is not None:
        fork_server.kill_helpers()
    channel.send(answer)
    if answer is None:
        fork_server.run()


if __name__ == "__main__":  # multiprocessing "spawn" children of a host import this module again
    main()

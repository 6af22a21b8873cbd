"""One shared model in the manager: loaded once for all clients, into a weights file or into hosts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from headrace.core.errors import HeadraceError, HostStartError, ModelMemoryError
from headrace.hosts.client import ModelHosts
from headrace.hosts.environment import Preload, gpu_of, threads_of_each
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.hosts.host import Export, Exported
from headrace.hosts.output import OutputReader, record_line
from headrace.hosts.provider import ExitCause, HostExit, HostFailure
from headrace.ipc.channel import Channel
from headrace.ipc.weights_file import WeightsLayout
from headrace.machine.messages import LoadRequest, ModelGrant
from headrace.models.memory import memory_available, memory_of

_TRIES = 3

Outcome: TypeAlias = ModelGrant | HostFailure | HeadraceError
"""The manager's answer to a ``LoadRequest``."""


class SharedModel:
    """Loads a model as its first client has requested, and connects clients to its hosts."""

    def __init__(self, load_request: LoadRequest) -> None:
        self.load_request = load_request
        self.outcome: Outcome | None = None
        """None: the model is being loaded."""
        self.leases = 0
        self.linger_secs = 0.0
        """How long it stays in memory after its last lease has ended."""
        self.last_used_ns = 0
        self._files: list[int] = []
        """The descriptors of the exported model, or of copies of files from afar, that hosts inherit."""
        self._sinks: dict[object, int] = {}
        """Descriptors, by client, to which the hosts' output may be written; the first client gets it."""
        self._writing = threading.Lock()
        self._reaping = threading.Lock()
        self._exits: dict[int, HostExit] = {}
        """How hosts ended, by process id."""
        environment = load_request.environment
        if load_request.hosted:
            environment = environment.with_threads(threads_of_each(load_request.copies))
        self._fork_server = ForkServerClient(
            load_request.request_handler,
            load_request.name,
            environment=environment,
            output=lambda: OutputReader(load_request.name, log=self._forward_output),
            environment_of=lambda number: gpu_of(number, load_request.copies, environment.variables),
        )
        self._hosts = ModelHosts(self._fork_server, load_request.name, load_request.timeout_secs, load_request.copies)

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded."""
        return isinstance(self.outcome, ModelGrant) and self.outcome.is_loaded

    @property
    def weights(self) -> Sequence[int]:
        """Descriptors of the weights file and the others of its layout, if clients map them themselves."""
        is_mapped = isinstance(self.outcome, ModelGrant) and self.outcome.exported.layout is not None
        return self._files if is_mapped and not self.load_request.hosted else ()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes: its weights file, and what its hosts have allocated."""
        return self._size(self.outcome.exported.layout if isinstance(self.outcome, ModelGrant) else None)

    def describe(self) -> dict[str, Any]:
        """Its state in plain values: those of a ``ModelState``, and its key."""
        grant = self.outcome if isinstance(self.outcome, ModelGrant) else None
        return {
            "name": self.load_request.name,
            "key": self.load_request.key,
            "state": "ready" if self.is_ready else "loading" if self.outcome is None else "failed",
            "mapped": grant is not None and grant.exported.layout is not None,
            "reason": grant.exported.reason if grant else "",
            "nbytes": self.nbytes,
            "clients": self.leases,
            "hosts": self._hosts.processes,
            "linger_secs": self.linger_secs,
        }

    def load(
        self,
        make_room: Callable[[int], str | None],
        load_at_client: Callable[[], tuple[Exported, list[int]] | None],
    ) -> ModelGrant | HostFailure:
        """Has the model loaded into a weights file if possible, by a client or a host; else keeps a host that loads it.

        Args:
            make_room: waits until that many more bytes are free; returns why they cannot be, else None.
            load_at_client: returns what a client exported, with the weights file if there is one; None if no client
                loads the model.

        Raises:
            HeadraceError: there is not enough memory, or no host can be started.
            OSError: a system call failed.
        """
        free = memory_available()
        at_client = load_at_client()
        if at_client is None or at_client[0].reason:
            outcome = self._load_in_host(free, at_client[0].reason if at_client else self.load_request.refusal)
        else:
            exported, self._files = at_client
            outcome = self._grant(exported, free)
        if isinstance(outcome, ModelGrant) and outcome.is_loaded:
            self._start_hosts(outcome, make_room)
        return outcome

    def _start_hosts(self, grant: ModelGrant, make_room: Callable[[int], str | None]) -> None:
        """Starts the other hosts, which load the model if they cannot map it; or ends all if clients map it."""
        if grant.exported.layout is None:
            more = (self.load_request.copies - 1) * grant.nbytes
            refusal = make_room(more) if more else None
            if refusal:
                raise ModelMemoryError(f"{self.load_request.copies} copies of {self.load_request.name}", refusal)
            self._hosts.start_all(Export(self.load_request.work, grant.exported.reason))
        elif self.load_request.hosted:
            self._hosts.start_all()
        else:
            self._hosts.stop_hosts()
            self._fork_server.stop()

    def join(self, number: int) -> tuple[int, list[int]]:
        """Connects one more client to a host; returns its process id and the files for it, which the caller closes.

        Raises:
            HeadraceError: no host can be started, or hosts keep dying.
        """
        for _ in range(_TRIES):
            connection = self._hosts.connection(number)
            mine, theirs = Channel.pair()
            files: list[int] = []
            try:
                connection.add_client(theirs.fileno())
                for file in (mine.fileno(), connection.page.file, connection.pidfd):
                    files += [os.dup(file)] if file is not None else []
            except OSError:  # the host has died: the next ``connection`` starts another
                for file in files:
                    os.close(file)
                continue
            finally:
                mine.close()
                theirs.close()
            self._exits.pop(connection.process, None)  # an earlier host had the same process id
            return connection.process, files
        raise HostStartError(self.load_request.name, f"{_TRIES} hosts in a row ended before a client could join them.")

    def reap(self, process: int, *, late: bool) -> HostExit | None:
        """How a host ended; one that still runs is killed if it is ``late``, else left alone (None)."""
        with self._reaping:
            if process not in self._exits:
                exit_text = self._fork_server.reap(process, only_if_exited=not late)
                if exit_text is not None:
                    self._exits[process] = exit_text._replace(cause=ExitCause.LATE) if late else exit_text
            return self._exits.get(process)

    def add_sink(self, client: object, file: int) -> None:
        """Adds a client that can receive the hosts' output; takes the descriptor to write it to."""
        os.set_blocking(file, False)
        with self._writing:
            self._sinks[client] = file

    def remove_sink(self, client: object) -> None:
        """Closes a client's descriptor for output, if it has one."""
        with self._writing:
            if (file := self._sinks.pop(client, None)) is not None:
                os.close(file)

    def close(self) -> None:
        """Ends the hosts and closes all files."""
        self._hosts.close()
        for client in list(self._sinks):
            self.remove_sink(client)
        self._close_files()

    def _close_files(self) -> None:
        files, self._files = self._files, []
        for file in files:
            os.close(file)

    def _load_in_host(self, free: int, refusal: str) -> ModelGrant | HostFailure:
        """Loads the model in the first host, and exports it unless there is a ``refusal``, which says why not."""
        call = self._hosts.submit(Export(self.load_request.work, refusal), [])
        answer = self._hosts.result(call)
        if isinstance(answer, HostFailure):
            return answer
        exported: Exported = answer.head
        try:
            self._preload(exported, call.files)
        except HostStartError as error:
            if exported.layout is None:
                raise
            self._close_files()  # the model pickles but does not unpickle: load it again, into hosts
            return self._load_in_host(free, f"it does not unpickle ({str(error).splitlines()[-1]})")
        return self._grant(exported, free)

    def _grant(self, exported: Exported, free: int) -> ModelGrant:
        size, variant = self._size(exported.layout), self.load_request.variant
        return ModelGrant(exported, size, is_first=True, variant=variant, free=free)

    def _preload(self, exported: Exported, files: list[int]) -> None:
        """Gives the hosts to come what the loader exported: the weights, or copies of files from afar."""
        work = self.load_request.work
        if exported.layout is not None:
            self._files = files
            self._hosts.stop_hosts()  # only the loader runs; it moved the model's memory into the file
            self._fork_server.preload(Preload(work, files, exported.layout))
        elif exported.copies:
            self._files = files
            self._fork_server.preload(Preload(work, copies=dict(zip(exported.copies, files, strict=True))))

    def _size(self, layout: WeightsLayout | None) -> int:
        """Bytes that the model takes; what hosts inherit from their fork server (imports) does not count."""
        imports = _anonymous(self._fork_server.fork_server)
        own = sum(max(0, _anonymous(host) - imports) for host in self._hosts.processes)
        return own + (layout.nbytes if layout else 0)

    def _forward_output(self, logger: str, level: int, text: str) -> None:
        line = record_line(level, logger, text)
        with self._writing:
            for client, sink in list(self._sinks.items()):
                try:
                    with suppress(BlockingIOError):  # the client reads too slowly: drop the line
                        os.write(sink, line)
                    return
                except OSError:  # the client has gone: try the next one
                    os.close(self._sinks.pop(client))


def _anonymous(process: int | None) -> int:
    usage = memory_of(process) if process is not None else None
    return usage.anonymous if usage else 0

"""One model of the machine, as its manager has it: loaded once, in an arena or in hosts, for all clients together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from headrace.core.errors import HostStartError, ModelMemoryError
from headrace.hosts.client import ModelHosts
from headrace.hosts.connection import HostFailure
from headrace.hosts.fork_server_client import ForkServerClient, Preload
from headrace.hosts.gpus import gpu_of
from headrace.hosts.host import Export, Exported
from headrace.hosts.output import OutputReader, record_line
from headrace.hosts.provider import ExitCause, HostExit
from headrace.hosts.system import allowed_cores
from headrace.ipc.channel import Channel
from headrace.ipc.weights_file import WeightsFile
from headrace.machine.lease import JoinedHost, LoadRequest, ModelGrant, Refused
from headrace.models.memory import memory_available, memory_of

_TRIES = 3


class SharedModel:
    """Loads a model, and lets hosts for it.

    Args:
        order: the first client's.
    """

    def __init__(self, load_request: LoadRequest) -> None:
        self.load_request = load_request
        self.outcome: ModelGrant | HostFailure | Refused | None = None
        """What there is to tell clients; None: it is being loaded."""
        self.peak: int | None = None
        """Bytes that the loader took, at most."""
        self._file: int | None = None
        """The arena's."""
        self._files: list[int] = []
        """All that hosts inherit."""
        self._sinks: dict[object, int] = {}
        """Where clients read what hosts print and log; the first of them gets it."""
        self._writing = threading.Lock()
        self._burying = threading.Lock()
        self._endings: dict[int, HostExit] = {}
        """How hosts have ended, by process."""
        environment = load_request.environment
        if load_request.hosted:
            environment = environment.with_threads(max(1, allowed_cores() // load_request.copies))
        self._fork_server = ForkServerClient(
            load_request.request_handler,
            load_request.name,
            environment=environment,
            output=self._reader,
            environment_of=lambda number: gpu_of(number, load_request.copies, environment.variables),
        )
        self._hosts = ModelHosts(self._fork_server, load_request.name, load_request.timeout_secs, load_request.copies)

    @property
    def is_ready(self) -> bool:
        """Whether clients can have it."""
        return isinstance(self.outcome, ModelGrant) and self.outcome.is_loaded

    @property
    def file(self) -> int | None:
        """The arena's, for clients that map it themselves."""
        return None if self.load_request.hosted else self._file

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes: its arena, and what its hosts have for themselves."""
        return self._size(self.outcome.arena if isinstance(self.outcome, ModelGrant) else None)

    @property
    def processes(self) -> list[int]:
        """Its hosts."""
        return self._hosts.processes

    def load(self, make_room: Callable[[int], str | None]) -> ModelGrant | HostFailure:
        """Loads it; puts it into an arena, if that can be, else keeps the host that has it.

        Args:
            make_room: waits for so many more bytes; returns why there are not as many, if so.

        Raises:
            HeadraceError: it cannot be had.
            OSError: the system fails.
        """
        outcome = self._load()
        if isinstance(outcome, ModelGrant) and outcome.is_loaded:
            self._settle_in(outcome, make_room)
        return outcome

    def _settle_in(self, grant: ModelGrant, make_room: Callable[[int], str | None]) -> None:
        """Starts all hosts, and has them load what they cannot map; or ends those that nobody will need."""
        if grant.arena is None:
            more = (self.load_request.copies - 1) * grant.nbytes
            refusal = make_room(more) if more else None
            if refusal:
                raise ModelMemoryError(f"{self.load_request.copies} copies of {self.load_request.name}", refusal)
            self._hosts.start_all(Export(self.load_request.work, grant.reason))
        elif self.load_request.hosted:
            self._hosts.start_all()
        else:
            self._hosts.end_hosts()
            self._fork_server.rest()

    def join(self, number: int) -> tuple[JoinedHost, list[int]]:
        """A way to a host for one more client: what to tell it, and files for it, which the caller closes.

        Raises:
            HeadraceError: there is no host to be had.
        """
        for _ in range(_TRIES):
            connection = self._hosts.connection(number)
            mine, theirs = Channel.pair()
            files: list[int] = []
            try:
                connection.introduce(theirs.fileno())
                for file in (mine.fileno(), connection.progress_file, connection.watched):
                    files += [os.dup(file)] if file is not None else []
            except OSError:  # it has ended
                for file in files:
                    os.close(file)
                continue
            finally:
                mine.close()
                theirs.close()
            self._endings.pop(connection.process, None)  # of an earlier one with that number
            return JoinedHost(connection.process), files
        raise HostStartError(self.load_request.name, f"{_TRIES} hosts in a row ended before a client could join them.")

    def reap(self, process: int, *, late: bool) -> HostExit | None:
        """How a host has ended; one that has not is killed if it is ``late``, else left alone."""
        with self._burying:
            if process not in self._endings:
                ending = self._fork_server.reap(process, spares=not late)
                if ending is not None:
                    self._endings[process] = ending._replace(cause=ExitCause.LATE) if late else ending
            return self._endings.get(process)

    def add_sink(self, client: object, file: int) -> None:
        """One more client would read what hosts print and log, at the other end of that file."""
        os.set_blocking(file, False)
        with self._writing:
            self._sinks[client] = file

    def remove_sink(self, client: object) -> None:
        """It has left; or it waits for the end of what it reads."""
        with self._writing:
            if (file := self._sinks.pop(client, None)) is not None:
                os.close(file)

    def close(self) -> None:
        """Ends everything that belongs to it."""
        self._hosts.close()
        with self._writing:
            for sink in self._sinks.values():
                os.close(sink)
            self._sinks.clear()
        self._close_files()

    def _close_files(self) -> None:
        files, self._files, self._file = self._files, [], None
        for file in files:
            os.close(file)

    def _load(self, refusal: str = "") -> ModelGrant | HostFailure:
        free = memory_available()
        call = self._hosts.submit(Export(self.load_request.work, refusal), [])
        answer = self._hosts.result(call)
        if isinstance(answer, HostFailure):
            return answer
        exported: Exported = answer.head
        self.peak = exported.peak
        if exported.arena is not None:
            [self._file] = self._files = call.files
            self._hosts.end_hosts()  # of whom only the loader has been born
            try:
                self._fork_server.preload(Preload(self.load_request.work, self._file, exported.arena))
            except HostStartError as error:  # what pickles need not unpickle
                self._close_files()
                return self._load(f"it does not unpickle ({str(error).splitlines()[-1]})")
        elif exported.copies:
            self._files = call.files
            copies = dict(zip(exported.copies, self._files, strict=True))
            self._fork_server.preload(Preload(self.load_request.work, copies=copies))
        size = self._size(exported.arena)
        return ModelGrant(
            told=exported.told,
            arena=exported.arena,
            reason=exported.reason,
            nbytes=size,
            is_first=True,
            variant=self.load_request.variant,
            free=free,
            peak=self.peak,
        )

    def _size(self, arena: WeightsFile | None) -> int:
        """Imports, which hosts have from their fork server, do not count."""
        fork_server = self._fork_server.fork_server
        imports = _anonymous(fork_server) if fork_server is not None else 0
        own = sum(max(0, _anonymous(host) - imports) for host in self.processes)
        return own + (arena.nbytes if arena else 0)

    def _reader(self) -> OutputReader:
        return OutputReader(self.load_request.name, log=self._pass_on)

    def _pass_on(self, logger: str, level: int, text: str) -> None:
        line = record_line(level, logger, text)
        with self._writing:
            for client, sink in list(self._sinks.items()):
                try:
                    os.write(sink, line)
                except BlockingIOError:  # it reads too slowly; what would not fit is lost
                    return
                except OSError:  # it has ended
                    os.close(self._sinks.pop(client))
                else:
                    return


def _anonymous(process: int) -> int:
    usage = memory_of(process)
    return usage.anonymous if usage else 0

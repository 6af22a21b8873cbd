"""One model of the machine, as its manager has it: loaded once, in an arena or in hosts, for all clients together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from headrace.core.errors import HostStartError, ModelMemoryError
from headrace.hosting.arena import Arena
from headrace.hosting.channel import Channel
from headrace.hosting.client import ModelHosts
from headrace.hosting.gpus import gpu_of
from headrace.hosting.host import Export, Exported
from headrace.hosting.lease import Joined, Order, Refused, Share
from headrace.hosting.life import Loss
from headrace.hosting.memory import memory_available, memory_of
from headrace.hosting.nursery import Inheritance, Nursery
from headrace.hosting.output import OutputReader, record_line
from headrace.hosting.system import allowed_cores
from headrace.hosting.tenancy import Cause, Ending

_TRIES = 3


class SharedModel:
    """Loads a model, and lets hosts for it.

    Args:
        order: the first client's.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.outcome: Share | Loss | Refused | None = None
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
        self._endings: dict[int, Ending] = {}
        """How hosts have ended, by process."""
        surroundings = order.surroundings
        if order.hosted:
            surroundings = surroundings.with_threads(max(1, allowed_cores() // order.copies))
        self._nursery = Nursery(
            order.servant,
            order.name,
            surroundings=surroundings,
            output=self._reader,
            environment_of=lambda number: gpu_of(number, order.copies, surroundings.environment),
        )
        self._hosts = ModelHosts(self._nursery, order.name, order.timeout_secs, order.copies)

    @property
    def is_ready(self) -> bool:
        """Whether clients can have it."""
        return isinstance(self.outcome, Share) and self.outcome.is_loaded

    @property
    def file(self) -> int | None:
        """The arena's, for clients that map it themselves."""
        return None if self.order.hosted else self._file

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes: its arena, and what its hosts have for themselves."""
        return self._size(self.outcome.arena if isinstance(self.outcome, Share) else None)

    @property
    def processes(self) -> list[int]:
        """Its hosts."""
        return self._hosts.processes

    def load(self, make_room: Callable[[int], str | None]) -> Share | Loss:
        """Loads it; puts it into an arena, if that can be, else keeps the host that has it.

        Args:
            make_room: waits for so many more bytes; returns why there are not as many, if so.

        Raises:
            HeadraceError: it cannot be had.
            OSError: the system fails.
        """
        outcome = self._load()
        if isinstance(outcome, Share) and outcome.is_loaded:
            self._settle_in(outcome, make_room)
        return outcome

    def _settle_in(self, share: Share, make_room: Callable[[int], str | None]) -> None:
        """Starts all hosts, and has them load what they cannot map; or ends those that nobody will need."""
        if share.arena is None:
            more = (self.order.copies - 1) * share.nbytes
            refusal = make_room(more) if more else None
            if refusal:
                raise ModelMemoryError(f"{self.order.copies} copies of {self.order.name}", refusal)
            self._hosts.start_all(Export(self.order.work, share.reason))
        elif self.order.hosted:
            self._hosts.start_all()
        else:
            self._hosts.end_hosts()
            self._nursery.rest()

    def join(self, number: int) -> tuple[Joined, list[int]]:
        """A way to a host for one more client: what to tell it, and files for it, which the caller closes.

        Raises:
            HeadraceError: there is no host to be had.
        """
        for _ in range(_TRIES):
            life = self._hosts.life(number)
            mine, theirs = Channel.pair()
            files: list[int] = []
            try:
                life.introduce(theirs.fileno())
                for file in (mine.fileno(), life.progress_file, life.watched):
                    files += [os.dup(file)] if file is not None else []
            except OSError:  # it has ended
                for file in files:
                    os.close(file)
                continue
            finally:
                mine.close()
                theirs.close()
            self._endings.pop(life.process, None)  # of an earlier one with that number
            return Joined(life.process), files
        raise HostStartError(self.order.name, f"{_TRIES} hosts in a row ended before a client could join them.")

    def bury(self, process: int, *, late: bool) -> Ending | None:
        """How a host has ended; one that has not is killed if it is ``late``, else left alone."""
        with self._burying:
            if process not in self._endings:
                ending = self._nursery.bury(process, spares=not late)
                if ending is not None:
                    self._endings[process] = ending._replace(cause=Cause.LATE) if late else ending
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

    def _load(self, refusal: str = "") -> Share | Loss:
        free = memory_available()
        call = self._hosts.submit(Export(self.order.work, refusal), [])
        answer = self._hosts.result(call)
        if isinstance(answer, Loss):
            return answer
        exported: Exported = answer.head
        self.peak = exported.peak
        if exported.arena is not None:
            [self._file] = self._files = call.files
            self._hosts.end_hosts()  # of whom only the loader has been born
            try:
                self._nursery.inherit(Inheritance(self.order.work, self._file, exported.arena))
            except HostStartError as error:  # what pickles need not unpickle
                self._close_files()
                return self._load(f"it does not unpickle ({str(error).splitlines()[-1]})")
        elif exported.copies:
            self._files = call.files
            copies = dict(zip(exported.copies, self._files, strict=True))
            self._nursery.inherit(Inheritance(self.order.work, copies=copies))
        size = self._size(exported.arena)
        return Share(
            told=exported.told,
            arena=exported.arena,
            reason=exported.reason,
            nbytes=size,
            is_first=True,
            variant=self.order.variant,
            free=free,
            peak=self.peak,
        )

    def _size(self, arena: Arena | None) -> int:
        """Imports, which hosts have from their zygote, do not count."""
        zygote = self._nursery.zygote
        imports = _anonymous(zygote) if zygote is not None else 0
        own = sum(max(0, _anonymous(host) - imports) for host in self.processes)
        return own + (arena.nbytes if arena else 0)

    def _reader(self) -> OutputReader:
        return OutputReader(self.order.name, log=self._pass_on)

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

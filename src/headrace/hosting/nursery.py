"""The owner's side of a zygote: starts it, has it fork and bury hosts, starts another when it has died."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from headrace.core.errors import HostStartError
from headrace.hosting.arena import Arena
from headrace.hosting.channel import Channel
from headrace.hosting.orphans import end_marked, new_mark
from headrace.hosting.output import OutputReader
from headrace.hosting.progress import Progress
from headrace.hosting.segment import Segment
from headrace.hosting.starter import STARTER, start_zygote
from headrace.hosting.surroundings import Surroundings
from headrace.hosting.system import watch
from headrace.hosting.tenancy import Ending, Tenancy, how_ended
from headrace.hosting.zygote import Attach, Attached, Bury, Failed, Fork, Ready, Unfit, Upbringing

_LOGGER = logging.getLogger(__name__)
_LONGEST_IMPORT_SECS = 600
_LONGEST_ANSWER_SECS = 60
"""A zygote computes nothing; to reap a host takes it 20 ms for each GB of its memory."""
_LAST_SECS = 1
"""For a zygote that ends since it is of no use."""
_TRIES = 3

T = TypeVar("T")


class Zygote:
    """One zygote process.

    Args:
        servant: pickled.
        output: where what it and its hosts print and log is read.
        surroundings: that it takes over.
        imports: whether it shall import the servant's modules before it forks.

    Raises:
        EOFError: it has died at once.
        OSError: it cannot be started.
        RuntimeError: nor can threads, since there are too many, or since the program ends.
    """

    def __init__(self, servant: bytes, output: OutputReader, surroundings: Surroundings, *, imports: bool) -> None:
        self._mark = new_mark()
        self._output = output
        try:
            self._process, self._channel = _connected(surroundings, self._mark)
        except BaseException:
            self._output.close(0)
            raise
        try:
            upbringing = Upbringing(servant, surroundings, imports)
            self._channel.send(upbringing, [self._output.printed, self._output.logged])
            self._output.release()
        except BrokenPipeError:
            raise EOFError(self.close()) from None
        except BaseException:
            self.close(0)
            raise

    def ready(self) -> Ready | Unfit | Failed:
        """What it says once it has imported everything.

        Raises:
            EOFError: it has died.
            TimeoutError: it takes too long.
        """
        answer: Ready | Unfit | Failed = self._channel.receive(_LONGEST_IMPORT_SECS)[0]
        return answer

    def ask(self, request: Fork | Bury | Attach, *files: int) -> int | Ending | Attached | Failed | None:
        """A host's process id, or how it has ended: None if it is none of this zygote's, or runs on.

        Raises:
            EOFError: the zygote has died.
            OSError: it cannot be reached, or does not answer.
        """
        self._channel.send(request, files)
        answer: int | Ending | Attached | Failed | None = self._channel.receive(_LONGEST_ANSWER_SECS)[0]
        return answer

    @property
    def process(self) -> int:
        """Its process id."""
        return self._process.pid

    def kill(self) -> None:
        """Has whoever waits for it see its end; it is still to be closed."""
        self._process.kill()

    def disown(self) -> None:
        """In a fork of the owner: lets go of what is the parent's."""
        self._channel.close()
        self._process.poll()  # sees that it is no child of this process

    def close(self, patience_secs: float | None = None) -> str:
        """Ends it, its hosts and whatever they have started; returns how it ended.

        Args:
            patience_secs: how long to wait before it is killed; None: as long as an answer may take.
        """
        self._channel.shut_down()
        self._channel.close()
        try:
            self._process.wait(_LONGEST_ANSWER_SECS if patience_secs is None else patience_secs)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            end_marked(self._mark)
        self._output.close()
        return how_ended(self._process.returncode)


class Inheritance(NamedTuple):
    """What hosts have from birth; the files stay the giver's."""

    work: bytes
    """Pickled; what the model was exported for."""
    file: int | None = None
    """Of the model's arena, if it is in one."""
    arena: Arena | None = None
    page: int | None = None
    """That says how many processes compute over models of the machine."""
    copies: Mapping[str, int] = {}
    """Files with the contents of URIs that are read as the model is loaded."""


class Nursery:
    """Gives birth to hosts, and buries them; thread-safe.

    Args:
        servant: pickled; answers the requests of every host.
        name: of the model, for the log and for errors.
        inheritance: what hosts have from birth; its file stays the caller's, and open.
        surroundings: of the hosts; None: this process's, when they are born.
        output: makes a reader for what hosts print and log; None: it goes to the logging of this process.
        environment_of: what the host of a number has in its environment besides.
    """

    def __init__(
        self,
        servant: bytes,
        name: str,
        *,
        inheritance: Inheritance | None = None,
        surroundings: Surroundings | None = None,
        output: Callable[[], OutputReader] | None = None,
        environment_of: Callable[[int], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self._servant = servant
        self._name = name
        self._inheritance = inheritance
        self._surroundings = surroundings
        self._output = output or (lambda: OutputReader(name))
        self._environment_of = environment_of
        self._begin()

    def _begin(self) -> None:
        self._imports = True
        self._zygote: Zygote | None = None
        self._newborn: Zygote | None = None
        """A zygote that is importing modules."""
        self._is_closed = False
        self._lock = threading.Lock()

    def host(self, number: int = 0) -> Tenancy:
        """A new host, for this process alone.

        Raises:
            HostStartError: it cannot be had.
            OSError: too many files are open.
        """
        progress = Segment.create(0, Progress.SIZE)
        channel, theirs = Channel.pair()
        try:
            process = self.fork(theirs.fileno(), progress.file, number)
        except BaseException:
            channel.close()
            progress.close()
            raise
        finally:
            theirs.close()
        return Tenancy(process, channel, progress, watch(process))

    def inherit(self, inheritance: Inheritance) -> None:
        """Gives hosts that are yet to be born a model, or what it is loaded from.

        Raises:
            HostStartError: the zygote cannot map the model.
        """
        with self._lock:
            if self._zygote is not None:
                self._try(lambda zygote: _leave(zygote, inheritance, self._name))
            self._inheritance = inheritance

    def fork(self, channel: int, progress: int, number: int = 0) -> int:
        """The process id of a new host, which has the two files.

        Raises:
            HostStartError: it cannot be had.
        """
        with self._lock:
            request = Fork(self._environment_of(number))
            answer = self._try(lambda zygote: zygote.ask(request, channel, progress))
            if isinstance(answer, int):
                return answer
            raise HostStartError(self._name, "it cannot be forked.", answer.lines if isinstance(answer, Failed) else ())

    def _try(self, ask: Callable[[Zygote], T]) -> T:
        """What a zygote says; another one, should one die over it."""
        ending = ""
        for _ in range(_TRIES):
            try:
                self._zygote = self._zygote or self._new_zygote()
                return ask(self._zygote)
            except (EOFError, OSError) as error:
                ending = self._end_zygote(error) or "died"
            except BaseException as error:
                self._end_zygote(error)
                raise
        raise HostStartError(self._name, f"the process that forks it {ending}, {_TRIES} times in a row.")

    def bury(self, host: int, *, late: bool = False, spares: bool = False) -> Ending | None:
        """Kills a host and whatever it has started; returns how it ended.

        None: it is none of those that there are; or it runs, and is to be spared then (``spares``).
        """
        with self._lock:
            if self._zygote is None:
                return None  # the host went with its zygote
            try:
                answer = self._zygote.ask(Bury(host, spares))
            except (EOFError, OSError) as error:
                self._end_zygote(error)
                return None
            except BaseException as error:
                self._end_zygote(error)
                raise
            return answer if isinstance(answer, Ending) else None

    @property
    def zygote(self) -> int | None:
        """The process that forks hosts, if there is one now."""
        zygote = self._zygote
        return zygote.process if zygote is not None else None

    def rest(self) -> None:
        """Ends everything until the next host is wanted."""
        with self._lock:
            self._end_zygote()

    def close(self) -> None:
        """Ends everything, for good."""
        self.hurry()
        with self._lock:
            self._end_zygote()

    def hurry(self) -> None:
        """Has nobody wait for a birth from now on: it fails."""
        self._is_closed = True
        if (newborn := self._newborn) is not None:
            newborn.kill()

    def disown(self) -> None:
        """In a fork of this process: lets go of what is the parent's, and begins anew."""
        for zygote in (self._zygote, self._newborn):
            if zygote is not None:
                zygote.disown()
        self._begin()

    def _end_zygote(self, error: BaseException | None = None) -> str:
        """Ends it; after an ``error``, since what it says from now on would be the answer to something else."""
        zygote, self._zygote = self._zygote, None
        if zygote is None:
            return ""
        if isinstance(error, TimeoutError):
            zygote.close(0)
            return f"did not answer for {_LONGEST_ANSWER_SECS} s"
        return zygote.close()

    def _new_zygote(self, *, again: bool = True) -> Zygote:
        """A zygote that is ready; one that dies as it imports may have been killed by an outsider, so ``again``."""
        try:
            surroundings = self._surroundings or Surroundings.here()
            self._newborn = zygote = Zygote(self._servant, self._output(), surroundings, imports=self._imports)
        except EOFError as error:
            raise HostStartError(self._name, f"it {error} as it started.") from None
        except (OSError, RuntimeError) as error:  # too few files, processes or threads
            raise HostStartError(self._name, f"{error}.") from error
        try:
            answer = self._first_words(zygote, forgives=again)
        finally:
            self._newborn = None
        if isinstance(answer, Ready):
            try:
                if self._inheritance is not None:
                    _leave(zygote, self._inheritance, self._name)
            except BaseException:
                zygote.close(0)
                raise
            return zygote
        if answer is None:
            return self._new_zygote(again=False)
        zygote.close(_LAST_SECS)
        if isinstance(answer, Failed):
            raise HostStartError(self._name, "the handler cannot be unpickled there.", answer.lines)
        _LOGGER.info(
            "%s: its modules have started threads (%s) as they were imported, so each host imports them itself.",
            self._name,
            ", ".join(answer.threads),
        )
        self._imports = False
        return self._new_zygote()

    def _first_words(self, zygote: Zygote, *, forgives: bool) -> Ready | Unfit | Failed | None:
        """What it says once it has imported everything; None: it has died, and that is forgiven."""
        try:
            if self._is_closed:
                raise EOFError
            return zygote.ready()
        except TimeoutError:
            zygote.close(0)
            reason = f"its imports took {_LONGEST_IMPORT_SECS} s"
        except (EOFError, OSError):
            reason = f"it {zygote.close(0 if self._is_closed else None)}"
            if forgives and not self._is_closed:
                return None
        except BaseException:
            zygote.close(0)
            raise
        if self._is_closed:
            raise HostStartError(self._name, "its owner no longer wants one.")
        raise HostStartError(self._name, f"{reason} while it imported the handler's modules.")


def _leave(zygote: Zygote, inheritance: Inheritance, name: str) -> None:
    """Has a zygote map a model.

    Raises:
        HostStartError: it cannot.
        EOFError, OSError: it has died.
    """
    work, file, arena, page, copies = inheritance
    files = [given for given in (file, page, *copies.values()) if given is not None]
    answer = zygote.ask(Attach(arena, work, tuple(copies), has_page=page is not None), *files)
    if isinstance(answer, Failed):
        raise HostStartError(name, "the model cannot be unpickled there.", answer.lines)


def _connected(surroundings: Surroundings, mark: str) -> tuple[subprocess.Popen[bytes], Channel]:
    """A new process, and the channel to it."""
    mine, theirs = Channel.pair()
    try:
        return STARTER.run(lambda: start_zygote(theirs, surroundings, mark)), mine
    except BaseException:
        mine.close()
        raise
    finally:
        theirs.close()

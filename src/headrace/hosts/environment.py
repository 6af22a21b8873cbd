"""What hosts take over from their owner: module search path, directory, variables, a model; their GPU and cores."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from struct import Struct
from typing import Any, ClassVar, NamedTuple

from headrace.hosts.system import allowed_cores
from headrace.ipc.segment import Segment
from headrace.ipc.serialization import codecs
from headrace.ipc.weights_file import WeightsLayout

_GPUS = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES = ("/dev/kfd", "/dev/accel")
"""Where AMD's GPUs are, and other accelerators."""
_COUNT = Struct("@Q")


@dataclass(frozen=True)
class ProcessEnvironment:
    """A process's Python, search path, directory, variables, log level and thread limit."""

    executable: str
    """Path of the Python interpreter."""
    path: list[str]
    """``sys.path``."""
    directory: str
    variables: dict[str, str]
    log_level: int
    """Level of the root logger."""
    threads: int | None = None
    """How many threads each framework may compute with; None: its default."""

    @classmethod
    def here(cls) -> ProcessEnvironment:
        """The environment of this process."""
        return cls(
            sys.executable, list(sys.path), _directory(), dict(os.environ), logging.getLogger().getEffectiveLevel()
        )

    def start(self, module: str, *arguments: object, files: Sequence[int], **options: Any) -> subprocess.Popen[bytes]:
        """Starts one of our modules in a process of its own session, which inherits these descriptors."""
        path = [os.path.join(self.directory, entry) for entry in self.path if isinstance(entry, str)]
        return subprocess.Popen(  # noqa: S603 - this Python, with our own module
            [self.executable, "-m", module, *map(str, arguments)],
            env={**self.variables, "PYTHONPATH": os.pathsep.join(path)},  # where it finds this package
            cwd=os.sep,  # "-m" puts the directory first on sys.path: files in this process's may shadow our imports
            stdin=subprocess.DEVNULL,
            pass_fds=files,
            start_new_session=True,  # the terminal's Ctrl-C does not reach it
            **options,
        )

    def take(self, before: ProcessEnvironment) -> None:
        """Applies log level, search path, directory and variables; the process was started with those of ``before``."""
        logging.getLogger().setLevel(self.log_level)
        sys.path[:] = self.path
        os.environ.update(self.variables.items() - before.variables.items())
        for name in before.variables.keys() - self.variables.keys():
            os.environ.pop(name, None)
        own = self.variables.get("PYTHONPATH")
        if own is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = own
        with contextlib.suppress(OSError):  # it has been removed
            os.chdir(self.directory)

    def with_threads(self, count: int) -> ProcessEnvironment:
        """A copy that limits native thread pools to ``count`` threads; variables that are set already win."""
        limited = {**dict.fromkeys(_POOLS, str(count)), **self.variables}
        return replace(self, variables=limited, threads=None if _POOLS[0] in self.variables else count)


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


def threads_of_each(processes: int) -> int:
    """How many threads each of several processes may compute with, so that they share the cores."""
    return max(1, allowed_cores() // processes)


_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Variables that numeric libraries read when they are loaded."""


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return os.sep


def gpu_of(number: int, copies: int, environment: Mapping[str, str], driver: Path = _DRIVER) -> dict[str, str]:
    """The environment variable that gives copy ``number`` its share of the GPUs, or one in turn if there are fewer.

    Empty with a single copy or GPU.
    """
    gpus = visible_gpus(environment, driver)
    share = max(1, len(gpus) // copies)
    first = number * share % max(1, len(gpus))
    return {_GPUS: ",".join(gpus[first : first + share])} if copies > 1 and len(gpus) > 1 else {}


def visible_gpus(environment: Mapping[str, str], driver: Path = _DRIVER) -> list[str]:
    """The ids in ``CUDA_VISIBLE_DEVICES`` if it is set, else the numbers of all NVIDIA GPUs."""
    named = environment.get(_GPUS)
    if named is not None:
        names = map(str.strip, named.split(","))
        return [name for name in takewhile(lambda name: name != "-1", names) if name]  # for CUDA that ends the list
    try:
        return [str(number) for number in range(len(os.listdir(driver)))]
    except OSError:
        return []


def has_accelerator(environment: Mapping[str, str]) -> bool:
    """Whether this machine has a device, such as a GPU, that frameworks may put models on."""
    return sys.platform == "darwin" or bool(visible_gpus(environment)) or any(map(os.path.exists, _DEVICES))


def count_computing(page: Segment, processes: int) -> None:
    """In the manager: says on the page, which ``ThreadBudget``s read, how many processes share the cores."""
    _COUNT.pack_into(page.memory, 0, processes)


class ThreadBudget(threading.local):
    """Limits the native threads of frameworks to this process's share of the cores; state is per thread.

    Args:
        page: shared memory that says how many processes share the cores.
    """

    inherited: ClassVar[ThreadBudget | None] = None
    """In a host: the one that its fork server has set."""

    def __init__(self, page: Segment) -> None:
        self._page = page
        self._processes = 1
        self._undo: list[Callable[[], None]] = []

    def keep(self) -> None:
        """Updates the calling thread's limits; call it before each computation. Cheap when nothing has changed."""
        processes = max(1, int(_COUNT.unpack_from(self._page.memory)[0]))
        if processes != self._processes:
            self.release()
            self._processes = processes
            threads = threads_of_each(processes)
            self._undo = [codec.limit_threads(threads) for codec in codecs()] if processes > 1 else []

    def release(self) -> None:
        """Removes the calling thread's limits."""
        for undo in reversed(self._undo):  # in reverse: frameworks may share a library
            undo()
        self._undo, self._processes = [], 1

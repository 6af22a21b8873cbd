"""What the tests of model hosts share: toys that do as they are told, and a census of what a test leaves."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pytest

from headrace.hosts import system
from headrace.hosts.client import ModelHosts
from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.hosts.host import RequestHandler, Response
from headrace.hosts.system import children, fields_of, processes
from headrace.ipc.weights_file import attach
from headrace.machine import lease
from headrace.machine.discovery import ManagerEndpoint
from headrace.machine.lease import Lease
from headrace.machine.manager import Manager
from headrace.machine.messages import LoadRequest
from headrace.testing import FakeClock
from waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # hosts cannot import it

_OUR_MARK = system.new_mark().rpartition(":")[0].encode()


@pytest.fixture
def census(request):
    """Fails the test if it leaves a process, a descriptor, a mapping or a thread behind."""
    cloudpickle.register_pickle_by_value(request.module)
    before = _belongings()
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
    assert wait_until(lambda: not _left(before)) or sorted(_left(before)) == []


def _left(before):
    if left := _belongings() - before:
        gc.collect()
    return left


def _belongings():
    numbers = map(str, marked() + children())
    threads = {thread.name for thread in threading.enumerate()} - {"headrace starts fork servers"}
    maps = [
        line.split(maxsplit=1)[0] for line in Path("/proc/self/maps").read_text().splitlines() if "headrace" in line
    ]
    return {"process " + number for number in numbers} | descriptors() | threads | set(maps)


def marked():
    """The processes that were started for a model of this process."""
    return [process for process in processes() if b"=" + _OUR_MARK + b":" in _environment(process)]


def _environment(process):
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""


@pytest.fixture(name="marked")
def _marked():
    return marked


def descriptors():
    """The open ones of this process, and what they are of; others may delete a shared file meanwhile."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"descriptor {name} of {os.readlink(f'/proc/self/fd/{name}').removesuffix(' (deleted)')}")
        except FileNotFoundError:  # the one that was used for listing
            continue
    return found


@pytest.fixture
def own_marks(monkeypatch):
    """Other tests' processes have another variable for marks: here their orphans are none, and there those of here."""
    monkeypatch.setattr(system, "MARK", f"HEADRACE_HOST_OF_{os.getpid()}")


@pytest.fixture
def orphan(popen, own_marks):
    """A process that carries the mark of one that has ended."""
    with popen(["sleep", "1000"]) as owner:
        namespace, _, start, _ = system.new_mark().split(":")
        owner.kill()
    return popen(["sleep", "1000"], env={**os.environ, system.MARK: f"{namespace}:{owner.pid}:{start}:1"})


@pytest.fixture(name="descriptors")
def _descriptors():
    return descriptors


@pytest.fixture
def when_in():
    """Does something in another thread as soon as the main thread is in a function."""
    main = threading.main_thread().ident

    def act(function, action):
        assert wait_until(lambda: function.__code__ in _codes(sys._current_frames()[main]))
        action()

    threads = []

    def when_in(function, action):
        threads.append(threading.Thread(target=act, args=[function, action]))
        threads[-1].start()
        return threads[-1]

    yield when_in
    for thread in threads:
        thread.join()


@pytest.fixture
def ctrl_c_in(interruptible, when_in):
    """Presses Ctrl-C as soon as the main thread is in a function."""
    press = functools.partial(signal.pthread_kill, threading.main_thread().ident, signal.SIGINT)
    return lambda function: when_in(function, press)


def _codes(frame):
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


class Toy(RequestHandler):
    """A request handler that does as it is told: a request's head is a pickled function of its rows and the toy.

    Args:
        imports: a module that is imported wherever the request handler is unpickled.
    """

    def __init__(self, imports=None):
        self.imports = imports

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.born_in = os.getpid()
        if self.imports is not None:
            self.module = __import__(self.imports)

    def answer(self, head, rows, progress):
        self.progress = progress
        try:
            answer = pickle.loads(head)(rows, self)
        except Exception as error:
            return Response(("raised", repr(error)))
        return answer if isinstance(answer, Response) else Response("done", answer)

    def unreadable(self, error):
        return Response(("unreadable", repr(error)))

    def unsendable(self, answer, error):
        return Response(("unsendable", repr(error)))

    def exports(self, work):
        """What the work has left under that name."""
        return getattr(self, "model", None)

    def attach(self, work, value):
        self.model = value

    def close(self):
        Path(self.farewell).touch() if hasattr(self, "farewell") else None


class Told(ModelHosts):
    """A model host that is told what to do."""

    def __init__(self, toy, name, timeout_secs, copies=1):
        super().__init__(ForkServerClient(toy, name), name, timeout_secs, copies)

    def tell(self, work, *rows):
        return self.submit(cloudpickle.dumps(work), list(rows))

    def ask(self, work, *rows):
        return self.result(self.tell(work, *rows))

    @staticmethod
    def is_ready(call):
        return call.connection is None or call.connection.is_ready(call)

    def learn(self, work, *rows):
        """What a function returns that is called in the host."""
        return self.ask(lambda rows, toy: [work(rows, toy)], *rows).rows[0]


def a_list(toy):
    """Work that leaves a model, for ``lease_of``."""
    toy.model = ["a", "model"]
    return os.getpid()


def double(rows, toy):
    return [2 * row for row in rows]


def process(rows, toy):
    return [os.getpid()]


def hang(rows, toy):
    signal.pause()


def wait_for(gate):
    """Work that lasts until there is such a file."""

    def work(rows, toy):
        while not Path(gate).exists():
            time.sleep(0.001)
        return rows

    return work


def has_ended(process):
    return fields_of(process)[:1] in ([], ["Z"], ["X"])


def forbidden(*_):
    raise PermissionError(1, "Operation not permitted")


@pytest.fixture(name="toy")
def _toy(census):
    """Makes the pickle of a request handler."""
    return lambda imports=None: cloudpickle.dumps(Toy(imports))


@pytest.fixture
def new_host(toy, close_later):
    """Makes model hosts, which are closed in the end."""
    return lambda timeout_secs=None, imports=None, copies=1: close_later(
        Told(toy(imports), "toy", timeout_secs, copies)
    )


@pytest.fixture
def host(new_host):
    return new_host()


@pytest.fixture
def new_module(tmp_path, monkeypatch):
    """Writes a module that can be imported here, and so in hosts; returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(code, name="toy_module"):
        (tmp_path / f"{name}.py").write_text(code)
        return name

    return write


class Managers:
    """Managers that are threads of this process, one after the other, for those who look for one."""

    def __init__(self, directory, clock):
        self._directory = directory
        self._clock = clock
        self.all = []
        self.threads = []

    def launch(self, directory, name, lock, listening):
        endpoint = ManagerEndpoint(directory, name, os.dup(lock), os.dup(listening))
        self.all.append(Manager(endpoint, self._clock))
        self.threads.append(threading.Thread(target=self.all[-1].run, name="manager"))
        self.threads[-1].start()

    def models(self):
        """The census of the last one, by the models' names."""
        return {model["name"]: model for model in self.all[-1].status()["models"]}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def managers(census, runtime, clock, monkeypatch):
    managers = Managers(runtime, clock)
    monkeypatch.setattr(lease, "_launch", managers.launch)
    yield managers
    for thread in managers.threads:
        thread.join(60)
        assert not thread.is_alive()
    managers.all.clear()


@pytest.fixture
def lease_of(toy, close_later):
    """Makes leases of models, which are given back in the end; ``load`` is called with the toy, in the loader."""

    def make(load, key="key", **fields):
        load_request = LoadRequest(
            key=key,
            name=fields.pop("name", key),
            request_handler=toy(),
            work=pickle.dumps(cloudpickle.dumps(lambda rows, toy: [load(toy)])),
            environment=ProcessEnvironment.here(),
            **{**UNDEMANDING, **fields},
        )
        return close_later(Lease(load_request))

    return make


def mapped(lease, load_here=None):
    """The model, mapped here; None if it lives in hosts."""
    grant, files = lease.take(load_here)
    model = attach(files[1:], grant.exported.layout) if files else None
    for file in files:
        os.close(file)
    return model


UNDEMANDING = {
    "variant": "",
    "process": "1",
    "copies": 1,
    "hosted": False,
    "timeout_secs": None,
    "linger_secs": 0,
    "at_least": None,
}


@pytest.fixture
def run_owner(toy, tmp_path):
    """Runs code in its own owner, to its end; ``Told``, ``Toy``, ``new_host`` and ``wait_for(gate)`` are there."""
    classes = tmp_path / "classes"
    classes.write_bytes(cloudpickle.dumps((Told, Toy, wait_for, tmp_path / "gate")))
    imports = f"""
import os, pickle, signal, subprocess, sys, threading, time
import cloudpickle
with open({str(classes)!r}, "rb") as file:
    Told, Toy, wait_for, gate = pickle.load(file)
def new_host(timeout_secs=None, imports=None):
    return Told(cloudpickle.dumps(Toy(imports)), "toy", timeout_secs)
"""

    def run(code):
        command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", imports + code]
        return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)

    return run


@pytest.fixture
def no_more_files():
    """A context in which this process can open no more files than so many."""

    @contextlib.contextmanager
    def context(spare=0):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        filling = [os.dup(0)]
        while filling[-1] < max(map(int, os.listdir("/dev/fd")), default=0) - 1:  # up to the highest number in use
            filling.append(os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (filling[-1] + 1 + spare, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for file in filling:
                os.close(file)

    return context

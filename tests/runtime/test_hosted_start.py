"""A host starts, imports and loads in the background: what fails is raised by the first bundle, and nothing is left."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from headrace import KeyedModelHandler, KeyModelMapping
from headrace.core.errors import HostStartError
from headrace.core.events import BatchCompleted, ModelLoaded
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.runtime.open_worker import open_worker
from headrace.runtime.placement import HostedWorker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from toys import Acting, Events, each, fixed, run
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("census")


class Gate:
    """A load that waits until the gate is open."""

    def __init__(self, folder):
        self._open, self._reached = folder / "open", folder / "reached"
        self.open, self.is_reached = self._open.touch, self._reached.exists

    def load(self):
        self._reached.touch()
        assert wait_until(self._open.exists)


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path)


def hosted(handler, exceptions=(), **request):
    return catching(prepare(handler, InferenceRequest(isolate=True, batching=fixed(2), **request)), exceptions)


def doubling(load=lambda: None):
    return Acting(each(lambda n: 2 * n), load)


def broken():
    raise OSError("no such model")


def test_worker_opens_and_takes_elements_while_its_model_loads(opened, gate):
    worker, events = opened(hosted(doubling(gate.load))), Events()
    bundle = worker.bundle(events)
    assert bundle.add(1, "a") == ()
    assert wait_until(gate.is_reached)
    assert events == []
    gate.open()
    [outcome] = [*bundle.add(2, "b"), *bundle.finish()]
    assert (outcome.tags, outcome.values) == (["a", "b"], [2, 4])
    assert [type(event) for event in events] == [ModelLoaded, BatchCompleted]


def test_keyed_models_have_a_fork_server_before_their_first_batch(opened, monkeypatch):
    forked = threading.Event()
    fork = ForkServerClient.host
    monkeypatch.setattr(ForkServerClient, "host", lambda *args: (fork(*args), forked.set())[0])
    worker = opened(hosted(KeyedModelHandler([KeyModelMapping(["a"], doubling())])))
    assert forked.wait(60)
    assert run(worker, [("a", 1)]) == [("a", 2)]


@pytest.mark.parametrize(("elements", "exceptions"), [([], Exception), ([1], ()), ([1, 2, 3], Exception)])
def test_load_that_fails_is_raised_before_the_first_outcome(opened, elements, exceptions):
    """Also where dead letters are asked for: the pipeline is wrong, not its elements."""
    worker = opened(hosted(doubling(broken), exceptions))
    with pytest.raises(OSError, match="no such model") as caught:
        run(worker, elements)
    assert "in broken\n" in str(caught.value.__cause__)
    assert str(caught.value.__cause__).rstrip().endswith("\nOSError: no such model")


def test_load_that_failed_is_repeated_for_the_next_bundle(opened, tmp_path):
    def second_time():
        if not (tmp_path / "tried").exists():
            (tmp_path / "tried").touch()
            broken()

    worker = opened(hosted(doubling(second_time)))
    with pytest.raises(OSError, match="no such model"):
        run(worker, [1, 2])
    assert run(worker, [1, 2]) == [2, 4]


@pytest.mark.parametrize("elements", [[], [1, 2]])
def test_start_that_fails_is_raised_before_the_first_outcome(opened, new_module, elements):
    code = "import sys; assert not sys.argv[0].endswith('hosts/fork_server.py'), 'not in a fork server'"
    worker = opened(hosted(Importing(new_module(code))))
    with pytest.raises(HostStartError, match="not in a fork server"):
        run(worker, elements)


class Importing(Acting):
    """Imports a module wherever it is unpickled."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def __setstate__(self, state):
        self.__dict__.update(state)
        __import__(self.module)


def test_worker_closed_while_modules_are_imported_leaves_nothing(new_module, marked):
    code = "import signal, sys\nif sys.argv[0].endswith('hosts/fork_server.py'): signal.pause()"
    worker = open_worker(hosted(Importing(new_module(code))))
    assert wait_until(marked)
    worker.close()
    assert marked() == []


def test_worker_closed_while_its_model_loads_leaves_the_load_to_others(opened, gate):
    spec = hosted(doubling(gate.load))
    first, second = open_worker(spec), opened(spec)
    assert wait_until(gate.is_reached)
    first.close()
    gate.open()
    events = Events()
    assert run(second, [1, 2], events) == [2, 4]
    assert len(events.of(ModelLoaded)) == 1


def test_ctrl_c_while_the_first_batch_waits_leaves_a_worker_that_can_be_used(opened, gate, ctrl_c_in):
    worker = opened(hosted(doubling(gate.load)))
    ctrl_c_in(HostedWorker._await_load)
    with pytest.raises(KeyboardInterrupt):
        run(worker, [1, 2])
    gate.open()
    assert run(worker, [1, 2]) == [2, 4]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_the_load_is_awaited_leaves_its_thread_to_be_waited_for(opened, gate):
    worker = opened(hosted(doubling(gate.load)))
    [loads] = [one for one in threading.enumerate() if one.name == "headrace starts a host"]

    def interrupt():
        main = threading.main_thread().ident
        assert wait_until(lambda: gate.is_reached() and sys._current_frames()[main].f_code.co_name == "wait")
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        worker.ready()
    assert loads.is_alive()
    gate.open()
    assert run(worker, [1, 2]) == [2, 4]

"""A nursery has hosts whenever they can be had, says why where they cannot, and does not hang on its zygote."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from concurrent.futures import Future

import pytest

from headrace.core.errors import HostStartError
from headrace.hosting import nursery as module
from headrace.hosting import starter
from headrace.hosting.channel import Channel
from headrace.hosting.nursery import Nursery
from headrace.hosting.progress import Progress
from headrace.hosting.segment import Segment
from headrace.hosting.system import children, fields_of
from headrace.hosting.tenancy import Cause, how_ended

pytestmark = pytest.mark.usefixtures("census")

LONG = 60
HANGS = "import signal; signal.pause()"


@pytest.fixture
def new_nursery(toy):
    made = []

    def make(imports=None):
        made.append(Nursery(toy(imports), "toy"))
        return made[-1]

    yield make
    for nursery in made:
        nursery.close()


@pytest.fixture
def nursery(new_nursery):
    return new_nursery()


@contextlib.contextmanager
def files():
    """What a host is born with."""
    mine, theirs = Channel.pair()
    progress = Segment.create("progress", Progress.SIZE)
    yield theirs.fileno(), progress.file
    for one in (mine, theirs, progress):
        one.close()


@pytest.fixture
def born(nursery):
    """A host that waits for its first request, and the zygote."""
    with files() as pair:
        host = nursery.fork(*pair)
        yield host, zygote_of(nursery)


def zygote_of(nursery):
    return nursery._zygote._process.pid


def has_ended(process):
    return fields_of(process)[:1] in ([], ["Z"], ["X"])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended itself with exit code 0"),
        (3, "ended itself with exit code 3"),
        (-9, "was killed by SIGKILL"),
        (-11, "was killed by SIGSEGV"),
        (-99, "was killed by signal 99"),
        (None, "was killed together with the process that had started it"),
    ],
)
def test_endings_have_words(code, words):
    assert how_ended(code) == words


def test_hosts_of_a_nursery_have_one_zygote(nursery):
    with files() as one, files() as other:
        hosts = [nursery.fork(*one), nursery.fork(*other)]
        assert len(set(hosts)) == 2
        assert {fields_of(host)[1] for host in hosts} == {str(zygote_of(nursery))}


def test_nothing_starts_before_a_host_is_wanted(nursery, marked):
    assert marked() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_it_is_known_how_a_host_ended(nursery, born, wait_until, number):
    host, _ = born
    os.kill(host, number)
    assert wait_until(lambda: has_ended(host))
    assert nursery.bury(host).code == -number


def test_a_host_that_lives_is_killed(nursery, born):
    host, _ = born
    assert nursery.bury(host) == (-signal.SIGKILL, Cause.OTHER)
    assert fields_of(host) == []


def test_a_host_is_buried_once(nursery, born):
    host, zygote = born
    nursery.bury(host)
    assert nursery.bury(host) is None
    assert nursery.bury(1) is None
    with files() as pair:
        nursery.fork(*pair)
    assert zygote_of(nursery) == zygote


def test_when_the_zygote_has_died_another_takes_its_place(nursery, born, wait_until):
    host, zygote = born
    os.kill(zygote, signal.SIGKILL)
    assert wait_until(lambda: has_ended(host))
    with files() as pair:
        nursery.fork(*pair)
    assert zygote_of(nursery) != zygote
    assert nursery.bury(host) is None


def test_of_a_host_that_died_with_its_zygote_nothing_is_known(nursery, born, wait_until):
    host, zygote = born
    os.kill(zygote, signal.SIGKILL)
    assert nursery.bury(host) is None
    assert nursery.bury(host) is None
    assert wait_until(lambda: has_ended(host))


def test_a_zygote_that_dies_again_and_again_is_given_up(new_nursery, new_module):
    code = "import os; os.register_at_fork(before=lambda: os._exit(5))"
    with files() as pair, pytest.raises(HostStartError, match="that forks it ended itself with exit code 5, 3 times"):
        new_nursery(new_module(code)).fork(*pair)


def test_a_zygote_that_cannot_fork_says_why(new_nursery, new_module):
    code = "import os\ndef fail(): raise BlockingIOError(11, 'no more processes')\nos.fork = fail"
    with files() as pair, pytest.raises(HostStartError, match="it cannot be forked") as caught:
        new_nursery(new_module(code)).fork(*pair)
    assert "no more processes" in str(caught.value)


def test_a_zygote_that_does_not_answer_is_replaced(nursery, born, monkeypatch):
    host, zygote = born
    monkeypatch.setattr(module, "_LONGEST_ANSWER_SECS", 0.2)
    os.kill(zygote, signal.SIGSTOP)
    assert nursery.bury(host) is None
    assert has_ended(zygote)
    monkeypatch.setattr(module, "_LONGEST_ANSWER_SECS", LONG)
    with files() as pair:
        nursery.fork(*pair)


def test_zygotes_that_do_not_answer_are_given_up(nursery, monkeypatch):
    monkeypatch.setattr(module, "_LONGEST_ANSWER_SECS", 0.2)
    monkeypatch.setattr(module.Zygote, "ready", stopped(module.Zygote.ready))
    with files() as pair, pytest.raises(HostStartError, match=r"that forks it did not answer for 0\.2 s, 3 times"):
        nursery.fork(*pair)


def stopped(ready):
    def ready_and_stopped(zygote):
        answer = ready(zygote)
        os.kill(zygote._process.pid, signal.SIGSTOP)
        return answer

    return ready_and_stopped


@pytest.mark.parametrize("executable", ["/not/there", "/dev/null"])
def test_a_python_that_does_not_start_is_an_error(nursery, monkeypatch, executable, descriptors):
    before = descriptors()
    monkeypatch.setattr(sys, "executable", executable)
    with files() as pair, pytest.raises(HostStartError, match=executable):
        nursery.fork(*pair)
    assert descriptors() == before


@pytest.mark.parametrize("executable", ["/bin/false", "/bin/true"])
def test_a_python_that_is_none_is_an_error(toy, monkeypatch, executable, descriptors):
    before = descriptors()
    monkeypatch.setattr(sys, "executable", executable)
    for servant in (toy(), bytes(10_000_000)):  # one is sent before it is noticed, the other is not
        with files() as pair, pytest.raises(HostStartError, match="it ended itself with exit code"):
            Nursery(servant, "toy").fork(*pair)
    assert descriptors() == before


def test_too_many_open_files_are_an_error(nursery, no_more_files, descriptors, monkeypatch):
    """Wherever they are missing; the zygote inherits the limit."""
    failures = []
    with files() as pair:
        before = descriptors()
        for spare in range(64):
            with no_more_files(spare), contextlib.suppress(HostStartError):
                nursery.fork(*pair)
                break
            assert descriptors() == before
            failures.append(spare)
    assert len(failures) > 8


@pytest.mark.parametrize("name", ["headrace output of toy", "headrace starts zygotes"])
def test_too_many_threads_are_an_error(nursery, monkeypatch, name, descriptors):
    """As when the program ends: since Python 3.12 there are no new ones then."""
    started = threading.Thread.start

    def start(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(module, "STARTER", starter.Starter())
    before = descriptors()
    with files() as pair, pytest.raises(HostStartError, match="can't start new thread"):
        nursery.fork(*pair)
    assert descriptors() == before
    monkeypatch.undo()
    with files() as pair:
        nursery.fork(*pair)


def test_a_servant_of_many_megabytes_is_no_hindrance(toy):
    nursery = Nursery(toy() + bytes(32_000_000), "toy")  # what follows a pickle is not read
    with files() as pair:
        assert nursery.bury(nursery.fork(*pair)).code == -signal.SIGKILL
    nursery.close()


def test_closing_ends_everything(nursery, born):
    nursery.close()
    assert all(fields_of(process) == [] or has_ended(process) for process in born)
    assert children() == []
    nursery.close()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
def test_closing_ends_a_zygote_that_does_not_answer(nursery, born, monkeypatch, wait_until, number):
    monkeypatch.setattr(module, "_LONGEST_ANSWER_SECS", 0.2)
    os.kill(born[1], number)
    nursery.close()
    assert has_ended(born[1])
    assert wait_until(lambda: has_ended(born[0]))


def test_closing_ends_a_birth_that_is_under_way(new_nursery, new_module, wait_until):
    nursery, errors = new_nursery(new_module(HANGS)), []

    def fork():
        with files() as pair, pytest.raises(HostStartError) as caught:
            nursery.fork(*pair)
        errors.append(str(caught.value))

    thread = threading.Thread(target=fork)
    thread.start()
    assert wait_until(lambda: nursery._newborn)
    nursery.close()
    thread.join()
    assert errors == ["A host for toy cannot be started: its owner no longer wants one."]


def test_ctrl_c_ends_a_birth_that_is_under_way(new_nursery, new_module, ctrl_c_in, marked, monkeypatch):
    monkeypatch.setattr(module, "_LONGEST_ANSWER_SECS", 10_000)  # nobody waits for one that is of no use
    nursery = new_nursery(new_module(HANGS))
    ctrl_c_in(module.Zygote.ready)
    with files() as pair, pytest.raises(KeyboardInterrupt):
        nursery.fork(*pair)
    assert marked() == []
    nursery.close()


def test_ctrl_c_ends_a_zygote_that_has_not_answered(nursery, born, ctrl_c_in):
    """What it says later would be taken for the answer to another question."""
    host, zygote = born
    os.kill(zygote, signal.SIGSTOP)
    presser = ctrl_c_in(module.Zygote.ask)
    resumer = threading.Thread(target=lambda: (presser.join(), os.kill(zygote, signal.SIGCONT)))
    resumer.start()
    with pytest.raises(KeyboardInterrupt):
        nursery.bury(host)
    resumer.join()
    with files() as pair:
        assert fields_of(nursery.fork(*pair))[1] == str(zygote_of(nursery)) != str(zygote)


def test_ctrl_c_while_a_process_is_started_leaves_none(ctrl_c_in, popen, wait_until):
    """The thread that starts it sees to it."""
    may_start, processes = threading.Event(), []

    def start():
        may_start.wait()
        processes.append(popen(["sleep", "1000"]))
        return processes[0]

    ctrl_c_in(Future.result)
    with pytest.raises(KeyboardInterrupt):
        module.STARTER.run(start)
    may_start.set()
    assert wait_until(lambda: processes and processes[0].returncode == -signal.SIGKILL)


def test_what_owners_have_left_behind_is_looked_for_once(nursery, monkeypatch):
    looked = []
    monkeypatch.setattr(starter, "end_orphans", lambda: looked.append(threading.current_thread().name))
    monkeypatch.setattr(module.STARTER, "_has_looked_for_orphans", False)
    for _ in range(2):
        with files() as pair:
            nursery.fork(*pair)
        nursery._end_zygote()
    assert looked == ["headrace starts zygotes"]


def test_one_thread_starts_all_zygotes(new_nursery):
    for nursery in (new_nursery(), new_nursery()):
        with files() as pair:
            nursery.fork(*pair)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("headrace starts zygotes") == 1

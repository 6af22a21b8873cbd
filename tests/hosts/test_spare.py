"""A fork server may import modules before it is known who needs it; nobody notices, but by the time that it saves."""

from __future__ import annotations

import logging
import os
import sys

import pytest

from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.fork_server_client import SPARE
from toy_hosts import has_ended

pytestmark = pytest.mark.usefixtures("census")

HANGS = "import signal; signal.pause()"


@pytest.fixture
def start(new_module, wait_until, marked):
    """Starts a spare fork server that imports a module with the given code; returns the module and the process."""

    def start(code):
        module = new_module(code)
        before = set(marked())
        SPARE.start("spare", [module])
        assert wait_until(lambda: set(marked()) - before)
        [process] = set(marked()) - before
        return module, process

    yield start
    SPARE.drop()


def parent(rows, toy):
    return os.getppid()


def test_spare_fork_server_forks_the_next_host(new_host, start):
    module, process = start("import os; importer = os.getpid()")
    host = new_host(imports=module)
    assert host.learn(lambda rows, toy: (os.getppid(), toy.module.importer)) == (process, process)
    assert not SPARE._spare


def test_spare_fork_server_gets_the_environment_of_the_moment_when_it_is_taken(
    new_host, start, monkeypatch, tmp_path, caplog
):
    monkeypatch.setenv("HEADRACE_TEST_EARLIER", "earlier")
    start("")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    monkeypatch.setenv("HEADRACE_TEST_VARIABLE", "later")
    monkeypatch.delenv("HEADRACE_TEST_EARLIER")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    caplog.set_level(logging.CRITICAL)

    def look(rows, toy):
        variables = [os.environ.get(name) for name in ("HEADRACE_TEST_VARIABLE", "HEADRACE_TEST_EARLIER")]
        return variables, os.getcwd(), sys.path, logging.getLogger().level

    here = ProcessEnvironment.here()
    assert new_host().learn(look) == (["later", None], here.directory, here.path, logging.CRITICAL)


@pytest.mark.parametrize(("threads", "is_taken"), [(2, True), (3, False), (None, False)])
def test_spare_fork_server_with_a_limit_of_threads_is_for_a_client_with_the_same(threads, is_taken):
    here = ProcessEnvironment.here()
    SPARE.start("spare", [], 2)
    taken = SPARE.take("toy", here if threads is None else here.with_threads(threads))
    assert (taken is not None) is is_taken
    if taken is not None:
        taken.close(0)
    SPARE.drop()


@pytest.mark.parametrize("code", ["", HANGS])
def test_spare_fork_server_that_nobody_takes_ends_when_it_is_dropped(start, marked, code):
    _, process = start(code)
    SPARE.drop()
    assert has_ended(process)
    assert marked() == []
    SPARE.drop()


def test_fork_of_the_owner_leaves_the_spare_fork_server_to_it(start, new_host):
    _, process = start("")
    child = os.fork()
    if not child:
        os._exit(len(SPARE._spare))
    assert os.waitpid(child, 0)[1] == 0
    assert new_host().learn(parent) == process


def test_spare_fork_server_ends_with_a_killed_owner(run_owner, new_module, tmp_path, wait_until):
    module = new_module(f"import os, pathlib, signal; pathlib.Path({str(tmp_path)!r}, 'pid').touch(); signal.pause()")
    owner = run_owner(f"""
sys.path.insert(0, {str(tmp_path)!r})
from headrace.hosts.fork_server_client import SPARE
SPARE.start("spare", [{module!r}])
while not os.path.exists({str(tmp_path / "pid")!r}):
    time.sleep(0.001)
print(SPARE._spare[0].process, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert wait_until(lambda: has_ended(int(owner.stdout)))

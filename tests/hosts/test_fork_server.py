"""Hosts are forked with what their owner has, and whatever they start ends with them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from headrace.core.errors import HostStartError
from headrace.hosts.provider import HostFailure
from toy_hosts import has_ended, wait_for
from waiting import wait_until

SLEEP = ["sleep", "1000"]
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon={daemon}, name='ticker').start()"


def run(command):
    return lambda rows, toy: subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_modules_are_imported_once_before_hosts_are_forked(new_host, new_module):
    host = new_host(imports=new_module("import os; importer = os.getpid()"))
    for _ in range(2):
        importer, fork_server, process = host.learn(lambda rows, toy: (toy.module.importer, os.getppid(), os.getpid()))
        assert importer == fork_server
        os.kill(process, signal.SIGKILL)


def test_a_host_has_its_owners_path_directory_and_environment(new_host, new_module, tmp_path, monkeypatch):
    new_module("", "only_here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_WORD", "wörd\n=x")
    monkeypatch.setenv("PYTHONPATH", "/somewhere:/else")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(sys, "path", [*sys.path, "", "relative", "/not/there", str(tmp_path / "a:b")])
    path, directory, environment = new_host(imports="only_here").learn(
        lambda rows, toy: (list(sys.path), os.getcwd(), dict(os.environ))
    )
    assert path == sys.path
    assert directory == str(tmp_path)
    assert {name: value for name, value in environment.items() if name != "HEADRACE_HOST_OF"} == dict(os.environ)


@pytest.mark.parametrize("value", [None, ""])  # the test above has another value
def test_programs_see_pythonpath_as_the_user_has_it(host, monkeypatch, value):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if value is not None:
        monkeypatch.setenv("PYTHONPATH", value)
    assert host.learn(lambda rows, toy: os.environ.get("PYTHONPATH")) == value
    assert host.learn(run(["sh", "-c", "echo ${PYTHONPATH-unset}"])) == ("unset" if value is None else value)


def test_files_in_the_owners_directory_shadow_no_modules(host, tmp_path, monkeypatch):
    for name in ("pickle", "queue", "logging", "headrace", "cloudpickle"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('hidden')")
    monkeypatch.chdir(tmp_path)
    assert host.learn(lambda rows, toy: os.getcwd()) == str(tmp_path)


def test_a_removed_working_directory_does_no_harm(host, tmp_path, monkeypatch):
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    assert host.learn(lambda rows, toy: os.getcwd()) == "/"
    monkeypatch.chdir(tmp_path)


def test_a_host_has_only_what_it_needs_open_and_passes_none_of_it_on(host):
    """Its channel, its progress, where it prints and logs, and the memory of the request; with maps, twice."""

    def open_files(rows, toy):
        return [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")[:-1]]

    files = host.learn(open_files)
    assert sum(file.startswith("socket:") for file in files) == 1
    assert len(files) <= 12
    assert set(host.learn(run(["ls", "/proc/self/fd"])).split()) == {"0", "1", "2", "3"}


def test_a_request_handler_that_cannot_be_unpickled_is_an_error_with_its_traceback(new_host, new_module):
    host = new_host(imports=new_module("import os\n1 / 0  # on this line"))
    for _ in range(2):
        with pytest.raises(HostStartError, match="toy cannot be started: the handler cannot be unpickled") as caught:
            host.ask(len)
        assert "1 / 0  # on this line" in str(caught.value)
        assert str(caught.value).endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("daemon", [True, False])
def test_modules_that_start_threads_are_imported_by_each_host(new_host, new_module, caplog, monkeypatch, daemon):
    caplog.set_level(logging.INFO)
    # Nobody waits for a fork server of no use.
    monkeypatch.setattr("headrace.hosts.fork_server_client._LONGEST_ANSWER_SECS", 10_000)
    host = new_host(imports=new_module(f"import os; importer = os.getpid(); {THREAD.format(daemon=daemon)}"))
    for _ in range(2):
        importer, process, threads = host.learn(
            lambda rows, toy: (toy.module.importer, os.getpid(), [one.name for one in threading.enumerate()])
        )
        assert importer == process
        assert "ticker" in threads
        os.kill(process, signal.SIGKILL)
    [said] = [message for message in caplog.messages if "started threads" in message]
    assert said.startswith("toy: its modules have started threads (ticker) as they were imported, so each host imp")


def test_a_module_that_kills_the_process_is_an_error(new_host, new_module):
    host = new_host(imports=new_module("import ctypes; ctypes.string_at(0)"))
    with pytest.raises(HostStartError, match="it was killed by SIGSEGV while it imported the handler's modules"):
        host.ask(len)


def test_imports_have_a_time_limit(new_host, new_module, monkeypatch):
    monkeypatch.setattr("headrace.hosts.fork_server_client._LONGEST_IMPORT_SECS", 0.3)
    host = new_host(imports=new_module("import signal; signal.pause()"))
    with pytest.raises(HostStartError, match=r"its imports took 0\.3 s"):
        host.ask(len)


def test_what_a_module_leaves_for_the_end_is_done_then(new_host, new_module, tmp_path):
    done = tmp_path / "done"
    host = new_host(imports=new_module(f"import atexit, pathlib; atexit.register(pathlib.Path({str(done)!r}).touch)"))
    host.learn(lambda rows, toy: None)
    assert not done.exists()
    host.close()
    assert done.exists()


HELPER = f"import subprocess; helper = subprocess.Popen({SLEEP}).pid"


def test_a_process_that_a_module_starts_serves_all_hosts(new_host, new_module):
    host = new_host(imports=new_module(HELPER))
    first, helper = host.learn(lambda rows, toy: (os.getpid(), toy.module.helper))
    os.kill(first, signal.SIGKILL)
    second, same_helper = host.learn(lambda rows, toy: (os.getpid(), toy.module.helper))
    assert (second != first, same_helper) == (True, helper)
    assert not has_ended(helper)
    host.close()
    assert has_ended(helper)


@pytest.mark.parametrize("code", [THREAD.format(daemon=True), "raise ImportError", "import os; os._exit(1)"])
def test_a_process_that_a_module_starts_ends_where_no_host_is_forked(new_host, new_module, marked, wait_until, code):
    host = new_host(imports=new_module(f"{HELPER}\n{code}"))
    try:
        host.ask(len)
    except HostStartError:
        assert wait_until(lambda: not marked())
    else:
        assert wait_until(lambda: len(marked()) == 3)  # fork server, host and the host's helper
    host.close()
    assert wait_until(lambda: not marked())


def test_processes_that_a_host_starts_end_with_it(host, marked, wait_until):
    """A child, a grandchild, and both in sessions of their own."""

    def work(rows, toy):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        for command in (SLEEP, ["setsid", *SLEEP]):
            subprocess.Popen(command, **quiet)
        for command in ("sleep 1000 & exit", "setsid sleep 1000 & exit"):
            subprocess.run(["sh", "-c", command], **quiet, check=True)
        return os.getpid(), os.getppid()

    process, fork_server = host.learn(work)
    assert wait_until(lambda: len(marked()) == 2 + 4)
    os.kill(process, signal.SIGKILL)
    assert host.learn(lambda rows, toy: os.getppid()) == fork_server
    assert len(marked()) == 2


def test_processes_of_a_host_outlive_another_host(new_host, marked, tmp_path):
    def work(rows, toy):
        subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & exit"], check=True)
        (tmp_path / "begun").touch()
        return wait_for(tmp_path / "gate")(rows, toy)

    host = new_host(copies=2)
    call = host.tell(work, 1)
    assert wait_until((tmp_path / "begun").exists)
    assert isinstance(host.ask(lambda rows, toy: os.kill(os.getpid(), signal.SIGKILL)), HostFailure)
    assert len(marked()) == 3
    (tmp_path / "gate").touch()
    assert host.result(call).rows == [1]


def test_a_host_that_leaves_its_group_is_ended(host):
    _, process = host.learn(lambda rows, toy: (os.setpgid(0, os.getppid()), os.getpid()))
    assert os.getpgid(process) != process
    host.close()
    assert has_ended(process)


def test_a_sigchld_handler_that_waits_for_all_children_does_no_harm(new_host, new_module):
    code = """
import os, signal
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
signal.signal(signal.SIGCHLD, reap)
"""
    host = new_host(imports=new_module(code))
    fork_servers = set()
    for _ in range(3):
        process, fork_server = host.learn(lambda rows, toy: (os.getpid(), os.getppid()))
        fork_servers.add(fork_server)
        os.kill(process, signal.SIGKILL)
    assert len(fork_servers) == 1


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["by itself", "killed"])
def test_all_processes_end_with_the_owner(run_owner, wait_until, end):
    code = f"""
def work(rows, toy):
    server = subprocess.Popen(["setsid", "sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return os.getpid(), os.getppid(), server.pid
idle, busy = new_host(), new_host()
print(*idle.learn(work), *busy.learn(work), flush=True)
call = busy.tell(lambda rows, toy: signal.pause())
while busy._connections[0]._progress.read().call != call.number:
    time.sleep(0.001)
{end}
"""
    processes = run_owner(code).stdout.split()
    assert len(processes) == 6
    assert wait_until(lambda: all(has_ended(int(process)) for process in processes))


def test_threads_that_outlive_the_main_thread_keep_their_hosts(run_owner):
    code = """
host = new_host()
fork_server = host.learn(lambda rows, toy: os.getppid())
def later():
    threading.main_thread().join()
    for _ in range(20):
        assert host.learn(lambda rows, toy: os.getppid()) == fork_server
    print("fine", flush=True)
    host.close()
threading.Thread(target=later).start()
"""
    owner = run_owner(code)
    assert (owner.stdout, owner.returncode) == ("fine\n", 0), owner.stderr

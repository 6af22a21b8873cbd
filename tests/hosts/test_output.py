"""Whatever a host prints or logs reaches its owner's logging, line by line, and never harms the owner."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from headrace.hosts.output import OutputReader
from toy_hosts import descriptors

LONG = 60
"""Seconds that nothing here takes."""
DIVERT = "redirect_output({printed}, {logged})\nlogging.root.setLevel(logging.DEBUG)\n"


class Log(logging.Handler):
    """Keeps what reaches the owner's logging, once ``before`` lets it."""

    def __init__(self):
        super().__init__()
        self.records, self.before = [], lambda record: None

    def emit(self, record):
        self.before(record)
        self.records.append(record)

    @property
    def messages(self):
        return [record.getMessage() for record in self.records]

    @property
    def triples(self):
        return [(record.name, record.levelname, record.getMessage()) for record in self.records]


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG)
    logging.root.addHandler(handler := Log())
    yield handler
    logging.root.removeHandler(handler)


@pytest.fixture
def reader(log):
    with closing(OutputReader("m")) as reader:
        yield reader


def run_host(reader, code, expected=0, call=DIVERT):
    call = call.format(printed=reader.printed, logged=reader.logged)
    code = f"import logging, os, sys\nfrom headrace.hosts.output import redirect_output\n{call}\n{code}"
    descriptors, environment = (reader.printed, reader.logged), os.environ | {"PYTHONUNBUFFERED": ""}
    options = {"pass_fds": descriptors, "env": environment, "timeout": LONG}
    host = subprocess.run([sys.executable, "-c", code], **options, check=False)
    assert host.returncode == expected
    reader.close(LONG)


def run_owner(code):
    imports = "import logging, os, subprocess, sys, threading; from headrace.hosts.output import OutputReader\n"
    code = f"{imports}logging.basicConfig(level=20, format='%(message)s'); reader = OutputReader('m')\n{code}"
    command = [sys.executable, "-W", "ignore", "-c", code]  # Python warns of forks with threads
    return subprocess.run(command, timeout=LONG, capture_output=True, text=True, check=False)


def belongings():
    """Descriptors and threads of this process; others' may end while a test runs."""
    return descriptors() | set(threading.enumerate())


def test_printed_lines_are_logged(reader, log):
    code = """
import ctypes, subprocess
print("wörd", 1)
print("wörd", 2, file=sys.stderr)
os.write(1, "wörd 3\\n".encode())
os.write(2, "wörd 4\\r\\n".encode())
library = ctypes.CDLL(None)
library.puts("wörd 5".encode())
library.fflush(None)
subprocess.run(["echo", "wörd 6"])
os.system("echo wörd 7 >&2")"""
    run_host(reader, code)
    assert sorted(log.triples) == [("headrace.host", "INFO", f"m: wörd {number}") for number in range(1, 8)]


@pytest.mark.parametrize(
    "code",
    [
        "print('the last', end='')",
        "print('the last'); os._exit(0)",
        "print('the last', file=sys.__stdout__); os._exit(0)",
        "os.write(1, b'\\r 10 %\\r 20 %\\rthe last')",
    ],
)
def test_last_line_is_logged_however_it_ends(reader, log, code):
    run_host(reader, code)
    assert log.messages == ["m: the last"]


def test_log_records_keep_their_logger_level_arguments_and_exception(reader, log):
    code = """
logging.info("%d of %s", 3, "wörd")
logging.getLogger("a.b").warning("two\\nlines")
logging.getLogger("a").log(17, "odd level")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("a").exception("failed")"""
    run_host(reader, code, call=f"logging.basicConfig(); {DIVERT}")
    names, levels, messages = zip(*log.triples, strict=True)
    assert (names, levels) == (("root", "a.b", "a", "a"), ("INFO", "WARNING", "Level 17", "ERROR"))
    assert messages[:3] == ("m: 3 of wörd", "m: two\nlines", "m: odd level")
    assert re.fullmatch(r"m: failed\nTraceback .*ZeroDivisionError: division by zero", messages[3], re.DOTALL)


def test_a_long_record_loses_its_middle_and_a_line_that_never_ends_is_split(reader, log):
    code = """
logging.info("a" + "\\0" * 1_000_000 + "z")
for _ in range(5):
    os.write(1, b"x" * 1_000_000)"""
    run_host(reader, code)
    [record], pieces = ([one for one in log.messages if one.startswith("m: a\0") is long] for long in (True, False))
    assert record.endswith("\0z")
    assert "more characters" in record
    assert len(record) < 66_000
    sizes = [len(piece) - len("m: ") for piece in pieces]
    assert (sum(sizes), max(sizes) < 600_000) == (5_000_000, True)


def test_lines_of_threads_and_forks_stay_whole(reader, log):
    code = """
import threading
def work(name):
    for number in range(30):
        logging.info("%s %d %s", name, number, name * 20_000)
        print(f"{name} {number} {name * 30}\\n", end="")
def start(names):
    running = [threading.Thread(target=work, args=name) for name in names]
    [thread.start() for thread in running]
    [thread.join() for thread in running]
child = os.fork()
start("ab" if child else "cd")
if child:
    assert os.waitpid(child, 0)[1] == 0"""
    run_host(reader, code)
    numbers, sizes = range(30), (30, 20_000)
    assert sorted(log.messages) == sorted(f"m: {x} {n} {x * size}" for x in "abcd" for n in numbers for size in sizes)


def test_programs_do_not_inherit_the_log(reader, log):
    code = f"""
import subprocess
check = "import os; os.write(1, b'child'); os.fstat({reader.logged})"
print(subprocess.run([sys.executable, "-c", check], close_fds=False, stderr=subprocess.DEVNULL).returncode)"""
    run_host(reader, code)
    assert log.messages == ["m: child1"]


@pytest.mark.parametrize(("printed", "logged"), [(2, 1), (1, 2)])
def test_pipes_may_be_standard_descriptors(reader, log, printed, logged):
    call = "os.dup2({printed}, 100); os.dup2({logged}, 101); os.closerange(0, 100); "
    call += f"os.open(os.devnull, 0); os.dup2(100, {printed}); os.dup2(101, {logged}); os.closerange(100, 102); "
    call += f"redirect_output({printed}, {logged}); logging.root.setLevel(logging.DEBUG)"
    code = "os.system('echo out; echo err >&2'); logging.info('%d open', len(os.listdir('/dev/fd')))"
    run_host(reader, code, call=call)
    assert sorted(log.messages) == ["m: 5 open", "m: err", "m: out"]  # three, the log and the folder


def test_bytes_that_are_no_log_record_are_logged_as_text(reader, log):
    texts = ["no json", '{"a": 1}', "7", ""]
    os.write(reader.logged, "\n".join(texts).encode() + b"\n" + b"[" * 50_000)
    os.write(reader.logged, b'\n[40, "", "a good one"]\n[999999999, "", "of any level"]\n')
    os.write(reader.printed, bytes(range(14, 256)) + b"\n")
    reader.close(LONG)
    assert {f"m: {text}" for text in [*texts, "a good one", "of any level"]} <= set(log.messages)
    assert any(message.endswith("\\xfe\\xff") for message in log.messages)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_handler_that_raises_does_not_end_the_thread(reader, log, capfd, error):
    def refuse(record):
        if "bad" in record.getMessage():
            raise error("no room")

    log.before = refuse
    os.write(reader.printed, b"bad\nbad\ngood\n")
    reader.close(LONG)
    assert log.messages == ["m: good"]
    assert capfd.readouterr().err.count("Traceback") == 2


def test_close_does_not_wait_for_ever_for_others(log):
    before, reader = belongings(), OutputReader("m")
    others = os.dup(reader.printed), os.dup(reader.logged)
    os.write(reader.printed, b"written in time\nall of it")
    (thread,) = (one for one in belongings() - before if isinstance(one, threading.Thread))
    reader.close(0.0)
    thread.join(LONG)  # close had but half a second for it
    assert log.messages == ["m: written in time", "m: all of it"]
    for other in others:
        with pytest.raises(BrokenPipeError):
            os.write(other, b"x")
        os.close(other)
    assert not belongings() - before


def test_close_does_not_wait_for_ever_for_a_handler_that_blocks(log):
    before, blocked, goes_on = belongings(), threading.Event(), threading.Event()
    log.before = lambda record: (blocked.set(), goes_on.wait(LONG))
    reader = OutputReader("m")
    os.write(reader.printed, b"x\n")
    assert blocked.wait(LONG)
    (thread,) = (one for one in belongings() - before if isinstance(one, threading.Thread))
    reader.close(0.0)
    assert thread.is_alive()
    goes_on.set()
    thread.join(LONG)
    assert not belongings() - before


@pytest.mark.parametrize("exit_text", ["reader.close(); assert not os.path.exists(f'/dev/fd/{reader.logged}')", "pass"])
def test_a_fork_of_the_owner_does_not_disturb_it(exit_text):
    code = f"""
thread, (ours, theirs), child = threading.enumerate()[1], os.pipe(), os.fork()
if not child:
    {exit_text}
    os.read(ours, 1)
    sys.exit(7)
os.write(reader.printed, b"still here")
reader.close(0.1)
thread.join()
os.write(theirs, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7"""
    owner = run_owner(code)
    assert (owner.returncode, owner.stderr) == (0, "m: still here\n")


def test_an_owner_that_ends_without_closing_ends_well():
    code = f"from headrace.hosts import output; output._LAST_SECS = {LONG}\n"
    code += "flowing = threading.Event(); logging.root.handlers[0].addFilter(lambda record: flowing.set() or True)\n"
    code += "flood = subprocess.Popen(['yes'], stdout=reader.printed); flowing.wait(60)\n"
    owner = run_owner(f"{code}os.write(reader.logged, b'last words')")
    assert (owner.returncode, "m: last words\n" in owner.stderr) == (0, True)

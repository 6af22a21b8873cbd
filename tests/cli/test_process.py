"""``headrace`` as a process: interrupted, on a terminal and elsewhere."""

import os
import pty
import re
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.large

CONTROL = re.compile(r"[^\n\x20-\x7e]")


@pytest.fixture
def old(folder):
    folder.write("in.jsonl", [{"a": n} for n in range(1000)])
    folder.write("p.jsonl", "old\n")
    return folder


def test_interrupts_leave_the_output_as_it_was(old, command, handlers):
    arguments = ("run", "in.jsonl", "--handler", f"{handlers}:Slow", "--output", "p.jsonl")
    running = {sent: command(*arguments) for sent in (signal.SIGINT, signal.SIGTERM)}
    for sent, process in running.items():
        assert process.stdout.readline() == "at work\n"
        process.send_signal(sent)
    ended = {sent: (*process.communicate(), process.returncode) for sent, process in running.items()}
    message = "error: interrupted; nothing was written.\n"
    assert ended == {signal.SIGINT: ("", message, 130), signal.SIGTERM: ("", message, 143)}
    assert old.names() == ["in.jsonl", "p.jsonl"]
    assert (old.path / "p.jsonl").read_text() == "old\n"


def test_a_process_started_to_ignore_interrupts_ignores_them(old, command, handlers):
    """As shells start what is to go on in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        arguments = ("run", "in.jsonl", "--handler", f"{handlers}:Waiting", "--output", "p.jsonl")
        process = command(*arguments, stdin=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert len(old.rows("p.jsonl")) == 1000


def test_output_fits_a_terminal_and_a_file(old, handlers, popen):
    """The handler is one of the current folder, from which neither program is started."""
    (old.path / "mine.py").write_text(f"from {handlers} import Add")
    program = old.path.parent / f"{old.path.name}.py"
    program.write_text("from headrace.cli.main import main; raise SystemExit(main())")
    arguments = [sys.executable, str(program), "run", "in.jsonl", "--handler", "mine:Add", "--output"]
    ours, theirs = pty.openpty()
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    drawing = popen([*arguments, "p.jsonl"], cwd=old.path, env=environment, **streams)
    os.close(theirs)
    plain = subprocess.run([*arguments, "q.jsonl"], cwd=old.path, capture_output=True, text=True, check=True)
    assert not CONTROL.search(plain.stdout + plain.stderr)
    assert plain.stderr == ""
    assert plain.stdout.startswith("rows          1,000\n")
    screen = read_all(ours)
    assert drawing.wait() == 0
    assert "starting, loading the model" in screen or "rows/s" in screen
    assert "predictions   1,000" in screen
    assert "\x1b[" in screen


def read_all(terminal):
    """Everything that a terminal shows until its program ends."""
    screen = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # on Linux, the end
            chunk = b""
        if not chunk:
            os.close(terminal)
            return screen.decode()
        screen += chunk

"""``headrace`` as a process: interrupted, on a terminal and elsewhere; and what memory it needs."""

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


def test_an_interrupt_leaves_the_output_as_it_was(old, command, handlers):
    before = old.contents()
    arguments = ("run", "in.jsonl", "--handler", f"{handlers}:Waiting", "--output", "p.jsonl")
    process = command(*arguments, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.communicate() == ("", "error: interrupted; nothing was written.\n")
    assert old.contents() == before


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


MEASURE = """
import resource, sys
from headrace.cli.main import main

for name in ("few.csv", "many.csv"):
    options = ["--columns", "n,m", "--types", "n=int", "--min-batch-size", "50", "--max-batch-size", "50"]
    options += ["--output", "p.jsonl"]
    assert main(["run", name, "--handler", sys.argv[1], *options]) == 0
    print(name, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
print("frameworks:", {"torch", "sklearn", "onnxruntime"} & set(sys.modules))
"""


def test_memory_does_not_grow_with_the_rows(folder, handlers):
    """And no framework is loaded that the handler does not need."""
    text = "x" * 2000
    for name, rows in (("few.csv", 4_000), ("many.csv", 40_000)):
        folder.write(name, "n,m,text\n" + (f"1,2,{text}\n" * 9 + f"smudge,2,{text}\n") * (rows // 10))
    size = (folder.path / "many.csv").stat().st_size
    arguments = [sys.executable, "-c", MEASURE, f"{handlers}:Add"]
    process = subprocess.run(arguments, cwd=folder.path, stdout=subprocess.PIPE, text=True, check=True)
    peaks = {name: int(peak) for name, peak in re.findall(r"^(\w+\.csv) (\d+)$", process.stdout, re.MULTILINE)}
    assert re.search("^predictions +36,000$", process.stdout, re.MULTILINE)
    assert "frameworks: set()\n" in process.stdout
    assert size > 80_000_000
    assert peaks["many.csv"] - peaks["few.csv"] < size / 4

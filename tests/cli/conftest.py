"""A command line in this process or in one of its own, over files in a folder of the test's."""

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.parquet
import pytest

from headrace.cli.main import main
from headrace.jobs.stored_rows import StoredOutput
from waiting import wait_until

HANDLERS = '''
import os
import pathlib
import sys
import threading

import numpy

import headrace


class Add(headrace.ModelHandler):
    """Adds a row's numbers and ``plus``, times the inference argument ``times``."""

    def __init__(self, plus=0, **options):
        super().__init__(**options)
        self.plus = plus

    def load_model(self):
        return sum

    def run_inference(self, batch, model, inference_args=None):
        times = (inference_args or {}).get("times", 1)
        return [(model(example.values()) + self.plus) * times for example in batch]

    def validate_inference_args(self, inference_args):
        if set(inference_args or {}) - {"times"}:
            raise ValueError("Add takes no inference argument but times")


class Vectors(Add):
    """Makes its own examples."""

    def example_from_row(self, row):
        return numpy.array([float(value) for value in row.values()])

    def run_inference(self, batch, model, inference_args=None):
        return [headrace.PredictionResult(x, {"twice": x * 2, "size": len(batch)}, "v1") for x in batch]


class Size(Add):
    """The size of the batch; takes all rows."""

    def run_inference(self, batch, model, inference_args=None):
        return [len(batch)] * len(batch)


class Broken(Add):
    def load_model(self):
        raise OSError("no such weights:\\nw.pkl")


class NeverLoads(Add):
    def load_model(self):
        threading.Event().wait()


class InColumns(Add):
    def columns_equal_rows(self):
        return True

    def example_from_row(self, row):
        return float(row["a"])

    def run_inference(self, batch, model, inference_args=None):
        return [2 * number for number in batch]

    def run_columns(self, columns, model, inference_args=None):
        return 2 * columns["a"]


class Waiting(Add):
    """Ready when its program's input ends."""

    def run_inference(self, batch, model, inference_args=None):
        print("at work", flush=True)
        sys.stdin.read()
        return super().run_inference(batch, model, inference_args)


class Prints(Add):
    """One more than a number; prints as Python and as C do."""

    def run_inference(self, batch, model, inference_args=None):
        print("from Python")
        os.write(1, b"from C")
        return [row["a"] + 1 for row in batch]


class Asks(headrace.RemoteModelHandler):
    """Twice a number: so many output tokens has a request; notes what it is asked, and what all see of its key."""

    def __init__(self, model="m", tokens=1000, api_key=None, batch_directory=None):
        super().__init__()
        self.model, self.tokens, self.key = model, tokens, api_key

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        (number,) = (row["n"] for row in batch)
        with open("asked", "a") as log:
            log.write(f"{number}\\n")
        if self.key:
            shown = [pathlib.Path(f"/proc/{one}/cmdline").read_text() for one in (os.getpid(), os.getppid())]
            with open("seen", "a") as seen:
                seen.writelines([*shown, self.key[:3]])
        headrace.report_usage(self.model, input_tokens=self.tokens, output_tokens=number)
        if self.model == "breaks" and number == 13:
            raise ConnectionResetError("gone")
        return [2 * number]

    def batch_elements_kwargs(self):
        return {"max_batch_size": 1}


class Unpicklable(Add):
    def __init__(self):
        super().__init__()
        self.rows = (row for row in ())


def bare():
    """Takes the value of one column."""
    return Add().with_preprocess_fn(lambda value: {"value": value})


def keyed():
    mappings = [headrace.KeyModelMapping([key], Add(plus)) for key, plus in (("x", 100), ("y", 200))]
    return headrace.KeyedModelHandler(mappings)


def late(model_uri):
    return Add().with_postprocess_fn(lambda sum: model_uri)


def fails():
    raise RuntimeError("no\\nluck")
'''


LOGGED = '''
import os
import signal
import time

import numpy

import headrace
from headrace.jobs import parts, publishing

parts._SYNC_SECONDS = 0.05
replace, moves = publishing._replace, []


def replace_or_die(move):
    moves.append(move)
    if str(len(moves)) == os.environ.get("DIE_BEFORE_MOVE"):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(move)


publishing._replace = replace_or_die


class Logged(headrace.ModelHandler):
    """Ten times a number, but for some; notes in the file ``log`` what it predicts."""

    def __init__(self, times=10):
        super().__init__()
        self.times = times

    def load_model(self):
        return "log"

    def predict(self, numbers, path):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        if any(n % int(os.environ.get("BAD_OF", 10)) == 7 for n in numbers):
            raise ValueError("bad")
        with open(path, "a") as log:
            log.write("".join(f"{n:.0f}\\n" for n in numbers))
        return [n * self.times for n in numbers]

    def run_inference(self, batch, path, inference_args=None):
        return self.predict([row["n"] for row in batch], path)


class InColumns(Logged):
    """The same for rows in columns, plus ``x``."""

    def columns_equal_rows(self):
        return True

    def example_from_row(self, row):
        return float(row["n"]), float(row["x"])

    def run_inference(self, batch, path, inference_args=None):
        return self.run_columns(dict(zip("nx", map(numpy.array, zip(*batch)))), path).tolist()

    def run_columns(self, columns, path, inference_args=None):
        return self.predict(columns["n"], path) + columns["x"]
'''


class Result(NamedTuple):
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The single line of its error message."""
        (line,) = self.err.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")

    @property
    def summary(self) -> dict[str, str]:
        """The summary's lines."""
        return {line[:40].rsplit("  ", 1)[0].strip(): line.split("  ")[-1].strip() for line in self.out.splitlines()}


class Folder:
    """The folder of the files, and the current one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, content: str | list[dict]) -> None:
        """Text, or rows in the format that the name tells."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), path)
        else:
            path.write_text(content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content))

    def rows(self, name: str) -> list[dict]:
        """The rows of a JSONL or Parquet file."""
        if name.endswith(".parquet"):
            return pyarrow.parquet.read_table(self.path / name).to_pylist()
        return [json.loads(line) for line in (self.path / name).read_text().splitlines()]

    def names(self) -> list[str]:
        """The files there are, hidden ones too, without compiled modules."""
        files = (path.relative_to(self.path) for path in self.path.rglob("*") if path.is_file())
        return sorted(str(file) for file in files if "__pycache__" not in file.parts)

    def contents(self) -> dict[str, bytes]:
        """What is in each of them."""
        return {name: (self.path / name).read_bytes() for name in self.names()}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


@pytest.fixture
def handlers(tmp_path_factory, monkeypatch):
    """The name of a module of handlers, of this test only, importable here and in processes started from here."""
    path = tmp_path_factory.mktemp("code")
    name = f"handlers_{path.name}_{os.getpid()}"
    (path / f"{name}.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(str(path))
    monkeypatch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def own(folder, monkeypatch):
    """The folder, whose modules are importable here and in processes started from here."""
    monkeypatch.syspath_prepend(str(folder.path))
    monkeypatch.setenv("PYTHONPATH", str(folder.path), prepend=os.pathsep)
    yield folder
    for path in folder.path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def logged(own):
    """A folder with a module ``logged`` of handlers that log."""
    own.write("logged.py", LOGGED)
    return own


@pytest.fixture
def headrace(capsys):
    """Runs a command line in this process."""

    def call(*arguments):
        code = main(list(map(str, arguments)))
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def run(headrace, handlers):
    """Runs a handler of ``HANDLERS``, or one by its path, over in.jsonl into p.jsonl, unless it is told otherwise."""

    def call(*words, handler="Add", command="run", inputs=("in.jsonl",), output=("--output", "p.jsonl")):
        path = handler if ":" in handler else f"{handlers}:{handler}"
        return headrace(command, *inputs, "--handler", path, *output, *words)

    return call


@pytest.fixture
def mistake(folder, run):
    """Runs what is refused before it begins, in one line, which it returns; all files stay as they were."""

    def call(*words, **options):
        before = folder.contents()
        result = run(*words, **options)
        assert (result.code, result.out, folder.contents()) == (2, "", before)
        return result.error

    return call


@pytest.fixture
def command(folder, popen):
    """A command line as the leader of a group of processes, in the folder; ``environment`` adds to this one's."""

    def start(*arguments, stdin=None, **environment):
        return popen(
            [sys.executable, "-c", "import sys; from headrace.cli.main import main; sys.exit(main())", *arguments],
            cwd=folder.path,
            env={**os.environ, **environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


class Resumable:
    """What runs with ``--resume`` leave in a folder, over two files of so many rows each."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        self.rows = rows

    def done(self, name: str) -> set[int]:
        """The numbers of the durable rows of the run whose output has that name."""
        return {
            (place & ((1 << 40) - 1)) + (place >> 40) * self.rows
            for path in self.path.glob(f".{name and name + '.'}headrace-*")
            for ranges in [StoredOutput.find(str(path)).places]
            for start, stop in zip(ranges.starts.tolist(), ranges.stops.tolist(), strict=True)
            for place in range(start, stop)
        }

    def log(self) -> list[int]:
        """The numbers that a handler has written into the file ``log``."""
        path = self.path / "log"
        return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def kill(self, process: subprocess.Popen, name: str, at_least: int) -> set[int]:
        """Kills a run and its children once a number of its rows is durable; returns the durable ones."""
        assert wait_until(lambda: len(self.done(name)) >= at_least or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return self.done(name)


@pytest.fixture
def resumable(folder):
    """Makes a Resumable of the folder for files of so many rows."""
    return functools.partial(Resumable, folder.path)

"""``--workers``: several processes of this machine do what one does, and leave nothing behind, however they end."""

import json
import os
import signal
from decimal import Decimal

import pyarrow.parquet
import pytest

from headrace.hosts.system import marked
from headrace.jobs import splits

HANDLER = '''
import os
import time

import headrace
from headrace.jobs import parts

parts._SYNC_SECONDS = 0.05


class Twice(headrace.ModelHandler):
    """Doubles a number; 13, 33, ... are poison. Notes its process in the file ``log``."""

    def load_model(self):
        if os.environ.get("CANNOT_LOAD"):
            raise OSError("no weights")

    def run_inference(self, batch, model, inference_args=None):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        if any(int(row["n"]) % 20 == 13 for row in batch):
            raise ValueError("poison")
        with open("log", "a") as log:
            log.write(f"{os.getpid()}\\n")
        return [2 * int(row["n"]) for row in batch]


class DiesOnce(Twice):
    """Once it has seen 50."""

    def run_inference(self, batch, model, inference_args=None):
        if any(row["n"] == 50 for row in batch) and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), 9)
        return super().run_inference(batch, model, inference_args)
'''
ROWS = 1200
RUN = ("run", "[ab].*", "--handler", "twice:Twice", "--max-batch-size=8", "--output", "p.jsonl")


@pytest.fixture
def work(own, monkeypatch):
    """A CSV file with quoted line ends, and a file of JSON lines, with lines that cannot be read in both."""
    own.write("twice.py", HANDLER)
    monkeypatch.setattr(splits, "_FEWEST_BYTES", 200)
    csv = [
        f'{n},"line\nline {n}"' if n % 3 else f"{n},too,many" if n % 50 == 48 else f"{n},x" for n in range(ROWS // 2)
    ]
    own.write("a.csv", "\n".join(["n,t", *csv]))
    lines = [json.dumps({"n": n, "t": "y"}) if n % 50 != 49 else f"broken {n}" for n in range(ROWS // 2, ROWS)]
    own.write("b.jsonl", "\n\n".join(lines))
    return own


@pytest.fixture
def runs(resumable):
    return resumable(ROWS // 2)


def written(folder):
    """The output and the dead letters, without what depends on the batch and on the part in which a row was."""
    letters = folder.rows("p.dead-letters.jsonl")
    for letter in letters:
        letter.update(attempts=0, traceback="")
    found = (folder.path / "p.jsonl").read_bytes(), sorted(letters, key=lambda letter: letter["position"]["place"])
    for name in ("p.jsonl", "p.dead-letters.jsonl"):
        os.remove(folder.path / name)
    return found


def processes(folder):
    """Those in which the model has run."""
    found = set((folder.path / "log").read_text().split())
    os.remove(folder.path / "log")
    return found


def hosts_of(process):
    return [one.process for one in marked() if one.owner == process.pid]


def test_workers_do_what_one_does(work, headrace):
    """The order, the places of dead letters, and the counts are the same; Parquet and compressed files go along."""
    work.write("b.parquet", [{"n": n, "t": "z"} for n in range(300)])
    one = headrace(*RUN)
    expected = written(work)
    assert processes(work) == {str(os.getpid())}
    several = headrace(*RUN, "--workers", "3")
    assert written(work) == expected
    found = processes(work)
    assert 1 < len(found) <= 3
    assert str(os.getpid()) not in found
    for result in (one, several):
        result.summary.pop("seconds")
    counts = [{name: value for name, value in result.summary.items() if name != "seconds"} for result in (one, several)]
    assert counts[0] == counts[1]
    assert (several.code, several.err) == (0, "")
    assert not [name for name in work.names() if "headrace-" in name]


@pytest.mark.large
def test_a_killed_worker_fails_the_run_which_then_goes_on(work, headrace, command, runs, wait_until):
    """Another number of workers, and a single one, go on; places are those of the whole file."""
    assert headrace(*RUN).code == 0
    expected = written(work)
    process = command(*RUN, "--workers=2", "--resume", PAUSE="0.02")
    assert wait_until(lambda: len(runs.done("p.jsonl")) >= 50)
    _, victim = (work.path / "log").read_text().split()[-2:]
    os.kill(int(victim), signal.SIGKILL)
    _, error = process.communicate()
    assert process.returncode == 1
    assert "was killed by SIGKILL" in error
    assert "rows are done and kept; the same command goes on from there" in error
    assert not hosts_of(process)
    done = runs.done("p.jsonl")
    process = command(*RUN, "--workers=3", "--resume", PAUSE="0.02")
    assert wait_until(lambda: len(runs.done("p.jsonl")) >= len(done) + 50)
    hosts = hosts_of(process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(hosts) > 1
    assert wait_until(lambda: not hosts_of(process))
    assert done < runs.done("p.jsonl")
    last = headrace(*RUN, "--resume")
    assert int(last.summary["done before"].replace(",", "")) >= len(done) + 50
    assert written(work) == expected


def test_types_outlive_a_killed_worker(work, headrace):
    """Each part knows those of its own rows only."""
    count = 90
    columns = {
        "n": pyarrow.array(range(count)),
        "small": pyarrow.array([n if n % 7 else None for n in range(count)], pyarrow.int8()),
        "price": pyarrow.array([Decimal(n) / 8 for n in range(count)], pyarrow.decimal128(12, 3)),
        "kind": pyarrow.array([f"k{n // 30}" for n in range(count)]).dictionary_encode(),
        "late": pyarrow.array([None] * (count - 1) + [1], pyarrow.uint16()),
    }
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, work.path / "t.parquet", row_group_size=30)
    run = ("run", "t.parquet", "--handler", "twice:DiesOnce", "--max-batch-size=8", "--output", "p.parquet", "--resume")
    first = headrace(*run, "--workers=2")
    assert (first.code, "was killed by SIGKILL" in first.error) == (1, True)
    assert headrace(*run, "--workers=2").code == 0
    good = [n for n in range(count) if n % 20 != 13]
    found = pyarrow.parquet.read_table(work.path / "p.parquet")
    assert found.equals(table.take(good).append_column("prediction", pyarrow.array([2 * n for n in good])))


@pytest.mark.large
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_an_interrupt_ends_all_workers(work, command, runs, wait_until, resume):
    process = command(*RUN, "--workers=2", *resume, PAUSE="0.05")
    assert wait_until((work.path / "log").exists)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    assert error.startswith("error: interrupted; nothing was written.")
    assert ("rows are done and kept" in error) == bool(resume)
    assert not hosts_of(process)
    assert bool([name for name in work.names() if "headrace-" in name]) == bool(resume)


def test_a_model_that_cannot_be_loaded_is_one_error(work, headrace, monkeypatch):
    monkeypatch.setenv("CANNOT_LOAD", "1")
    result = headrace(*RUN, "--workers=2")
    assert result.code == 1
    assert result.error == "the run failed: OSError: no weights"


def test_a_run_whose_first_rows_all_fail_is_cut(work, headrace):
    os.remove("b.jsonl")
    work.write("a.csv", "n,t\n" + "13,x\n" * 60_000)
    result = headrace(*RUN, "--workers=2")
    assert (result.code, result.error[:41]) == (3, "the first 1,000 rows failed, and the rest")
    assert int(result.summary["rows"].replace(",", "")) < 60_000


@pytest.mark.large
def test_auto_begins_in_this_process_and_measures(work, headrace, monkeypatch):
    """A model of one thread gets a worker for each core; where there is one core, this process goes on alone."""
    from headrace.jobs import workers

    assert headrace(*RUN).code == 0
    expected = written(work)
    processes(work)
    monkeypatch.setattr(workers, "_MEASURED_SECONDS", 0.3)
    monkeypatch.setenv("PAUSE", "0.01")
    for cores in (1, 2):
        monkeypatch.setattr(workers, "allowed_cores", lambda cores=cores: cores)
        assert headrace(*RUN, "--workers=auto").code == 0
        found = processes(work)
        assert (str(os.getpid()) in found, len(found)) == (True, cores)
        assert written(work) == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers=0"], "--workers is how many processes there are, or auto, not 0."),
        (["--workers=two"], "'two' is no number of processes; give 4, or auto."),
        (["--workers=2", "--limit=5"], "leave --workers out"),
        (["--workers=2", "--runner=FnApiRunner"], "--workers are processes of this machine, without Beam"),
    ],
)
def test_mistakes(work, headrace, arguments, said):
    result = headrace(*RUN, *arguments)
    assert result.code == 2
    assert said in " ".join(result.err.replace("│", " ").split())

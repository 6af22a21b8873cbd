"""``--workers``: several processes of this machine do what one does, and leave nothing behind, however they end."""

import json
import os
import signal

import pytest

from headrace.hosts.system import marked
from headrace.jobs import splits

HANDLER = '''
import os

from logged import Logged


class Twice(Logged):
    """Doubles a number; 7, 27, ... are poison. Notes its process in the file ``processes``."""

    def __init__(self):
        super().__init__(times=2)

    def load_model(self):
        if os.environ.get("CANNOT_LOAD"):
            raise OSError("no weights")
        return super().load_model()

    def predict(self, numbers, path):
        found = super().predict(numbers, path)
        with open("processes", "a") as log:
            log.write(f"{os.getpid()}\\n")
        return found
'''
ROWS = 1200
RUN = ("run", "[ab].*", "--handler", "twice:Twice", "--max-batch-size=8", "--output", "p.jsonl")


@pytest.fixture
def work(logged, monkeypatch):
    """A CSV file with quoted line ends, and a file of JSON lines, with lines that cannot be read in both."""
    logged.write("twice.py", HANDLER)
    monkeypatch.setenv("BAD_OF", "20")
    monkeypatch.setattr(splits, "_FEWEST_BYTES", 200)
    csv = [f'"line\nline {n}"' if n % 3 else "too,many" if n % 50 == 48 else "x" for n in range(ROWS // 2)]
    logged.write("a.csv", "\n".join(["n,t", *(f"{n},{text}" for n, text in enumerate(csv))]))
    lines = [json.dumps({"n": n, "t": "y"}) if n % 50 != 49 else f"broken {n}" for n in range(ROWS // 2, ROWS)]
    logged.write("b.jsonl", "\n\n".join(lines))
    return logged


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
    found = set((folder.path / "processes").read_text().split())
    os.remove(folder.path / "processes")
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
    _, victim = (work.path / "processes").read_text().split()[-2:]
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


@pytest.mark.large
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_an_interrupt_ends_all_workers(work, command, wait_until, resume):
    process = command(*RUN, "--workers=2", *resume, PAUSE="0.05")
    assert wait_until((work.path / "processes").exists)
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
    work.write("a.csv", "n,t\n" + "7,x\n" * 60_000)
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

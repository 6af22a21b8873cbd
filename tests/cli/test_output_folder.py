"""``--output FOLDER/``: a file for each input; another run predicts only those that are new or have changed."""

import os
import shutil
import signal

import pytest

from headrace.hosts.system import marked
from headrace.jobs.folder import FolderOutput
from object_store import OBJECTS, ObjectStore
from waiting import wait_until

RUN = ("run", "in/**/*.*", "--handler", "logged:Logged", "--max-batch-size=4", "--min-batch-size=4", "--output", "out/")


class Work:
    """A folder of inputs, and what was predicted of them."""

    def __init__(self, folder, headrace):
        self.path, self.names, self._rows, self._headrace = folder.path, folder.names, folder.rows, headrace
        self._folder = folder

    def write(self, name, *numbers):
        """An input of these numbers."""
        rows = "".join(f"{n}\n" for n in numbers)
        self._folder.write(name, f"n\n{rows}" if name.endswith(".csv") else [{"n": n} for n in numbers])

    def run(self, *more):
        """Runs, and gives the result and what was predicted."""
        result = self._headrace(*RUN, *more)
        return result, self.log()

    def log(self):
        """What was predicted since it was asked for last."""
        path = self.path / "log"
        found = sorted(map(int, path.read_text().split())) if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def outputs(self):
        """The content of all files in the folder of the outputs, without what is Headrace's own."""
        names = [name.removeprefix("out/") for name in self.names() if name.startswith("out/") and "/." not in name]
        return {name: (self.path / "out" / name).read_bytes() for name in names}

    def predictions(self, name, folder="out"):
        """Of the rows of an output."""
        if name.endswith(".csv"):
            lines = (self.path / folder / name).read_text().splitlines()[1:]
            return dict(tuple(map(int, line.split(","))) for line in lines)
        return {row["n"]: row["prediction"] for row in self._rows(f"{folder}/{name}")}

    def letters(self, name, folder="out"):
        return self._rows(f"{folder}/{name}")


@pytest.fixture
def work(logged, headrace):
    made = Work(logged, headrace)
    made.write("in/a.csv", 1, 2, 7, 3)
    made.write("in/s/b.csv", 17)
    made.write("in/s/c.jsonl", 4, 5)
    made.write("in/d.parquet", 6)
    return made


def test_each_input_has_its_output_and_its_dead_letters(work):
    result, predicted = work.run()
    assert (result.code, result.err, predicted) == (0, "", [1, 2, 3, 4, 5, 6])
    assert result.summary["inputs"] == "4 predicted, 0 unchanged"
    found = {name: work.predictions(name) for name in work.outputs() if "dead" not in name}
    assert found == {"a.csv": {1: 10, 2: 20, 3: 30}, "d.parquet": {6: 60}, "s/b.csv": {}, "s/c.jsonl": {4: 40, 5: 50}}
    assert len(work.letters("s/b.dead-letters.jsonl")) == 1
    (letter,) = work.letters("a.dead-letters.jsonl")
    position = {"file": str(work.path / "in/a.csv"), "row": 3, "before": 2, "of": 3}
    assert letter["position"].items() >= position.items()


def test_only_what_is_new_or_changed_is_predicted(work):
    work.run()
    before = work.outputs()
    result, predicted = work.run()
    assert (result.code, result.err, predicted, work.outputs()) == (0, "", [], before)
    assert result.summary["inputs"] == "0 predicted, 4 unchanged"
    work.write("in/s/b.csv", 18)
    work.write("in/e.csv", 9)
    os.remove(work.path / "in/d.parquet")
    os.remove(work.path / "out/s/c.jsonl")
    before = work.outputs()
    result, predicted = work.run("--dry-run")
    assert (result.code, predicted, work.outputs()) == (0, [], before)
    assert result.out.startswith("inputs: 3 to predict, 1 unchanged\n")
    times = {name: (work.path / "out" / name).stat().st_mtime_ns for name in ("a.csv", "d.parquet")}
    result, predicted = work.run()
    assert (result.code, predicted) == (0, [4, 5, 9, 18])
    assert result.summary["inputs"] == "3 predicted, 1 unchanged"
    assert result.summary["other outputs"] == "1 of inputs that are gone or not named, which stay: d.parquet"
    assert work.predictions("s/b.csv") == {18: 180}
    after = work.outputs()
    assert sorted(after) == ["a.csv", "a.dead-letters.jsonl", "d.parquet", "e.csv", "s/b.csv", "s/c.jsonl"]
    assert times == {name: (work.path / "out" / name).stat().st_mtime_ns for name in times}
    assert work.run()[1] == []


def test_another_model_predicts_all_again_and_says_so(work):
    work.run()
    result, predicted = work.run("--handler-arg", "times=2")
    assert predicted == [1, 2, 3, 4, 5, 6]
    assert result.err.startswith("--handler-arg times: changed since the outputs in ")
    assert work.predictions("d.parquet") == {6: 12}
    assert work.run()[1] == [1, 2, 3, 4, 5, 6]
    work.write("in/d.parquet", 8)
    assert work.run("--handler-arg", "times=2")[1] == [1, 2, 3, 4, 5, 8]


def test_the_format_and_the_folder_of_dead_letters_can_be_chosen(work):
    result, _ = work.run("--output-format", "jsonl", "--dead-letters", "bad/")
    assert result.code == 0
    assert sorted(work.outputs()) == ["a.jsonl", "d.jsonl", "s/b.jsonl", "s/c.jsonl"]
    assert work.predictions("a.jsonl") == {1: 10, 2: 20, 3: 30}
    letters = [len(work.letters(f"{name}.dead-letters.jsonl", "bad")) for name in ("a", "s/b")]
    assert letters == [1, 1]
    assert len([name for name in work.names() if name.startswith("bad/")]) == 2


def test_a_dead_letter_goes_back_into_the_output_of_its_input(work, headrace):
    work.run()
    letters = work.path / "out/a.dead-letters.jsonl"
    letters.write_text(letters.read_text().replace('"n": 7', '"n": 8'))
    retry = ("retry", letters, "--handler", "logged:Logged", "--into", "out/a.csv")
    assert headrace(*retry).code == 0
    assert work.predictions("a.csv") == {1: 10, 2: 20, 8: 80, 3: 30}
    work.log()
    assert work.run()[1] == []


def test_refused_predictions_leave_the_outputs(work):
    work.run()
    before = work.outputs()
    work.write("in/a.csv", 7, 27)
    result, _ = work.run("--threshold", "0.1")
    assert result.code == 3
    failed = {"a.dead-letters.failed.jsonl"}
    assert {name: text for name, text in work.outputs().items() if name not in failed} == before
    assert len(work.letters(*failed)) == 2
    assert work.run("--threshold", "1")[0].code == 0
    assert len(work.letters("a.dead-letters.jsonl")) == 2
    assert failed.isdisjoint(work.outputs())


def test_workers_write_the_same(work):
    for number in range(3):
        work.write(f"in/w{number}.csv", *range(1000 * number + 100, 1000 * number + 190))
    work.run()
    expected = work.outputs()
    shutil.rmtree(work.path / "out")
    work.log()
    result, predicted = work.run("--workers", "2")
    assert result.code == 0
    found = work.outputs()
    assert found.keys() == expected.keys()
    assert all(found[name] == expected[name] for name in expected if "dead" not in name)
    assert len(set(predicted)) == len(predicted)
    letters = work.letters("w1.dead-letters.jsonl")
    assert [letter["row"] for letter in letters] == [{"n": n} for n in range(1107, 1190, 10)]


@pytest.mark.large
def test_a_killed_run_goes_on_also_when_there_are_more_inputs(work, headrace, command, resumable):
    """And none begins while it is at work."""
    numbers = [[1, 2, 7, 3], [6], [17], [4, 5], *(list(range(start + 10, start + 300)) for start in (0, 1000, 2000))]
    for number in range(3):
        work.write(f"in/w{number}.csv", *numbers[4 + number])
    runs = resumable(1000)
    process = command(*RUN, "--resume", "--workers=2", PAUSE="0.05")
    runs.path = work.path / "out"
    assert wait_until(lambda: runs.done("") or process.poll() is not None)
    busy = headrace(*RUN, "--resume")
    assert busy.code == 2
    assert busy.error.startswith(f"another run (process {process.pid}) is at work in ")
    runs.kill(process, "", 200)
    assert wait_until(lambda: not [one for one in marked() if one.owner == process.pid])  # the workers, which go on
    done = runs.done("")
    before = work.log()
    assert not work.outputs()
    work.write("in/aa.csv", 9999)
    result, after = work.run("--resume", "--workers=2")
    assert (result.code, result.err) == (0, "")
    assert result.summary["done before"] == str(len(done))
    rest = {(file, row): n for file, some in enumerate(numbers) for row, n in enumerate(some) if n % 10 != 7}
    for place in done:
        rest.pop(divmod(place, 1000), None)
    assert after == sorted([9999, *rest.values()])
    assert before
    for number in range(3):
        expected = {n: 10 * n for n in numbers[4 + number] if n % 10 != 7}
        assert work.predictions(f"w{number}.csv") == expected
    assert work.run("--resume")[1] == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["in/a.csv", "in/s/a.csv"], "in/a.csv and {}/in/s/a.csv would both have a.csv in the folder"),
        (["in/a.csv", "in/a.dead-letters.jsonl"], "would both have a.dead-letters.jsonl in the folder"),
        (["in/a.csv", "--dead-letters", "d.jsonl"], "d.jsonl is one file, and --output is a folder"),
        (["in/a.csv", "--limit", "2"], "--limit is for a short run in this process; leave an --output that is"),
        (["out/x.csv"], "out/x.csv is an input, and in the folder of the outputs"),
        (["in/*", "--format", "files"], "with --format files all inputs cannot have one; name a file."),
        (["in/a.csv", "--output", "objects://b/out/", "--resume"], "--resume works in local folders only, and --out"),
        (["in/a.csv", "--output", "gs://b/out/"], "cannot look into gs://b/out/: Beam's part for Google Cloud Storage"),
        (["objects://b/x.csv", "--output", "objects://b/"], "b/x.csv is an input, and in the folder of the outputs"),
        (["in/a.csv", "--output", "link/"], "in/a.csv is an input, and in the folder of the outputs"),
        (["in/a.csv", "--output", "in/s/../"], "in/a.csv is an input, and in the folder of the outputs"),
    ],
)  # fmt: skip
def test_what_cannot_have_an_output_each_is_refused(work, mistake, more, message):
    for name in ("in/s/a.csv", "in/a.dead-letters.jsonl", "out/x.csv"):
        work.write(name, 1)
    os.symlink("in", work.path / "link")
    OBJECTS["objects://b/x.csv"] = b"n\n1\n"
    error = mistake(*more, handler="logged:Logged", inputs=(), output=("--output", "out/"))
    assert message.format(work.path) in error


def test_a_manifest_that_cannot_be_read_is_named(work):
    work.run()
    (work.path / "out/.headrace.json").write_text("{")
    result, _ = work.run()
    assert (result.code, "out/.headrace.json, which tells what the outputs" in result.error) == (2, True)


@pytest.mark.parametrize(("move", "resume"), [(3, ("--resume",)), (6, ())])
def test_a_run_killed_while_it_moves_files_leaves_whole_outputs(work, command, move, resume):
    work.run()
    before = work.outputs()
    for name in ("in/a.csv", "in/s/b.csv"):
        work.write(name, 1, 7, 9)
    process = command(*RUN, *resume, "--handler-arg=times=3", DIE_BEFORE_MOVE=str(move))
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    now = work.outputs()
    assert {"a.csv", "s/b.csv", "s/c.jsonl", "d.parquet"} <= now.keys()
    assert now["a.csv"] in (before["a.csv"], b"n,prediction\n1,3\n9,27\n")
    work.log()
    result, predicted = work.run(*resume, "--handler-arg=times=3")
    assert result.code == 0
    assert predicted == ([] if resume else [1, 1, 4, 5, 6, 9, 9])
    assert work.predictions("a.csv") == work.predictions("s/b.csv") == {1: 3, 9: 27}
    assert len(work.letters("a.dead-letters.jsonl")) == len(work.letters("s/b.dead-letters.jsonl")) == 1
    assert not [name for name in os.listdir(work.path / "out") if name.startswith(".") and name != ".headrace.json"]
    assert work.run(*resume, "--handler-arg=times=3")[1] == []


REMOTE = ("--output", "objects://out [1]/")


@pytest.fixture
def objects(work):
    """A store without folders, with some of the inputs."""
    OBJECTS.clear()
    OBJECTS["objects://in/s/b.csv"] = b"n\n17\n"
    OBJECTS["objects://in/c.jsonl"] = b'{"n": 4}\n{"n": 5}\n'
    yield OBJECTS
    OBJECTS.clear()


def run_remotely(work, headrace, *more):
    result = headrace("run", "in/a.csv", "objects://in/**/*.*", "--handler", "logged:Logged", *REMOTE, *more)
    outputs = {name: OBJECTS[name].decode() for name in OBJECTS if name.startswith(REMOTE[1])}
    assert not [name for name in outputs if "/.headrace-" in name], "what a run leaves beside its files"
    return result, work.log(), {name.removeprefix(REMOTE[1]): text for name, text in outputs.items()}


@pytest.mark.parametrize("moves", ["replaces", "refuses", "copies"])
def test_a_remote_folder_gets_what_is_new_or_changed(work, headrace, objects, monkeypatch, moves):
    monkeypatch.setattr(ObjectStore, "moves", moves)
    result, predicted, outputs = run_remotely(work, headrace)
    assert (result.code, result.err, predicted) == (0, "", [1, 2, 3, 4, 5])
    assert sorted(outputs) == [
        ".headrace.json", "a.csv", "a.dead-letters.jsonl", "c.jsonl", "s/b.csv", "s/b.dead-letters.jsonl",
    ]  # fmt: skip
    assert outputs["a.csv"] == "n,prediction\n1,10\n2,20\n3,30\n"
    result, predicted, again = run_remotely(work, headrace)
    assert (result.summary["inputs"], predicted, again) == ("0 predicted, 3 unchanged", [], outputs)
    objects["objects://in/s/b.csv"] = b"n\n18\n19\n"
    del objects["objects://out [1]/a.csv"]
    result, predicted, outputs = run_remotely(work, headrace)
    assert (result.summary["inputs"], predicted) == ("2 predicted, 1 unchanged", [1, 2, 3, 18, 19])
    assert outputs["s/b.csv"] == "n,prediction\n18,180\n19,190\n"
    assert "s/b.dead-letters.jsonl" not in outputs
    result, predicted, outputs = run_remotely(work, headrace, "--handler-arg", "times=2")
    assert "--handler-arg times: changed since the outputs in objects://out [1]/ were written" in result.err
    assert predicted == [1, 2, 3, 4, 5, 18, 19]
    assert outputs["c.jsonl"].splitlines()[0] == '{"n": 4, "prediction": 8}'


def test_dead_letters_of_a_remote_folder_may_be_in_a_local_one(work, headrace, objects):
    result, _, outputs = run_remotely(work, headrace, "--dead-letters", "bad/")
    assert (result.code, sorted(outputs)) == (0, [".headrace.json", "a.csv", "c.jsonl", "s/b.csv"])
    assert sorted(os.listdir("bad/") + os.listdir("bad/s")) == ["a.dead-letters.jsonl", "b.dead-letters.jsonl", "s"]


def test_a_remote_folder_whose_manifest_changes_meanwhile_is_left_alone(work, headrace, objects, monkeypatch):
    run_remotely(work, headrace)
    before = {name: objects[name] for name in objects if name != "objects://out [1]/.headrace.json"}
    write = FolderOutput.publish

    def meanwhile(output, *arguments):
        objects["objects://out [1]/.headrace.json"] = b'{"job": {}, "outputs": {}}'
        return write(output, *arguments)

    monkeypatch.setattr(FolderOutput, "publish", meanwhile)
    result = headrace("run", "in/a.csv", "--handler", "logged:Logged", *REMOTE, "--handler-arg", "times=3")
    assert (result.code, "another run has written into objects://out [1]/ meanwhile" in result.err) == (1, True)
    assert {name: objects[name] for name in before} == before

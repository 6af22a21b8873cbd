"""A folder of kept parts belongs to one job, and to one run at a time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from full_disk import full_disk
from headrace.core.errors import ConfigurationError
from headrace.jobs import storage
from headrace.jobs.parts import PartWriter, leave_mark
from headrace.jobs.publishing import PublishError
from headrace.jobs.resume import ResumableOutput
from headrace.rows.blocks import place_at
from output_rows import write_rows

LOCKS = """
import sys
from headrace.jobs.publishing import PublishError
from headrace.jobs.resume import ResumableOutput
output = ResumableOutput(sys.argv[1], None, {})
output.prepare()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def output(tmp_path):
    """Makes an output of this job, ready for parts; what it locks is given back."""
    made = []

    def make(name="p.jsonl", *, keeps=True, prepared=True, **job):
        made.append(ResumableOutput(str(tmp_path / name), None, job, keeps=keeps))
        if prepared:
            made[-1].prepare()
        return made[-1]

    yield make
    for one in made:
        one.clean()


def write(output, *numbers, kind="predictions"):
    writer = PartWriter(output.folder, kind, durable=True)
    more = {} if kind == "predictions" else {"stage": "inference", "error_type": "E"}
    write_rows(writer, [(place_at(0, n), {"n": n, **more}) for n in numbers])
    writer.finish()


def publish(output, threshold=None):
    """As a driver leaves it; gives the numbers of predictions, dead letters and skipped rows."""
    report = output.publish(threshold=threshold)
    return report.predictions, report.failed, report.skipped


def test_what_was_done_is_found_and_published(output, tmp_path):
    first = output(model="m")
    write(first, 0, 1, 3)
    first.clean()
    assert first.kept_rows == 3
    second = output(model="m")
    assert second.earlier_rows == 3
    write(second, 4, 2)
    write(second, 5, kind="letters")
    assert publish(second) == (5, 1, 0)
    second.clean()
    assert [json.loads(line)["n"] for line in (tmp_path / "p.jsonl").read_text().splitlines()] == [0, 1, 2, 3, 4]
    assert sorted(os.listdir(tmp_path)) == ["p.dead-letters.jsonl", "p.jsonl"]


@pytest.mark.parametrize("keeps", [True, False])
def test_what_an_earlier_attempt_left_beside_its_rows_is_gone(output, keeps):
    """It may have been killed behind it; without ``--resume`` its rows are gone, too."""
    first = output(keeps=keeps)
    write(first, 0, 1)
    leave_mark(first.folder)
    first._lock.close()
    second = output(keeps=keeps)
    write(second, 0)
    assert (publish(second), second.accepted) == ((2 if keeps else 1, 0, 0), True)


def test_a_row_without_a_result_is_not_passed_over(output):
    first = output()
    write(first, 0, 2)
    with pytest.raises(PublishError, match="no result; this is a bug"):
        publish(first)


def test_each_file_is_on_the_disk_before_its_name_and_both_before_the_parts_go(output, tmp_path, monkeypatch):
    """The order of the system calls, which are made all the same."""
    calls = []

    def noted(name, paths_of):
        call = getattr(os, name)

        def note(*arguments):
            calls.append((name, *(os.path.basename(path) for path in paths_of(*arguments))))
            return call(*arguments)

        monkeypatch.setattr(os, name, note)

    one = output()
    write(one, 0, 1)
    write(one, 2, kind="letters")
    noted("fsync", lambda descriptor: [os.readlink(f"/proc/self/fd/{descriptor}")])
    noted("replace", lambda source, destination: [source, destination])
    monkeypatch.setattr(storage, "rename", os.replace)
    noted("remove", lambda path: [path])
    publish(one)
    one.clean()
    assert calls == [
        ("fsync", "joined-p.dead-letters.jsonl"),
        ("fsync", "joined-p.jsonl"),
        ("replace", "joined-p.dead-letters.jsonl", "p.dead-letters.jsonl"),
        ("replace", "joined-p.jsonl", "p.jsonl"),
        ("fsync", tmp_path.name),
        ("remove", "job.json"),
    ]


def test_what_was_refused_is_kept_if_it_has_predictions(output, tmp_path):
    """So that it can be accepted later."""
    first = output()
    write(first, 0, 1)
    write(first, 2, kind="letters")
    publish(first, threshold=0)
    first.clean()
    assert first.kept_rows == 3
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["p.dead-letters.failed.jsonl"]
    second = output()
    publish(second)
    second.clean()
    assert sorted(os.listdir(tmp_path)) == ["p.dead-letters.jsonl", "p.jsonl"]


def test_a_run_of_dead_letters_alone_is_not_kept_once_they_are_written(output, tmp_path):
    """Another one is to try those rows again."""
    one = output()
    write(one, 0, 1, kind="letters")
    publish(one, threshold=0)
    one.clean()
    assert os.listdir(tmp_path) == ["p.dead-letters.failed.jsonl"]


def test_another_job_is_refused_only_if_something_would_be_lost(output):
    first = output(model="m", keep=("a",))
    first.clean()
    second = output(model="n", keep=("a",))
    write(second, 0)
    second.clean()
    with pytest.raises(ConfigurationError, match=r"^1 rows .* have changed since: model\. Put .* remove "):
        output(model="o", keep=("a",))
    assert output(model="n", keep=("a",)).earlier_rows == 1


def test_what_may_be_a_secret_is_not_written(output):
    first = output(**{"--handler-arg key": ["pa55word", None]})
    text = Path(first.folder, "job.json").read_text()
    assert "--handler-arg key" in text
    assert "pa55word" not in text


def test_an_output_may_have_the_name_of_a_file_of_our_own(output, tmp_path):
    """What is joined does not replace the file that says which job the kept rows are of."""
    first = output("job.json")
    write(first, 0)
    (tmp_path / "job.json").mkdir()
    with pytest.raises(PublishError):
        publish(first)
    first.clean()
    (tmp_path / "job.json").rmdir()
    assert output("job.json").earlier_rows == 1


def test_a_folder_that_was_being_removed_is_nothing(output):
    first = output()
    write(first, 0)
    first.clean()
    os.remove(os.path.join(first.folder, "job.json"))
    second = output()
    assert second.earlier_rows == 0
    assert sorted(os.listdir(second.folder)) == ["job.json", "lock"]


def test_one_run_at_a_time(output, tmp_path, popen):
    """A lock ends with its process, however that ends."""
    first = output(prepared=False)
    arguments = [sys.executable, "-c", LOCKS, str(tmp_path / "p.jsonl")]
    other = popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "locked\n"
    with pytest.raises(ConfigurationError, match=rf"^another run \(process {other.pid}\) is at work in "):
        first.prepare()
    first.clean()
    assert os.path.exists(first.folder)
    other.kill()
    other.communicate()
    first.prepare()
    with pytest.raises(ConfigurationError, match=f"process {os.getpid()}"):
        output()


def test_a_folder_that_cannot_be_begun_is_not_left_behind(output, tmp_path):
    with full_disk(0), pytest.raises(ConfigurationError, match="cannot write"):
        output()
    assert os.listdir(tmp_path) == []


def test_a_link_leads_to_the_same_folder(output, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    linked = ResumableOutput(str(tmp_path / "link" / "p.jsonl"), None, {})
    assert os.path.basename(linked.folder) == os.path.basename(output().folder)


@pytest.mark.parametrize("paths", [("gs://bucket/p.jsonl", None), ("p.jsonl", "s3://bucket/q.jsonl")])
def test_remote_files_are_refused(paths):
    with pytest.raises(ConfigurationError, match=r"^--resume works in local folders only, and --"):
        ResumableOutput(*paths, {})

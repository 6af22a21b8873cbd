"""``headrace migrate``: what it prints, what it writes, and its exit codes."""

import sys

import pytest

OLD = "from apache_beam.ml.inference.base import RunInference\n"
NEW = "from headrace.beam import RunInference\n"
STAR = "from apache_beam.ml.inference.base import *\n"
NEEDS = "The code needs headrace wherever it runs."


def test_changes_are_shown(headrace, folder):
    folder.write("a.py", OLD)
    result = headrace("migrate", "a.py")
    assert result.code == 0
    assert result.out == f"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-{OLD}+{NEW}"
    assert result.err == f"1 file to change, 0 places left to do by hand, 0 notes. {NEEDS} --write changes the files.\n"
    assert (folder.path / "a.py").read_text() == OLD


def test_changes_are_written_once(headrace, folder):
    folder.write("a.py", OLD)
    folder.write("b/c.py", OLD)
    result = headrace("migrate", ".", "--write")
    assert (result.code, result.out) == (0, "changed a.py\nchanged b/c.py\n")
    assert result.err == f"2 files changed, 0 places left to do by hand, 0 notes. {NEEDS}\n"
    assert (folder.path / "b/c.py").read_text() == NEW
    assert folder.names() == ["a.py", "b/c.py"]
    again = headrace("migrate", ".", "--write")
    assert (again.code, again.out, again.err) == (0, "", "0 files changed, 0 places left to do by hand, 0 notes.\n")


def test_what_is_left_to_do_is_told_with_its_place(headrace, folder):
    folder.write("a.py", f"import os\n{STAR}")
    folder.write("b.py", f"{STAR}import os\n{STAR}")
    folder.write("c.py", "from apache_beam.ml.inference.utils import _convert_to_result\n")
    result = headrace("migrate", ".")
    assert (result.code, result.out) == (3, "")
    *by_hand, note, summary = result.err.splitlines()
    star = "by hand: import * from Beam's package stays: "
    assert [line.partition(star)[0] for line in by_hand] == ["a.py:2:1: ", "b.py:1:1: ", "b.py:3:1: "]
    assert note.startswith("c.py:1:44: note: utils._convert_to_result stays Beam's")
    assert summary == "0 files to change, 3 places left to do by hand, 1 note."


@pytest.mark.parametrize(
    ("text", "code", "out"),
    [(OLD, 1, "would change a.py\n"), (NEW, 0, ""), (STAR, 3, ""), (OLD + STAR, 3, "would change a.py\n")],
)
def test_check_says_whether_files_would_change(headrace, folder, text, code, out):
    folder.write("a.py", text)
    result = headrace("migrate", "a.py", "--check")
    assert (result.code, result.out) == (code, out)
    assert (folder.path / "a.py").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no file or folder 'nowhere'."),
        ([".", "--write", "--check"], "--check changes nothing; leave it or --write out."),
    ],
)
def test_wrong_arguments_are_refused(headrace, folder, arguments, message):
    result = headrace("migrate", *arguments)
    assert (result.code, result.out, result.error) == (2, "", message)


def test_file_that_cannot_be_written_does_not_stop_the_others(headrace, folder, monkeypatch):
    folder.write("a.py", OLD)
    folder.write("b.py", OLD)
    from headrace.migrate.files import MigratedFile

    write = MigratedFile.write

    def refuse(self):
        if self.path.name == "a.py":
            raise OSError("the disk is full")
        write(self)

    monkeypatch.setattr(MigratedFile, "write", refuse)
    result = headrace("migrate", ".", "--write")
    assert (result.code, result.out) == (1, "changed b.py\n")
    assert result.err.splitlines()[0] == "error: a.py cannot be written: the disk is full"


def test_missing_library_is_named_with_its_extra(headrace, folder, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("headrace.migrate", "libcst"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    result = headrace("migrate", ".")
    assert result.code == 2
    assert "libcst is not installed" in result.error
    assert "migrate" in result.error

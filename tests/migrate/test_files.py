"""Files and folders: what is read, what is written, and how."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from headrace.core.errors import ConfigurationError
from headrace.migrate.files import migrate_files

OLD = "from apache_beam.ml.inference.base import RunInference\n"
NEW = "from headrace.beam import RunInference\n"


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Writes a file in a folder, which is the current one."""
    monkeypatch.chdir(tmp_path)

    def write(name, content=OLD):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def changed(*paths):
    return {str(file.path): file for file in migrate_files(paths or ["."]) if file.is_changed}


def test_folders_are_read_but_for_what_is_not_ones_own(put):
    for name in ("a.py", "b/c.pyi", "b/d.py", "b/n.txt", ".git/e.py", "b/__pycache__/f.py", "env/g.py", "h.py/i.py"):
        put(name)
    put("env/pyvenv.cfg", "")
    assert sorted(changed()) == ["a.py", "b/c.pyi", "b/d.py", "h.py/i.py"]
    assert sorted(changed("b", "b/d.py", "./b/n.txt")) == ["b/c.pyi", "b/d.py", "b/n.txt"]


def test_path_that_is_not_there_is_an_error():
    with pytest.raises(ConfigurationError, match=r"there is no file or folder 'nowhere\.py'"):
        migrate_files(["nowhere.py"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OLD.replace("\n", "\r\n").encode(), NEW.replace("\n", "\r\n").encode()),
        (b"\xef\xbb\xbf" + OLD.encode(), b"\xef\xbb\xbf" + NEW.encode()),
        (f"# coding: latin-1\n{OLD}# é\n".encode("latin-1"), f"# coding: latin-1\n{NEW}# é\n".encode("latin-1")),
        (f"x = '''\r\f\x0b'''\n{OLD.rstrip()}".encode(), f"x = '''\r\f\x0b'''\n{NEW.rstrip()}".encode()),
    ],
    ids=["ends of lines", "byte order mark", "encoding", "odd characters"],
)
def test_all_else_stays_byte_by_byte(put, before, after):
    path = put("a.py", before)
    changed()["a.py"].write()
    assert path.read_bytes() == after
    assert changed() == {}


def test_writing_keeps_the_mode_and_leaves_nothing_beside(put):
    path = put("a.py")
    path.chmod(0o754)
    changed()["a.py"].write()
    assert stat.S_IMODE(path.stat().st_mode) == 0o754
    assert os.listdir() == ["a.py"]


def test_links_stay_links(put):
    path = put("real/a.py")
    Path("link.py").symlink_to(path)
    changed("link.py")["link.py"].write()
    assert Path("link.py").is_symlink()
    assert path.read_text() == NEW


def test_failed_write_leaves_the_file_and_nothing_beside(put, monkeypatch):
    path = put("a.py")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        changed()["a.py"].write()
    assert path.read_text() == OLD
    assert os.listdir() == ["a.py"]


@pytest.mark.parametrize("content", [b"# coding: klingon\n", b"x = '\xff'\n"])
def test_file_that_cannot_be_read_does_not_stop_the_others(put, content):
    put("a.py", content)
    put("b.py")
    broken, moved = migrate_files(["."])
    assert broken.findings[0].message.startswith("cannot be read: ")
    assert broken.findings[0].needs_person
    assert moved.new == NEW


@pytest.mark.parametrize("text", [OLD, OLD.rstrip(), f"x = 1\n{OLD}"])
def test_diff_is_a_patch(put, text):
    path = put("b/a.py", text)
    diff = changed()["b/a.py"].diff()
    subprocess.run(["git", "apply", "-"], input=diff.encode(), check=True)
    assert path.read_text() == text.replace(OLD.rstrip(), NEW.rstrip())

"""Files and folders: what is read, what is written, and how."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from headrace.core.errors import ConfigurationError
from headrace.migrate import names
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


def test_file_that_cannot_be_parsed_does_not_stop_the_others(put):
    put("a.py", f"{OLD}print 1\n")
    put("b.py")
    broken, moved = migrate_files(["."])
    assert not broken.is_changed
    assert "cannot be parsed" in broken.findings[0].message
    assert moved.new == NEW


@pytest.mark.parametrize("text", [OLD, OLD.rstrip(), f"x = 1\n{OLD}"])
def test_diff_is_a_patch(put, text):
    path = put("b/a.py", text)
    diff = changed()["b/a.py"].diff()
    subprocess.run(["git", "apply", "-"], input=diff.encode(), check=True)
    assert path.read_text() == text.replace(OLD.rstrip(), NEW.rstrip())


@pytest.mark.parametrize(("other", "count"), [("agent_development_kit", 1), ("sklearn_inference", 0)])
def test_comparing_classes_matters_if_a_handler_stays_in_any_file(put, other, count):
    put("a.py", f"{OLD}isinstance(x, RunInference)\n")
    put("b.py", f"from apache_beam.ml.inference import {other}\n")
    (first, *_) = migrate_files(["."])
    assert sum("isinstance" in one.message for one in first.findings) == count


def test_dependencies_are_those_of_the_code_below(put):
    put("one/requirements.txt", "apache-beam\n")
    put("one/src/a.py", "from apache_beam.ml.inference.onnx_inference import OnnxModelHandlerNumpy\n")
    put("two/requirements.txt", "apache-beam\n")
    put("three/requirements.txt", "apache-beam\n")
    put("three/b.py", OLD)
    found = {str(file.path): file.findings[0].message for file in migrate_files(["."]) if file.findings}
    assert found.keys() == {"one/requirements.txt", "three/requirements.txt"}
    assert "headrace[onnx]" in found["one/requirements.txt"]
    assert "headrace[" not in found["three/requirements.txt"]
    for file in changed().values():
        file.write()
    assert {str(file.path) for file in migrate_files(["."]) if file.findings} == found.keys()


ADDRESS = ", with the address that you install it from; the moved code imports it."
BEAM = "numpy\napache-beam[gcp]==2.77.0\n"


@pytest.mark.parametrize(
    "name", ["dev-requirements.in", "pyproject.toml", "setup.cfg", "Pipfile", "environment.yml", "Dockerfile.gpu"]
)
def test_lists_of_dependencies_lack_what_the_code_needs(put, name):
    put("src/a.py", "from apache_beam.ml.inference.onnx_inference import OnnxModelHandlerNumpy\n")
    put("src/b.py", "from apache_beam.ml.inference.sklearn_inference import SklearnModelHandlerNumpy\n")
    put(name, BEAM)
    (finding,) = next(file.findings for file in migrate_files(["."]) if str(file.path) == name)
    assert (finding.line, finding.needs_person) == (2, True)
    assert finding.message == f"lists apache-beam: add headrace[onnx,sklearn]{ADDRESS}"


@pytest.mark.parametrize(
    ("text", "extras", "message"),
    [
        (
            BEAM,
            set(),
            f"lists apache-beam: add headrace{ADDRESS}",
        ),
        (f"{BEAM}headrace\n", set(), None),
        (f"{BEAM}headrace[onnx, sklearn]>=0.1\n", {"sklearn"}, None),
        (f"{BEAM}headrace[onnx] @ git+https://host/headrace.git\n", {"onnx"}, None),
        (
            f"{BEAM}headrace[onnx]\n",
            {"onnx", "sklearn"},
            "lists headrace without extras that the moved code needs: headrace[sklearn].",
        ),
    ],
)
def test_dependencies_that_are_there_are_not_asked_for(text, extras, message):
    assert names.missing_requirement(text, extras) == message

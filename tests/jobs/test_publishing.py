"""Two files get to their places, both or neither, on file systems that fail at any call; nothing whole is deleted."""

import itertools
import os
import re
import shutil
from pathlib import Path

import pytest

from headrace.jobs.output import Output
from headrace.jobs.output_batches import lines_in
from headrace.jobs.publishing import Move, PublishError, put_in_place
from headrace.jobs.stored_rows import StoredOutput
from object_store import OBJECTS, ObjectStore

OLD, NEW = {"p": b"old predictions", "q": b"old letters"}, {"p": b"new predictions", "q": b"letters that are new"}


@pytest.fixture
def place(monkeypatch):
    """Old and new files in a folder; gives a function that moves the new ones and says what is where afterwards."""

    def move(case, moves="replaces", *, old=OLD, failing=(), denied="", removing=False):
        base = f"objects://case{case}/"
        OBJECTS.clear()
        OBJECTS.update({f"{base}{name}": content for name, content in old.items()})
        OBJECTS.update({f"{base}parts/{name}": content for name, content in NEW.items()})
        changes = {"moves": moves, "failing": frozenset(failing), "denied": denied, "calls": 0}
        for name, value in changes.items():
            monkeypatch.setattr(ObjectStore, name, value)
        error = None
        try:
            some = [
                Move(f"the {name}", f"{base}parts/{name}", f"{base}{name}", removing * name == "q") for name in "qp"
            ]
            put_in_place(sorted(some, key=lambda one: one.removes))
        except PublishError as caught:
            error = caught
        return {path.removeprefix(base): content for path, content in OBJECTS.items()}, error, base

    return move


WAYS = ["replaces", "refuses", "copies"]
EARLIER = [OLD, {}, {"p": OLD["p"]}, {"q": OLD["q"]}, {"p": NEW["p"], "q": NEW["q"]}]


@pytest.mark.parametrize("moves", WAYS)
@pytest.mark.parametrize(("old", "removing"), [*((old, False) for old in EARLIER), (OLD, True)])
def test_one_call_fails(place, moves, old, removing):
    """Whichever it is, before it does anything or after: both files are new, or both as they were and the new whole."""
    new = {"p": NEW["p"]} if removing else NEW
    files, error, _ = place("no failure", moves, old=old, removing=removing)
    assert (error, {name: files[name] for name in "pq" if name in files}) == (None, new)
    calls = ObjectStore.calls
    for number in itertools.chain(range(1, calls + 1), range(-calls, 0)):
        files, error, _ = place(number, moves, old=old, failing=[number], removing=removing)
        assert {name: files[name] for name in "pq" if name in files} == (new if error is None else old)
        assert error is None or {name: files[f"parts/{name}"] for name in "pq"} == NEW


@pytest.mark.parametrize("moves", WAYS)
@pytest.mark.parametrize("old", EARLIER[:-1], ids=lambda old: "+".join(old) or "none")
@pytest.mark.parametrize("denied", ["p", "q"])
def test_one_file_cannot_be_moved(place, moves, old, denied):
    files, error, base = place("", moves, old=old, denied=denied)
    assert isinstance(error, PublishError)
    assert {name: files[name] for name in "pq" if name in files} == old
    for name in "pq":
        assert f"Move {base}parts/{name} to {base}{name} (the {name}, whole)." in str(error)
        assert files[f"parts/{name}"] == NEW[name]
    assert "is kept as" not in str(error)


@pytest.mark.parametrize("moves", WAYS)
def test_calls_fail_until_the_end(place, moves):
    """Taking back fails, too: every file, old or new, is somewhere whole, and the message names where."""
    place("no failure", moves)
    calls = ObjectStore.calls
    for start, side in itertools.product(range(1, calls + 1), (1, -1)):
        files, error, base = place(f"{start}{side}", moves, failing=[side * n for n in range(start, 99)])
        if error is None:
            assert {name: files[name] for name in "pq"} == NEW
            continue
        assert {NEW["p"], NEW["q"]} <= set(files.values())
        replaced = {name for name in "pq" if files.get(name) == NEW[name]}
        assert {OLD[name] for name in "pq" if name not in replaced} <= set(files.values())
        for name in "pq":
            moved = re.search(rf"Move {base}(\S+) to {base}{name} \(the {name}, whole\)", str(error))
            assert files[moved[1] if moved else name] == NEW[name]
            if f"The earlier {base}{name} is kept as " in str(error):
                assert files[f"parts/{name}.earlier"] in (OLD[name], NEW[name])
            elif name not in replaced:
                assert files[name] == OLD[name]


def local_moves(folder, files, names):
    """Writes files; the moves of the new ones of these names."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [Move(name, str(folder / f"new {name}"), str(folder / name)) for name in names]


def test_local_files(tmp_path):
    """The second cannot be moved onto a folder: the first is taken back."""
    files = {"q": b"old", "new p": b"p", "new q": b"q"}
    moves = local_moves(tmp_path, files, "qp")
    (tmp_path / "p").mkdir()
    with pytest.raises(PublishError, match=f"Move {moves[1].source} to {moves[1].destination}"):
        put_in_place(moves)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == files
    (tmp_path / "p").rmdir()
    put_in_place(moves)
    assert [(tmp_path / name).read_bytes() for name in "pq"] == [b"p", b"q"]


def test_a_full_disk_without_hard_links_costs_no_earlier_file(tmp_path, monkeypatch):
    moves = local_moves(tmp_path, {"p": OLD["p"], "new p": NEW["p"]}, "p")

    def refuse(*paths):
        raise PermissionError("no hard links here")

    def copy_half(source, destination):
        (tmp_path / destination).write_bytes(OLD["p"][:3])
        raise OSError("no space left")

    monkeypatch.setattr(os, "link", refuse)
    with monkeypatch.context() as full:
        full.setattr(shutil, "copy2", copy_half)
        with pytest.raises(PublishError, match="no space left"):
            put_in_place(moves)
    assert (tmp_path / "p").read_bytes() == OLD["p"]
    put_in_place(moves)
    assert [(tmp_path / name).read_bytes() for name in ("p", "new p.earlier")] == [NEW["p"], OLD["p"]]


def test_what_another_run_left_replaces_nothing(tmp_path):
    """The second file was not touched yet when the first one could not be moved."""
    files = {"q": b"now", "new q": b"new", "new q.earlier": b"long ago", "new p": b"p"}
    moves = local_moves(tmp_path, files, "pq")
    (tmp_path / "p").mkdir()
    with pytest.raises(PublishError):
        put_in_place(moves)
    assert (tmp_path / "q").read_bytes() == b"now"


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_what_cannot_be_moved_stays_where_the_message_says(written, name):
    output = written(name, [[{"n": 0}], [{"n": 1}]], [[{"stage": "inference", "error_type": "E"}]])
    os.mkdir(output.path)
    with pytest.raises(PublishError) as caught:
        output.publish()
    output.clean()
    source = re.search(r"Move (\S+) to \S+ \(the predictions", str(caught.value))[1]
    os.rmdir(output.path)
    os.rename(source, output.path)
    assert Path(output.path).read_bytes()[:4] == (b"PAR1" if name.endswith("parquet") else b'{"n"')


def test_parts_that_cannot_be_joined_stay(written):
    output = written("a.parquet", [[{"n": 0}], [{"n": 1}]])
    os.mkdir(os.path.join(output.folder, "joined-a.parquet"))
    with pytest.raises(PublishError, match=f"The parts in {output.folder} have every row"):
        output.publish()
    output.clean()
    lines = [line for table in StoredOutput.find(output.folder).good.tables() for line in lines_in(table)]
    assert sorted(lines) == ['{"n": 0}', '{"n": 1}']


def test_what_is_left_over_and_cannot_be_removed_is_no_failure(monkeypatch, caplog):
    output = Output("objects://a/b.jsonl")
    output.prepare()
    OBJECTS[f"{output.folder}/part"] = b""
    output.published = True

    def refuse(self, paths):
        raise ConnectionError("out of reach")

    monkeypatch.setattr(ObjectStore, "delete", refuse)
    output.clean()
    assert f"cannot remove {output.folder}: out of reach" in caplog.text

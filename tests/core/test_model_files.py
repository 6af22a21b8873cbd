"""What a model's file says of itself is asked of all recognisers; what they need of the file they get.

Pickles and files of joblib are read without running any of their code, and nothing of them is imported.
"""

from __future__ import annotations

import collections
import importlib.metadata
import io
import os
import pickle
import subprocess
import sys
import zipfile

import joblib
import numpy
import pytest

from headrace.core import model_files
from headrace.core.errors import ConfigurationError
from headrace.core.model_files import Inert, KnownModel, ModelFile, PickledModel, recognise


def theirs(model):
    if model.suffix == ".mine":
        return KnownModel("mine", "a model of mine")
    if model.suffix == ".half":
        raise ConfigurationError("give the rest.")
    return None


def anything(model):
    return KnownModel("any", "a file")


def broken(model):
    raise RuntimeError("out of order")


@pytest.fixture
def installed(monkeypatch):
    def install(*names):
        entries = [importlib.metadata.EntryPoint(name, f"{__name__}:{name}", model_files.GROUP) for name in names]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)

    return install


@pytest.fixture
def file(tmp_path):
    def write(name, content=b"content"):
        (tmp_path / name).write_bytes(content)
        return ModelFile(str(tmp_path / name))

    return write


def test_the_recogniser_that_knows_a_file_decides(installed, file):
    installed("theirs")
    assert recognise(file("m.MINE")).handler == "mine"
    assert recognise(file("m.bin")) is None


def test_those_of_other_packages_come_before_headraces(installed, file, monkeypatch):
    installed("anything", "theirs")
    ours = importlib.metadata.EntryPoint("sklearn", "headrace.handlers.model_recognition:sklearn", model_files.GROUP)
    entries = importlib.metadata.entry_points(group=model_files.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [ours, *entries])
    assert recognise(file("m.pkl", pickle.dumps({}))).handler == "any"


def test_what_is_missing_is_said_unless_another_knows_more(installed, file):
    installed("theirs")
    with pytest.raises(ConfigurationError, match=r"^give the rest\.$"):
        recognise(file("m.half"))
    installed("theirs", "anything")
    assert recognise(file("m.half")).handler == "any"


def test_a_broken_recogniser_is_passed_over_and_named_if_nobody_knows_more(installed, file):
    installed("broken", "anything")
    assert recognise(file("m.bin")).handler == "any"
    installed("broken", "theirs")
    with pytest.raises(ConfigurationError, match=f"or {__name__}:broken is: RuntimeError: out of order"):
        recognise(file("m.bin"))
    with pytest.raises(ConfigurationError, match="give the rest"):
        recognise(file("m.half"))


def test_folders_and_archives_have_members(tmp_path):
    contents = {"config.json": '{"a": 1}', "damaged.json": "{", "list.json": "[1]"}
    folder = tmp_path / "folder"
    folder.mkdir()
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for name, content in contents.items():
            (folder / name).write_text(content)
            archive.writestr(name, content)
    model = ModelFile(f"{folder}/")
    assert (model.name, model.head, model.is_folder, model.pickled) == ("folder", b"", True, None)
    for one in (model, ModelFile(str(tmp_path / "model.zip"))):
        assert one.members == tuple(contents)
        assert [one.settings(name) for name in (*contents, "none.json")] == [{"a": 1}, {}, {}, {}]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04 no pickle", b"\x93NUMPY", b"\x00" * 5000])
def test_any_bytes_can_be_asked(file, content):
    model = file("m.bin", content)
    assert model.head == content[:4096]
    assert bytes(model.content) == content
    assert model.members == ()
    assert model.settings("a.json") == {}


def test_a_damaged_pickle_is_a_mistake(file):
    with pytest.raises(ConfigurationError, match="it cannot be read as a pickle: "):
        _ = file("m.pkl", pickle.dumps([1, 2, 3])[:-4]).pickled


class Estimator:
    def __init__(self):
        self.weights = numpy.arange(12.0).reshape(3, 4)
        self.flags = numpy.array([True, False])
        self.words = numpy.array(["ä", "bcd"])
        self.days = numpy.array(["2024-02-29"], "datetime64[D]")
        self.records = numpy.zeros(5, [("left", "i8"), ("gain", "f4")])
        self.none = numpy.zeros((0, 3))
        self.column_order = numpy.asfortranarray(numpy.ones((2, 3)))
        self.parts = collections.OrderedDict(a=[1, 2], b={"c": (3,)})
        self.names = numpy.array(["age", "Größe"], dtype=object)
        self.count = 2


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def pickled(model, **options):
    return io.BytesIO(pickle.dumps(model, **options))


def with_joblib(model, path, **options):
    joblib.dump(model, path, **options)
    return io.BytesIO(path.read_bytes())


def state_of(model):
    assert isinstance(model.content, Inert)
    assert model.content.kind.endswith("Estimator")
    return model.content.attribute("names").state[-1], model.content.attribute("count")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_any_protocol_keeps_its_state(protocol):
    model = PickledModel(pickled(Estimator(), protocol=protocol))
    assert state_of(model) == (["age", "Größe"], 2)
    assert not model.needs_joblib


@pytest.mark.parametrize("compress", [0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3), ("lzma", 3)])
def test_arrays_of_joblib_are_passed_over(tmp_path, compress):
    model = PickledModel(with_joblib(Estimator(), tmp_path / "model", compress=compress))
    assert state_of(model) == (["age", "Größe"], 2)
    assert model.needs_joblib


def test_nothing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    harmful = [Harmful(), numpy.ones(3)]
    for file in (pickled(harmful), with_joblib(harmful, tmp_path / "model")):
        assert PickledModel(file).content[0].kind.endswith(".system")
    assert not os.path.exists("harmed")


def test_nothing_is_imported(tmp_path):
    joblib.dump(Estimator(), tmp_path / "model")
    code = (
        "import sys; from headrace.core.model_files import PickledModel\n"
        f"print(PickledModel(open({str(tmp_path / 'model')!r}, 'rb')).content.kind)\n"
        "print('numpy' in sys.modules, 'joblib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[1] == "False False"


def test_a_damaged_pickle_is_an_error():
    whole = pickle.dumps(Estimator())
    for end in range(0, len(whole), 7):
        with pytest.raises(Exception, match=r"^"):
            PickledModel(io.BytesIO(whole[:end]))

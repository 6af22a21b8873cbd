"""What a pickle takes along, by name or by value, and what it refuses."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys

import cloudpickle
import numpy
import pytest

from headrace.ipc.codec import decode, encode
from headrace.ipc.serialization import all_reducers, pickled


def round_trip(rows, **options):
    message = encode(None, rows, **options)
    content = bytearray(message.nbytes)
    message.write(memoryview(content))
    return decode(memoryview(content), own=True).rows


def test_a_local_class_remains_itself_where_it_comes_from():
    class Local:
        def __init__(self, value):
            self.value = value

        def read(self):
            return self.value

    read = Local.read
    (arrived,) = round_trip([Local(numpy.arange(2000))])
    assert type(arrived) is Local
    assert Local.read is read
    assert arrived.read()[-1] == 1999


AT_HOME = """
import dataclasses, enum, subprocess, sys, typing
from headrace.ipc.codec import decode, encode

FACTOR = 2

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Record:
    name: str
    def scaled(self):
        return self.name * FACTOR

class Pair(typing.NamedTuple):
    left: object
    right: object

def doubled(number):
    return number * FACTOR

large = [bytes(10**6), "text" * 10**5, ["short"] * 10**5]
rows = [(large, Record("a"), Pair(1, "x"), Colour.RED), (large, Record("b"), Pair(2, "y"), Colour.RED)]
scaled = Record.scaled
message = encode(doubled, rows)
content = memoryview(bytearray(message.nbytes))
message.write(content)
done = subprocess.run([sys.executable, "-c", sys.argv[1]], input=content, stdout=subprocess.PIPE, check=True)
head, arrived, _ = decode(memoryview(bytearray(done.stdout)), known=message.columns, own=True)
assert head == 42, head
FACTOR = 3
for (theirs, (record, pair, colour)), mine in zip(arrived, rows):
    assert type(theirs) is Record and theirs == mine[1]
    assert type(record) is Record and record == Record("made")
    assert record.scaled() == "mademademade" and Record.scaled is scaled
    assert type(pair) is Pair and pair == (3, 4)
    assert colour is Colour.RED
print("at home")
"""

AWAY = """
import sys
from headrace.ipc.codec import decode, encode

head, rows, columns = decode(memoryview(bytearray(sys.stdin.buffer.read())), own=False)
record, pair, colour = map(type, rows[0][1:])
assert rows[1][1].scaled() == "bb"
answer = [(row[1], (record("made"), pair(3, 4), colour.RED)) for row in rows]
message = encode(head(21), answer, known=columns)
content = memoryview(bytearray(message.nbytes))
message.write(content)
sys.stdout.buffer.write(content)
"""


def test_classes_of_a_script_unpickle_elsewhere_and_are_themselves_at_home():
    command = [sys.executable, "-c", AT_HOME, AWAY]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "at home\n"


WITHOUT_FRAMEWORKS = """
import sys
from headrace.ipc.codec import decode, encode
message = encode(None, [("a", {"b": 1.5})])
content = memoryview(bytearray(message.nbytes))
message.write(content)
decode(content, own=True)
print(sorted({"numpy", "torch"} & set(sys.modules)))
"""


def test_frameworks_are_loaded_for_their_own_arrays_only():
    command = [sys.executable, "-c", WITHOUT_FRAMEWORKS]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_classes_of_modules_registered_by_value_travel_by_value(tmp_path, monkeypatch):
    package = tmp_path / "only_here"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "shapes.py").write_text("class Circle:\n    radius = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    shapes = importlib.import_module("only_here.shapes")
    by_name = b"".join(pickled([shapes.Circle()], all_reducers()).pieces)
    cloudpickle.register_pickle_by_value(sys.modules["only_here"])
    try:
        by_value = b"".join(pickled([shapes.Circle()], all_reducers()).pieces)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules["only_here"])
        del sys.modules["only_here"], sys.modules["only_here.shapes"]
    monkeypatch.undo()
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(by_name)
    assert pickle.loads(by_value)[0].radius == 3


def test_a_text_that_names_main_arrives():
    assert round_trip(["if __name__ == '__main__':"]) == ["if __name__ == '__main__':"]

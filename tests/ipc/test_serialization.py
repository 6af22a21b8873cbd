"""What a pickle takes along, by name or by value, and what it refuses."""

from __future__ import annotations

import importlib
import pickle
import sys

import cloudpickle
import numpy
import pytest

from headrace.core.errors import ConfigurationError
from headrace.core.handler import ModelHandler
from headrace.ipc.codec import decode, encode
from headrace.ipc.serialization import all_reducers, pickle_or_explain, pickled


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


ROWS = (row for row in ())


class Handler(ModelHandler):
    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


class Careful(Handler):
    """Its lock stays at home, its rows do not."""

    def __getstate__(self):
        return {"rows": self.rows}


class Refusing(Handler):
    def __getstate__(self):
        raise LookupError("not now")


CULPRITS = {
    "attribute": (Handler(rows=ROWS), "Handler.rows, of type generator,"),
    "within": (Handler(a=1, b=[{"k": ROWS}]), "Handler.b, of type list,"),
    "state": (Careful(rows=ROWS, more=ROWS), "Handler.rows, of type generator,"),
    "state refused": (Refusing(), "does not pickle (LookupError: not now)"),
    "function": (Handler().with_preprocess_fn(lambda x: ROWS), "does not pickle (TypeError: "),
    "class": (type("Local", (Handler,), {"__module__": "__main__", "shared": ROWS})(), "Handler, of type __main__."),
    "no object": (lambda: ROWS, "Handler, of type function,"),
}


@pytest.mark.parametrize(("value", "culprit"), CULPRITS.values(), ids=CULPRITS)
def test_part_that_does_not_pickle_is_named(value, culprit):
    with pytest.raises(ConfigurationError) as caught:
        pickle_or_explain(value, "Handler")
    assert str(caught.value).startswith("Handler cannot go to the process")
    assert culprit in str(caught.value)
    assert "in load_model" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_culprit_is_looked_for_in_the_handler():
    handler = Handler(client=ROWS)
    with pytest.raises(ConfigurationError, match=r"live: Handler\.client,"):
        pickle_or_explain(("private", handler), "Handler", part=handler)

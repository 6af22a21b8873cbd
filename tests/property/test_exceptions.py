"""Exceptions of any content arrive with their message, even in a process that lacks their class."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ipc.exceptions import RemoteError, stand_ins
from toys import through_pickle

LOCK = threading.Lock()


def fail(*args, **kwargs):
    raise ZeroDivisionError


def two_arguments(self, row, reason):
    self.row = row
    self.reason = reason


def no_arguments(self):
    self.row = 1


def locked(self):
    return type(self), (LOCK,)


METHODS = {
    "__init__": [two_arguments, no_arguments],
    "__reduce__": [fail, lambda self: (ValueError, ()), lambda self: "nonsense", locked],
    "__getstate__": [fail],
    "__setstate__": [fail],
    "__setattr__": [fail],
    "__eq__": [fail],
    "__bool__": [fail],
    "__str__": [fail, lambda self: f"row {self.row}", lambda self: str(vars(self)), lambda self: str(self.args[0])],
    "__repr__": [fail, lambda self: "<error>"],
    "shared": [1, LOCK],
}
BASES = [Exception, ValueError, KeyError, OSError, ImportError, SystemExit, StopIteration, SyntaxError, BaseException]
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(LOCK)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def errors(draw, inner=st.nothing()):
    methods = draw(st.fixed_dictionaries({}, optional={name: st.sampled_from(some) for name, some in METHODS.items()}))
    slots = {"__slots__": ("code",)} if draw(st.booleans()) else {}
    base = draw(st.sampled_from(BASES))
    cls = type("Odd", (type("Base", (base,), {}), *draw(st.sampled_from([(), (LookupError,)]))), {**methods, **slots})
    error = cls.__new__(cls)
    error.__dict__.update(draw(st.dictionaries(st.sampled_from(["row", "lock", "cause"]), VALUES | inner)))
    vars(BaseException)["args"].__set__(error, tuple(draw(st.lists(VALUES | inner, max_size=3))))
    if slots and draw(st.booleans()):
        cls.code.__set__(error, draw(VALUES))
    return error


def text(render, error):
    try:
        return render(error)
    except Exception:
        return None


@pytest.mark.large
@settings(max_examples=100, deadline=None)
@given(st.lists(errors() | errors(inner=errors()), min_size=1, max_size=3))
def test_every_exception_arrives_with_its_message(sent):
    for error, copy in zip(sent, through_pickle(sent, stand_ins(sent)), strict=True):
        said = text(str, error)
        if type(copy) is RemoteError:
            assert str(copy).endswith(f": {said}")
        else:
            assert type(copy) is type(error)
            assert said is None or text(str, copy) is not None
        for name, value in vars(error).items():
            if not isinstance(value, BaseException) and "_thread.lock" not in repr(value):
                assert repr(vars(copy)[name]) == repr(value)


OWNER = """
import pickle, subprocess, sys
from headrace.core.handler import ModelHandler
from headrace.ipc.exceptions import with_traceback_of
from headrace.ipc.serialization import pickle_or_explain

class Refused(Exception):
    def __init__(self, row, why):
        super().__init__(f"row {row}: {why}")
        self.row = row

class Divides(ModelHandler):
    def run_inference(self, batch, model, inference_args=None):
        raise Refused(batch[0], "too odd")

handler = Divides().with_preprocess_fn(lambda x: x + OFFSET)
OFFSET = 40
pickled = pickle_or_explain(handler, "Divides")
host = subprocess.run([sys.executable, "-c", sys.argv[1]], input=pickled, stdout=subprocess.PIPE)
refused, local, locked, lines = pickle.loads(host.stdout)
assert type(refused) is Refused and refused.row == 42, type(refused).__mro__
print(repr(local), local.row, isinstance(local, LookupError), type(local).__module__)
print(type(locked).__name__, locked.row, locked)
raise with_traceback_of(refused, lines)
"""
HOST = """
import collections, pickle, sys, threading, traceback
import cloudpickle
from headrace.ipc.exceptions import stand_ins

class Local(LookupError):
    def __init__(self, row, why):
        super().__init__(why)
        self.row = row

class Locked(Local):
    lock = threading.Lock()

handler = pickle.load(sys.stdin.buffer)
(preprocess,) = handler.get_preprocess_fns()
try:
    handler.run_inference([preprocess(2)], None)
except Exception as error:
    errors, lines = [error, Local(1, "here"), Locked(2, "there")], traceback.format_exception(error)

class Pickler(cloudpickle.Pickler):
    dispatch_table = collections.ChainMap(stand_ins(errors), cloudpickle.Pickler.dispatch_table)

Pickler(sys.stdout.buffer, 5).dump([*errors, lines])
"""


def test_classes_that_only_one_of_two_processes_has_arrive_by_name(tmp_path):
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    done = subprocess.run([sys.executable, script, HOST], capture_output=True, text=True, check=False)
    assert done.stdout == "Local('here') 1 True __main__\nRemoteError 2 __main__.Locked: there\n", done.stderr
    assert done.stderr.count("Refused: row 42: too odd") == 2
    assert 'raise Refused(batch[0], "too odd")' in done.stderr.partition("direct cause")[0]

"""Whatever is raised arrives in another process, and says what it said."""

from __future__ import annotations

import dataclasses
import pathlib
import pickle
import sys
import threading
import traceback

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ipc.serialization import HostTraceback, RemoteError, exception_reducers, with_traceback_of
from toys import through_pickle, with_attributes

LOCK = threading.Lock()


class Classic(Exception):
    def __init__(self, row, reason):
        super().__init__(f"row {row}: {reason}")
        self.row, self.reason = row, reason


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    row: int
    reason: str = "cold"


class Unreadable(OSError):
    def __init__(self, path):
        super().__init__(5, "cannot read", path)
        self.path = path


class Undecodable(UnicodeDecodeError):
    def __init__(self, content):
        super().__init__("utf-8", content, 1, 2, "is odd")


def raised(function, *args):
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        function(*args)
    return caught.value


FINE = {
    "built in": ValueError("a", 1),
    "array": ValueError(np.arange(5.0), "and", [np.zeros((2, 2))]),
    "decode": raised(b"a\xff".decode),
    "file": raised(pathlib.Path("no such file").read_bytes),
    "attributes": with_attributes(ValueError("a"), row=1),
    "class by value": type("Local", (Exception,), {"__module__": "nowhere"})("a", 1),
}


def arrived(error):
    """An error on the other side of a message that is pickled as messages are."""
    return through_pickle(error, exception_reducers([error]))


@pytest.mark.parametrize("error", FINE.values(), ids=FINE)
def test_those_that_arrive_on_their_own_are_left_alone(error):
    assert exception_reducers([error]) == {}
    assert type(arrived(error)) is type(error)


def test_a_stand_in_keeps_what_pickles():
    classic = arrived(Classic(1, "odd"))
    assert (classic.row, classic.reason, classic.args) == (1, "odd", ("row 1: odd",))
    assert vars(arrived(with_attributes(ValueError("a"), lock=LOCK, row=1))) == {"row": 1}
    assert arrived(ValueError("a", LOCK)).args == ("a", repr(LOCK))
    unreadable = arrived(Unreadable("/p"))
    assert (unreadable.errno, unreadable.strerror, unreadable.filename) == (5, "cannot read", "/p")
    undecodable = arrived(Undecodable(b"abc"))
    assert (undecodable.object, undecodable.start, undecodable.reason) == (b"abc", 1, "is odd")
    assert arrived(with_attributes(SystemExit(3), lock=LOCK)).code == 3


def test_a_class_that_does_not_pickle_is_named():
    class Local(Classic, LookupError):
        held = LOCK

    copy = arrived(Local(3, "because"))
    assert type(copy) is RemoteError
    assert str(copy) == f"{__name__}.{Local.__qualname__}: row 3: because"
    assert (copy.row, copy.reason) == (3, "because")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no groups")
def test_members_of_a_group_arrive():
    inner = ExceptionGroup("b", [Classic(1, "odd"), ValueError(LOCK)])  # noqa: F821 - not in 3.10
    copy = arrived(ExceptionGroup("a", [inner, LookupError("c")]))  # noqa: F821 - not in 3.10
    assert str(copy) == "a (2 sub-exceptions)"
    found = [type(one) for one in (*copy.exceptions[0].exceptions, copy.exceptions[1])]
    assert found == [Classic, ValueError, LookupError]
    assert copy.exceptions[0].exceptions[0].row == 1


def test_the_traceback_in_the_other_process_is_shown_as_the_cause():
    lines = traceback.format_exception(raised(int, "x"))
    with pytest.raises(Frozen) as caught:
        raise with_traceback_of(Frozen(1), lines)
    shown = "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value.__cause__, HostTraceback)
    assert "".join(lines) in str(caught.value.__cause__)
    assert shown.index("invalid literal for int()") < shown.index("the direct cause") < shown.index("Frozen")
    assert str(pickle.loads(pickle.dumps(caught.value.__cause__))) == str(caught.value.__cause__)


# Exceptions of any content.


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
@settings(max_examples=100)
@given(st.lists(errors() | errors(inner=errors()), min_size=1, max_size=3))
def test_every_exception_arrives_with_its_message(sent):
    for error, copy in zip(sent, through_pickle(sent, exception_reducers(sent)), strict=True):
        said = text(str, error)
        if type(copy) is RemoteError:
            assert str(copy).endswith(f": {said}")
        else:
            assert type(copy) is type(error)
            assert said is None or text(str, copy) is not None
        for name, value in vars(error).items():
            if not isinstance(value, BaseException) and "_thread.lock" not in repr(value):
                assert repr(vars(copy)[name]) == repr(value)

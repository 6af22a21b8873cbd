"""Whatever is raised arrives in another process, and says what it said."""

from __future__ import annotations

import builtins
import dataclasses
import gc
import pathlib
import pickle
import sys
import threading
import traceback
import weakref

import numpy as np
import pytest

from headrace.ipc.exceptions import HostTraceback, stand_ins, with_traceback_of
from large import torch
from toys import through_pickle, with_attributes

LOCK = threading.Lock()


class Careful:
    """Its lock stays at home."""

    def __init__(self, client):
        self.lock, self.client = LOCK, client

    def __getstate__(self):
        return {"client": self.client}


def a_generator():
    yield


class Classic(Exception):
    def __init__(self, row, reason):
        super().__init__(f"row {row}: {reason}")
        self.row, self.reason = row, reason


class Twice(ValueError):
    def __init__(self, seconds):
        super().__init__(seconds * 2)


class Coded(Exception):
    __slots__ = ("code",)

    def __init__(self, *args):
        super().__init__(*args)
        self.code = 0


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    row: int
    reason: str = "cold"


class Made(Exception):
    def __new__(cls, row, reason):
        return super().__new__(cls, "made")

    def __init__(self, row, reason):
        self.row = row


class Problem(Exception):
    pass


class Unreadable(Problem, OSError):
    def __init__(self, path):
        super().__init__(5, "cannot read", path)
        self.path = path


class Undecodable(UnicodeDecodeError):
    def __init__(self, content):
        super().__init__("utf-8", content, 1, 2, "is odd")


class Shown(Exception):
    def __str__(self):
        return f"{self.args} {vars(self)}"


class Forgetful(Shown):
    def __reduce__(self):
        return type(self), self.args


def raised(function, *args):
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        function(*args)
    return caught.value


ITSELF = ValueError("a")
FINE = {
    "built in": ValueError("a", 1),
    "no arguments": KeyError(),
    "not a number": ValueError(float("nan")),
    "array": ValueError(np.arange(5.0), "and", [np.zeros((2, 2))]),
    "object": ValueError(Careful(1)),
    "decode": raised(b"a\xff".decode),
    "encode": raised("\ud800".encode),
    "file": raised(pathlib.Path("no such file").read_bytes),
    "key": raised({}.__getitem__, "k"),
    "exit": raised(sys.exit, 3),
    "attribute": raised(getattr, 1, "missing"),
    "import": raised(__import__, "no_such_module"),
    "syntax": raised(compile, "1 +", "f", "exec"),
    "array memory": raised(np.zeros, 10**15),
    "attributes": with_attributes(ValueError("a"), row=1),
    "class by value": type("Local", (Exception,), {"__module__": "nowhere"})("a", 1),
    "address": with_attributes(Shown("a"), careful=Careful(1)),
    "itself": with_attributes(ITSELF, itself=ITSELF),
}
SAME_CLASS = {
    "other arguments": Classic(1, "odd"),
    "other value": Twice(1.5),
    "slots": with_attributes(Coded("a"), code=5),
    "frozen": Frozen(1),
    "new": Made(1, "a"),
    "os": Unreadable("/p"),
    "unicode": Undecodable(b"abc"),
    "exit": with_attributes(SystemExit(3), lock=LOCK),
    "own exceptions": with_attributes(Classic(1, "odd"), exceptions=["of", "mine"]),
    "forgetful": with_attributes(Forgetful("a"), row=1),
    "lock": ValueError("a", LOCK),
    "only a lock": KeyError(LOCK),
    "locked attribute": with_attributes(ValueError("a"), lock=LOCK, row=1),
    "generator": ValueError(a_generator()),
    "within": ValueError("a", [Classic(1, LOCK)]),
    "array": Classic(np.arange(3), "odd"),
}
if torch:
    TENSOR = torch.zeros(2, requires_grad=True) * 2  # reads otherwise once it has arrived
    FINE["tensor"] = RuntimeError(torch.ones(3), [TENSOR])
    SAME_CLASS["tensor"] = Classic(np.arange(3), torch.ones(2))
if Group := getattr(builtins, "ExceptionGroup", None):  # Python 3.11
    FINE["group"] = Group("g", [ValueError("a"), OSError(2, "b")])
    SAME_CLASS["group"] = Group("g", [Classic(1, "odd"), Group("h", [KeyError(LOCK), Frozen(2)])])
    SAME_CLASS["locked group"] = with_attributes(Group("g", [ValueError("a")]), lock=LOCK)


def arrived(message, reducers=None):
    """An error, or several, on the other side of a message that is pickled as messages are."""
    return through_pickle(message, stand_ins([message]) if reducers is None else reducers)


@pytest.mark.parametrize("error", FINE.values(), ids=FINE)
def test_those_that_arrive_on_their_own_are_left_alone(error):
    assert stand_ins([error]) == {}
    assert type(arrived(error)) is type(error)


@pytest.mark.parametrize("error", SAME_CLASS.values(), ids=SAME_CLASS)
def test_a_stand_in_is_of_the_same_class_and_says_the_same(error):
    copy = arrived(error)
    assert type(error) in stand_ins([error]) or isinstance(error.args[1], list)
    assert copy is not error
    assert type(copy) is type(error)
    assert (str(copy), repr(copy)) == (str(error), repr(error))
    assert traceback.format_exception_only(type(copy), copy) == traceback.format_exception_only(type(error), error)


def test_a_stand_in_keeps_what_pickles():
    classic = arrived(Classic(1, "odd"))
    assert (classic.row, classic.reason, classic.args) == (1, "odd", ("row 1: odd",))
    assert arrived(SAME_CLASS["slots"]).code == 5
    assert vars(arrived(SAME_CLASS["locked attribute"])) == {"row": 1}
    assert arrived(SAME_CLASS["lock"]).args == ("a", repr(LOCK))
    unreadable = arrived(Unreadable("/p"))
    assert (unreadable.errno, unreadable.strerror, unreadable.filename) == (5, "cannot read", "/p")
    undecodable = arrived(Undecodable(b"abc"))
    assert (undecodable.object, undecodable.start, undecodable.reason) == (b"abc", 1, "is odd")
    assert arrived(SAME_CLASS["exit"]).code == 3
    assert arrived(Classic(np.arange(3), "odd")).row.tolist() == [0, 1, 2]


@pytest.mark.large
def test_a_tensor_that_reads_otherwise_is_no_reason_for_another_class():
    assert type(arrived(ValueError(TENSOR, LOCK))) is ValueError


class Responsible(Classic):
    def __str__(self):
        return f"locked: {self.lock.locked()}"


class Speechless(Classic):
    def __str__(self):
        raise ZeroDivisionError

    __repr__ = __str__


@pytest.mark.parametrize("error", [Responsible(1, "odd"), Shown(1)], ids=["fails", "lies"])
def test_a_class_whose_text_would_change_gets_a_subclass_with_the_text(error):
    copy = arrived(with_attributes(error, lock=LOCK, kept=1))
    assert isinstance(copy, type(error))
    assert (copy.kept, str(copy), repr(copy)) == (1, str(error), repr(error))
    assert traceback.format_exception_only(type(copy), copy) == traceback.format_exception_only(type(error), error)


def test_a_class_without_words_gets_some():
    copy = arrived(Speechless(1, "odd"))
    assert isinstance(copy, Speechless)
    assert (str(copy), repr(copy)) == ("Speechless(...)", "Speechless(...)")


def test_a_class_that_does_not_pickle_is_replaced_by_its_nearest_base():
    class Local(Classic, LookupError):
        held = LOCK

        def __str__(self):
            return f"local: {self.reason}"

    copy = arrived(Local(3, "because"))
    assert isinstance(copy, Classic)
    assert not isinstance(copy, Local)
    assert (copy.row, str(copy), repr(copy)) == (3, "local: because", "Local('row 3: because')")
    assert type(copy).__qualname__ == Local.__qualname__


def test_a_replaced_class_can_be_made_again_from_a_text():
    """As Beam does to add the name of a step."""

    class Local(ValueError):
        held = LOCK

        def __str__(self):
            return "local"

    copy = arrived(Local("a"))
    again = type(copy)(f"{copy.args[0]} [while running 'a step']")
    assert (str(copy), str(again)) == ("local", "a [while running 'a step']")
    assert repr(again) == """Local("a [while running 'a step']")"""


def test_exceptions_that_hold_themselves_and_each_other():
    one, other, third = ValueError(), LookupError(), Classic(1, "odd")
    one.args, other.args, third.itself = (one,), (third, other), [third, other]
    assert isinstance(str(arrived(one)), str)  # that of the original ends in a RecursionError
    assert isinstance(arrived(other), LookupError)
    assert [type(part) for part in (arrived(one), arrived(third))] == [ValueError, Classic]


def test_other_errors_of_the_same_class_are_unchanged():
    errors = [ValueError(LOCK), with_attributes(ValueError("a"), row=1), Classic(2, LOCK), OSError(2, "b")]
    copies = arrived(errors, stand_ins([errors[0], Classic(1, "odd")]))  # the last two it has not seen
    assert [type(copy) for copy in copies] == [type(error) for error in errors]
    assert (vars(copies[1]), vars(copies[2])) == ({"row": 1}, {"row": 2})


def test_a_class_by_value_is_not_changed_by_the_trial():
    cls = type("Local", (Classic,), {"__module__": "nowhere", "tell": lambda self: 1})
    tell = vars(cls)["tell"]
    assert cls in stand_ins([cls(1, cls)])
    assert vars(cls)["tell"] is tell


def test_no_error_is_kept_longer_than_its_message():
    error = Classic(1, LOCK)
    gone, reducers = weakref.ref(error), stand_ins([error])
    assert arrived(error, reducers).row == 1
    gc.disable()  # what it refers to may be the memory of a request
    try:
        del error, reducers
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.large
def test_a_trial_leaves_no_tensor_behind():
    """torch's own unpickling keeps a sparse one."""
    error = ValueError(torch.eye(3).to_sparse())
    before = count_sparse()
    stand_ins([error])
    assert count_sparse() == before


def count_sparse():
    gc.collect()
    return sum(type(one) is torch.Tensor and one.is_sparse for one in gc.get_objects())


def test_the_traceback_in_the_other_process_is_shown_as_the_cause():
    lines = traceback.format_exception(raised(int, "x"))
    with pytest.raises(Frozen) as caught:
        raise with_traceback_of(Frozen(1), lines)
    shown = "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value.__cause__, HostTraceback)
    assert "".join(lines) in str(caught.value.__cause__)
    assert shown.index("invalid literal for int()") < shown.index("the direct cause") < shown.index("Frozen")
    assert str(pickle.loads(pickle.dumps(caught.value.__cause__))) == str(caught.value.__cause__)

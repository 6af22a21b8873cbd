"""Equal digests mean equal content, in every process."""

from __future__ import annotations

import datetime
import decimal
import functools
import re
import subprocess
import sys
import threading
import uuid
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import FunctionType, SimpleNamespace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.fingerprint import fingerprint

PROMPT = "Summarise: "


@dataclass
class Point:
    x: float
    y: float = 0.0


class Asks:
    limit = 5

    def ask(self, text):
        return PROMPT + text[: self.limit]


def adds(number):
    return lambda other: other + number


DISTINCT = [
    *(None, True, False, 0, 1, 1.0, -0.0, 0.0, 1j, "1", b"1", "", b"", [], (), {}, set(), frozenset()),
    *([1], (1,), {1}, frozenset([1]), {1: 1}, {1: None}, [[1], 2], [[1, 2]], ["a", "bc"], ["ab", "c"], [1, [2]]),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": {"b": 1}}, {"a": {}, "b": 1}),
    *(numpy.arange(3), numpy.arange(3.0), numpy.arange(6).reshape(2, 3), numpy.arange(6), numpy.float32(1)),
    *(Point(1), Point(1, 2), Point, Asks, Asks(), Asks.ask, Asks().ask, SimpleNamespace(x=1), SimpleNamespace(y=1)),
    *(datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2), decimal.Decimal(1), uuid.UUID(int=1)),
    *(re.compile("a"), re.compile("a", re.IGNORECASE), PurePosixPath("a"), range(3), functools.partial(print, 1)),
    *(len, max, adds(1), adds(2), lambda: 1, lambda: 2, lambda a=1: a, lambda a=2: a, re, datetime),
]


def test_different_values_have_different_digests():
    digests = [fingerprint(value) for value in DISTINCT]
    assert len(set(digests)) == len(DISTINCT)
    assert {len(digest) for digest in digests} == {32}


def test_copies_have_the_same_digest():
    assert fingerprint([Point(1.0), {"a": numpy.arange(3)}]) == fingerprint([Point(1.0), {"a": numpy.arange(3)}])
    assert fingerprint(adds(1)) == fingerprint(adds(1))
    text = "some text"
    assert fingerprint([text, text]) == fingerprint([text, "".join(["some", " text"])])


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda part: st.lists(part) | st.tuples(part, part) | st.dictionaries(st.text(), part),
)


def same(one, other):
    """Equal, of the same types, in the same order."""
    return repr(one) == repr(other)


@given(PLAIN, PLAIN)
def test_plain_values_have_the_same_digest_if_they_are_the_same(one, other):
    assert (fingerprint(one) == fingerprint(other)) is same(one, other)


OF_SETS = """
from headrace.core.fingerprint import fingerprint
print(fingerprint([{str(n) for n in range(50)}, {"a": frozenset("abc")}, "é\\udc80", 2**100]).hex())
"""


def test_digests_are_the_same_in_every_process(monkeypatch):
    found = set()
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        found.add(subprocess.run([sys.executable, "-c", OF_SETS], capture_output=True, check=True, text=True).stdout)
    assert len(found) == 1


def edited(function, **changed):
    """A function of the same name with other globals."""
    return FunctionType(function.__code__, {**function.__globals__, **changed}, function.__name__, closure=None)


def test_plain_values_that_a_function_uses_count():
    before = fingerprint(Asks.ask)
    assert fingerprint(edited(Asks.ask, PROMPT="Translate: ")) != before
    assert fingerprint(edited(Asks.ask, NOT_USED=1)) == before


def test_code_of_a_class_counts(monkeypatch):
    before = fingerprint(Asks)
    monkeypatch.setattr(Asks, "limit", 6)
    other = fingerprint(Asks)
    monkeypatch.setattr(Asks, "ask", lambda self, text: text)
    assert len({before, other, fingerprint(Asks)}) == 3


def test_values_without_content_are_refused():
    within_itself = []
    within_itself.append(within_itself)
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (threading.Lock(), (part for part in "ab"), [threading.Lock()], within_itself, deep):
        with pytest.raises(TypeError, match=r"pickle|contains itself|nested"):
            fingerprint(value)

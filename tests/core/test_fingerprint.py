"""Equal digests mean equal content, in every process; what decides a handler's predictions is in its key."""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import os
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

from headrace import ConfigurationError, ModelHandler, RemoteModelHandler
from headrace.core.fingerprint import default_cache_key, fingerprint

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
    assert fingerprint(["some text", "some text"]) == fingerprint(["some text", "".join(["some", " text"])])
    assert len(set(digests)) == len(DISTINCT)
    assert {len(digest) for digest in digests} == {32}


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda part: st.lists(part) | st.tuples(part, part) | st.dictionaries(st.text(), part),
)


def same(one, other):
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


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Marks(enum.Flag):
    BOLD = 1
    ITALIC = 2


def counted(number):
    return number and TOOLS["again"](number - 1)


def again(number):
    return TOOLS["counted"](number)


TOOLS = {"counted": counted, "again": again}


def deeper(levels, value):
    return deeper(levels - 1, value) if levels else fingerprint(value)


@pytest.mark.parametrize("value", [Colour.RED, [Point(Colour.BLUE)], counted, {counted, again}])
def test_code_that_refers_to_itself_has_a_digest_at_any_depth(value):
    assert deeper(0, value) == deeper(1, value) == deeper(50, value)
    assert fingerprint(Colour.RED) != fingerprint(Colour.BLUE)


def test_use_of_a_flag_changes_no_digest():
    before = fingerprint(Marks.BOLD)
    assert fingerprint(Marks.BOLD | Marks.ITALIC) != before
    assert fingerprint(Marks.BOLD) == before


def test_code_of_the_main_module_counts_in_workers_too(monkeypatch):
    worker = SimpleNamespace(__file__=pytest.__file__)  # an installed program, which started the worker
    monkeypatch.setitem(sys.modules, "__main__", worker)
    digests = set()
    for function in (lambda: 1, lambda: 2):
        function.__module__ = "__main__"
        digests.add(fingerprint(function))
    assert len(digests) == 2


def test_what_an_installed_function_was_made_for_counts():
    made = [adds(1), adds(2), adds(threading.Lock())]
    for function in made:
        function.__module__ = "headrace"
    assert len({fingerprint(function) for function in made}) == 3


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


class Remote(RemoteModelHandler):
    def __init__(self, model="m", url="u", api_key="k", temperature=0.0, **options):
        super().__init__(**options)
        self.model = model
        self.url = url
        self.api_key = api_key
        self._auth_token = api_key
        self.temperature = temperature

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        return batch


class Local(ModelHandler):
    def __init__(self, model_uri, **options):
        super().__init__(**options)
        self.model_uri = model_uri


def key(handler):
    return fingerprint(default_cache_key(handler))


class Others(Remote):
    pass


def test_class_model_endpoint_and_parameters_decide_and_secrets_and_ways_to_ask_do_not():
    for other in (Remote("n"), Remote(url="v"), Remote(temperature=1.0), Others()):
        assert key(other) != key(Remote())
    for ways in ({"api_key": "l"}, {"num_retries": 1}, {"namespace": "n"}, {"retry_filter": bool}):
        assert key(Remote(**ways)) == key(Remote())
    changed = Local("m", max_batch_size=3).with_preprocess_fn(str).with_postprocess_fn(int)
    changed.max_concurrent = 3  # of an engine
    assert key(changed) == key(Local("m"))


def test_files_in_a_folder_decide(tmp_path):
    (tmp_path / "deep").mkdir()
    weights = tmp_path / "deep" / "weights"
    weights.write_bytes(b"one")
    before = key(Local(str(tmp_path)))
    assert key(Local(str(tmp_path))) == before
    os.utime(weights, ns=(1, 1))
    assert key(Local(str(tmp_path))) != before


def test_attribute_that_cannot_be_compared_is_an_error_with_its_cure():
    handler = Remote()
    handler.lock = threading.Lock()
    with pytest.raises(ConfigurationError, match=r"of Remote, .* 'lock' cannot be compared .* cache_key\(\)"):
        default_cache_key(handler)

"""API keys are read where they are needed, and nobody else reads them."""

from __future__ import annotations

import pickle
import warnings
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from headrace import ConfigurationError
from headrace.core import secrets
from headrace.core.secrets import ApiKey

KEY = "sk-0123456789"
OTHER = "sk-9876543210"
IN_PICKLE = pytest.mark.filterwarnings("ignore:.*in the pickle of the pipeline")


class FakeRequest:
    def __init__(self):
        self.headers = {"authorization": f"Bearer {KEY}", "accept": "*/*"}


class Asked(NamedTuple):
    method: str
    headers: Any


class ServerError(Exception):
    """As clients raise it: with its request and the body of the answer."""

    def __init__(self, message):
        super().__init__(message)
        self.message = message
        self.body = {"error": {"message": message, "tried": [KEY, 3]}, "code": 401}
        self.request = FakeRequest()


def from_environment(monkeypatch, key=KEY):
    monkeypatch.setenv("SOME_API_KEY", key)
    return ApiKey(None, "SOME_API_KEY", "Some")


def test_key_is_read_from_the_environment_when_it_is_needed(monkeypatch):
    key = ApiKey(None, "SOME_API_KEY", "Some")
    assert key.value() is None
    monkeypatch.setenv("SOME_API_KEY", f"{KEY}\n")
    assert key.value() == key.required() == KEY
    assert from_environment(monkeypatch, "x").mask("an example") == "an example"  # too short for a key


def test_missing_key_is_an_error_that_says_where_to_put_it():
    with pytest.raises(ConfigurationError, match="Some has no API key: set SOME_API_KEY in the environment"):
        ApiKey(None, "SOME_API_KEY", "Some").required()


def test_key_as_text_warns_at_the_users_line_that_it_is_in_the_pickle():
    with pytest.warns(UserWarning, match="Leave api_key out and set SOME_API_KEY") as caught:
        key = ApiKey(KEY, "SOME_API_KEY", "Some")
    assert caught[0].filename == __file__
    assert key.value() == pickle.loads(pickle.dumps(key)).value() == key.given == KEY


def test_function_is_called_where_the_key_is_needed_and_once_a_minute(monkeypatch):
    times, keys = iter([0.0, 0.0, 1.0, 59.0, 60.0, 60.0]), iter([KEY, OTHER])
    monkeypatch.setattr(secrets, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        key = ApiKey(lambda: next(keys), "SOME_API_KEY", "Some")
    assert [key.value() for _ in range(4)] == [KEY, KEY, KEY, OTHER]
    assert key.mask(f"{KEY}, then {OTHER}") == "***, then ***"


def give_key():
    return KEY


@IN_PICKLE
@pytest.mark.parametrize("given", [None, give_key, KEY])
def test_key_is_not_shown_and_not_in_the_pickle_unless_it_is_given_as_text(given, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", KEY)
    key = ApiKey(given, "SOME_API_KEY", "Some")
    assert key.value() == pickle.loads(pickle.dumps(key)).value() == KEY
    assert KEY not in repr(key)
    assert (KEY.encode() in pickle.dumps(key)) is (given == KEY)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "api_key must be a text, or a function that returns one, not a int"),
        ("", "the API key is empty"),
        (" \n", "the API key is empty"),
        ("sk two", "the API key has characters in it that no key has"),
        ("sk-ü", "the API key has characters in it that no key has"),
    ],
)
def test_unfit_keys_are_refused_at_construction(given, said):
    with pytest.raises(ConfigurationError, match=f"Some: {said}"):
        ApiKey(given, "SOME_API_KEY", "Some")


def test_errors_lose_the_key_everywhere(monkeypatch):
    key = from_environment(monkeypatch)
    error, other = ServerError(f"wrong key: {KEY}!"), ServerError("no such model")
    other.body = body = {"error": ["no such model"]}
    key.mask_error(other)
    assert (other.args, other.body) == (("no such model",), body)
    assert other.body is body
    error.__cause__ = ValueError(KEY)
    key.mask_error(error)
    assert (str(error), error.message, str(error.__cause__)) == ("wrong key: ***!", "wrong key: ***!", "***")
    assert error.body == {"error": {"message": "wrong key: ***!", "tried": ["***", 3]}, "code": 401}
    assert error.request.headers == {"authorization": "***", "accept": "*/*"}


def test_errors_lose_the_key_in_headers_of_a_class_of_their_own(monkeypatch):
    """As aiohttp's: a part of a named tuple, and read-only."""
    key = from_environment(monkeypatch)
    error = ServerError("the answer is none of HTTP")
    error.args = (Asked("GET", MappingProxyType({"Authorization": f"Bearer {KEY}", "accept": "*/*"})),)
    key.mask_error(error)
    assert error.args == (Asked("GET", {"Authorization": "Bearer ***", "accept": "*/*"}),)

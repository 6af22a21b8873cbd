"""While a run imports its libraries, Python looks for no garbage, and idle threads of a library leave their cores."""

import gc
import os

import pytest

from headrace.cli.importing import importing

TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.setenv(TIMEOUT, "any")  # so that the end of the test puts back what was there
    monkeypatch.delenv(TIMEOUT)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_collections_are_afterwards_as_before(is_enabled):
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_idle_threads_sleep_soon():
    with importing():
        assert int(os.environ[TIMEOUT]) < 26  # which is OpenBLAS's own


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv(TIMEOUT, "30")
    with importing():
        assert os.environ[TIMEOUT] == "30"
